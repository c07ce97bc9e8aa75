// SPDX-License-Identifier: Apache-2.0
// Stage: attention. Two calls that a GPU serves at the same time.
#pragma once

#include "backend/gpu/entry.h"

namespace quire::attention {

/// attend() of both, in memory of one GPU; at the same time if plan_detail::set_beside(longer.plan, shorter.plan) held. Neither
/// may read what the other writes.
Status attend_beside(const gpu::Call& longer, const gpu::Call& shorter, const AttendOptions& attend_options);

}  // namespace quire::attention
