// SPDX-License-Identifier: Apache-2.0
// The attention kernels of the code objects: what each takes, and how it is reached from a plan. A new one is an entry of the
// table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/work.h"
#include "quire/plan.hpp"
#include "verify/matrix.h"

namespace quire::amd {

/// A kernel, or the instances of one for types and head_dims.
struct AttendKernel {
  std::string_view row;             ///< row of kernels(), which gives the plan and the lists that the kernel serves
  verify_detail::AskedTypes takes;  ///< empty: every problem
  std::string (*symbol)(const Plan& plan, const plan_detail::DeviceList& list);
  bool reads_blocks = false;  ///< argument is gpu::GenericArgs, not gpu::AttendArgs
};

const std::vector<AttendKernel>& attend_kernels();

}  // namespace quire::amd
