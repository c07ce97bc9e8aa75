// A pretended AMD GPU as a target of verify: a case is planned for it, laid out between guard pages and launched.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "amd_emulator/launcher.h"
#include "quire/verify.hpp"

namespace quire::amd {

/// How one attention kernel of the code object is reached from a plan.
struct AttendKernel {
  std::string_view symbol;
  std::string_view row;  ///< of kernels(), whose lists it serves
};

/// Every call takes the next seed; arrays turn their other side to the guard page.
Target emulated_target(const std::string& device, const AttendKernel& kernel, LaunchKernel launch, std::uint64_t seed);

}  // namespace quire::amd
