// SPDX-License-Identifier: Apache-2.0
// A pretended AMD GPU as a target of verify: a case is planned for it, laid out between guard pages and launched.
#pragma once

#include <cstdint>
#include <string>

#include "amd_emulator/attend_kernels.h"
#include "amd_emulator/launcher.h"
#include "quire/plan.hpp"
#include "quire/tools/verify.hpp"

namespace quire::amd {

/// The case in device memory.
Case place(Arrays& arrays, const Case& c);

/// Plans for the pretended device, cut down to few compute units.
Result<Plan> plan_for(const std::string& device, const AttendKernel& kernel, const Case& c, bool batch_invariant);

struct Attended {
  Status launched;      ///< whether all kernels came to their ends
  bool broken = false;  ///< the device found that a rule is broken
  Status status;        ///< status of the call
};

/// Runs one call as cuda::attend() enqueues it; copies outputs back also after a failure.
Attended attend_once(const Plan& plan, const AttendKernel& kernel, LaunchKernel launch, std::uint64_t seed, const Case& c);

/// Every call takes the next seed; arrays turn their other side to the guard page.
Target emulated_target(const std::string& device, const AttendKernel& kernel, LaunchKernel launch, std::uint64_t seed);

}  // namespace quire::amd
