// SPDX-License-Identifier: Apache-2.0
// Two calls that are served at the same time: one keeps the tensor cores of a GPU busy, the other its memory.
#pragma once

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// Plans `longer` to be served beside a call of `shorter`, if a kernel serves both and time is saved; says whether it did. Both
/// plans have read their lengths.
bool set_beside(Plan& longer, const Plan& shorter);

/// Whether set_beside() did.
bool is_beside(const Plan& longer) noexcept;

}  // namespace quire::plan_detail
