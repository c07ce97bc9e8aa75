// SPDX-License-Identifier: Apache-2.0
// Stage: attention. Calls that are parts of another call: of a batch that was checked whole.
#pragma once

#include "backend/gpu/entry.h"

namespace quire::attention {

/// attend() of a part of a batch that check() has found sound as a whole. The part is not checked: a guess about its tables
/// (Q-T05) could refuse it, though it does not refuse the batch.
Status attend_part(const gpu::Call& part, const AttendOptions& attend_options);

/// attend() of both, in memory of one GPU; at the same time if plan_detail::set_beside(longer.plan, shorter.plan) held. Neither
/// may read what the other writes.
Status attend_beside(const gpu::Call& longer, const gpu::Call& shorter, const AttendOptions& attend_options);

}  // namespace quire::attention
