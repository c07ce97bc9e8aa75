// SPDX-License-Identifier: Apache-2.0
// Reader of a code object for the fake runtime: its GPU, and the launch parameters in each kernel's metadata (LLVM, "User Guide
// for AMDGPU Backend": ELF header flags, code object V5 metadata in a MessagePack note).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace quire::fake {

struct KernelMetadata {
  unsigned threads = 0;                 ///< .max_flat_workgroup_size, which is also the least for our kernels
  unsigned shared_bytes = 0;            ///< .group_segment_fixed_size
  unsigned wave = 0;                    ///< .wavefront_size
  std::vector<std::size_t> parameters;  ///< bytes of each that is passed by value
};

struct CodeObject {
  std::string arch;
  std::map<std::string, KernelMetadata> kernels;
};

/// False: `image` is no code object for AMD GPUs.
bool read_code_object(const unsigned char* image, CodeObject& to);

}  // namespace quire::fake
