// SPDX-License-Identifier: Apache-2.0
// Which matrix kernel serves a list of a plan, and in blocks of how many threads.
#pragma once

#include "plan/work.h"

namespace quire::hip {

struct Launch {
  const char* source;  ///< source file of the code object
  const char* kernel;
  int threads;  ///< threads of a block, as the code object says (amdgpu_flat_work_group_size)
};

/// A row of matrix_kernels.inc; internal_error if no row serves what the plan chose hip_matrix for.
Result<Launch> matrix_launch(const Plan& plan, const plan_detail::DeviceList& list);

}  // namespace quire::hip
