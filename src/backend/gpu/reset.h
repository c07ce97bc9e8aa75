// SPDX-License-Identifier: Apache-2.0
// Stage: attend, first step of a call. Notes the outcome that the call before left in the workspace, if that call failed and its
// outcome was not asked for; then sets the counters of this call to zero.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/launch_sizes.h"

namespace quire::gpu {

/// Adds the outcome that is in the workspace to its record. A workspace is born with anything in it: without the seal it has no
/// past, and the record begins here.
QUIRE_DEVICE void note_unheard(CallState& state) {
  Unheard unheard = state.unheard;
  if (!unheard.is_sealed()) {
    unheard = {};
  } else if (unheard.heard == 0) {
    const bool refused = state.outcome.broken != 0;
    const std::int32_t layers = state.outcome.layers;
    unheard.refused += (refused ? (layers > 1 ? layers : 1) : 0) + state.outcome.unprepared + state.outcome.stale;
    const unsigned long long due = state.outcome.rows_due * static_cast<unsigned>(layers);
    unheard.miscounted += !refused && state.outcome.stale == 0 && state.outcome.rows_written != due ? 1 : 0;
  }
  unheard.heard = 0;
  unheard.seal = unheard.own_seal();
  state.unheard = unheard;
}

/// Resets the state of a call. One block of kResetThreads threads runs it.
QUIRE_DEVICE void reset(const ResetArgs& a) {
  if (thread_index() == 0) note_unheard(*a.state);
  block_barrier();  // the outcome has been read
  constexpr int first_kept = kUnheardAt / 4, end_kept = first_kept + static_cast<int>(sizeof(Unheard)) / 4;
  auto* const words = reinterpret_cast<std::uint32_t*>(a.state);
  for (std::int32_t i = thread_index(); i < a.num_words; i += kResetThreads)
    if (i < first_kept || i >= end_kept) words[i] = 0;
  block_barrier();  // the outcome is zero
  if (thread_index() != 0) return;
  a.state->outcome.layers = a.layers;
  a.state->outcome.permit = a.permit;
}

}  // namespace quire::gpu
