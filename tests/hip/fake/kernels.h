// SPDX-License-Identifier: Apache-2.0
// The kernels' sources on the stand-in for a GPU (tests/simt), by the names that code objects have them under.
#pragma once

#include <cstddef>
#include <string>

#include "hip/fake/code_object.h"

namespace quire::fake {

/// Runs it; empty, or what the stand-in has against it. `argument` is the kernel's one parameter.
std::string run_kernel(const std::string& arch, const std::string& kernel, const KernelMetadata& metadata, unsigned blocks,
                       const void* argument);

/// Bytes of the parameter as the host declares it; 0: there is no such kernel.
std::size_t parameter_bytes(const std::string& kernel);

/// Blocks that the kernel is written for; 0: any number.
unsigned most_blocks(const std::string& kernel);

/// A pointer in the parameter that a kernel will follow, and what it is.
using IsDeviceMemory = bool (*)(const void* address);
/// The name of the first that is neither null nor device memory; empty: none.
std::string pointer_elsewhere(const std::string& kernel, const void* argument, IsDeviceMemory is_device_memory);

}  // namespace quire::fake
