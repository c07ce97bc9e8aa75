// SPDX-License-Identifier: Apache-2.0
// The kernels of a device as functions that can be launched: code objects are loaded when the first of their kernels is asked
// for, once for a device, and stay.
#pragma once

#include <string>
#include <string_view>

#include "backend/hip/api.h"

namespace quire::hip {

/// "gfx942" of "gfx942:sramecc+:xnack-".
std::string target_of(std::string_view arch);
/// Whether this library carries kernels for it.
bool has_target(std::string_view target) noexcept;
/// "gfx90a, gfx942, ...": those it carries kernels for.
std::string targets();

/// A kernel of code object `source` on the device that is current. Names are literals, and no two sources share a kernel's.
Result<Function> find_function(std::string_view source, const char* kernel);
/// Address of a variable of the code object on the current device.
Result<void*> find_variable(std::string_view source, const char* name, std::size_t bytes);

}  // namespace quire::hip
