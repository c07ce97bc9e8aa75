// SPDX-License-Identifier: Apache-2.0
// Stage: attend. A layer of a step that was prepared: nothing of the call runs before its attend kernels, so one wave of the
// first of them counts the layer, and asks whether the workspace was prepared for it and lengths are still those of the
// preparation.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/break_call.h"

namespace quire::gpu {

/// A number that changes with the lengths of a request: their fingerprint is the sum over all. 1 in 2^32 changes goes unnoticed.
QUIRE_DEVICE std::int32_t fingerprint(const AttendArgs& a, std::int32_t req) {
  const auto first = static_cast<std::uint64_t>(a.query_start_loc[req]),
             last = static_cast<std::uint64_t>(a.query_start_loc[req + 1]);
  const auto seq_len = static_cast<std::uint64_t>(a.seq_lens[req]);
  const std::uint64_t cached_len = a.cached_lens.data != nullptr ? static_cast<std::uint64_t>(a.cached_lens[req]) : seq_len;
  // Odd multipliers keep what differs apart; the last steps are those of SplitMix64 (Steele, Lea, Flood 2014).
  std::uint64_t x = first * 0x9E3779B97F4A7C15u + last * 0xD1B54A32D192ED03u + seq_len * 0xBF58476D1CE4E5B9u +
                    cached_len * 0x94D049BB133111EBu + static_cast<std::uint64_t>(req) * 0x2545F4914F6CDD1Du;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(x ^ (x >> 31)));
}

/// Fingerprint of all requests' lengths. All lanes of a wave call this together and get the same value.
QUIRE_DEVICE std::int32_t fingerprint_by_wave(const AttendArgs& a, int lane) {
  std::uint32_t sum = 0;
  QUIRE_NO_UNROLL
  for (std::int32_t req = lane; req < a.num_reqs; req += wave_size()) sum += static_cast<std::uint32_t>(fingerprint(a, req));
  for (int mask = 1; mask < wave_size(); mask *= 2) sum += shuffle_xor(sum, mask);
  return static_cast<std::int32_t>(sum);
}

/// Records that the layer found no preparation of its own. A workspace without a seal holds garbage: its state begins here.
QUIRE_DEVICE void note_unprepared(const AttendArgs& a) {
  auto& state = *reinterpret_cast<CallState*>(a.outcome);
  if (!state.unheard.is_sealed()) {
    const unsigned long long permit = state.outcome.permit;  // other blocks compare with the permit
    state.outcome = {};
    state.outcome.permit = permit;
    state.unheard = {};
    state.unheard.seal = state.unheard.own_seal();
  }
  state.outcome.unprepared += 1;
  if (a.ticket_word != nullptr) store_for_host(a.ticket_word, a.ticket | kNotPrepared);
}

/// Confirms a layer. One wave of one block calls it, after all work that the stream holds before the layer.
QUIRE_DEVICE void confirm_layer(const AttendArgs& a, int lane) {
  const std::int32_t lengths = fingerprint_by_wave(a, lane);
  if (lane != 0) return;
  auto& state = *reinterpret_cast<CallState*>(a.outcome);
  const bool known = state.unheard.is_sealed();
  if (is_refused(a) && !(known && state.outcome.broken != 0)) return note_unprepared(a);
  state.outcome.layers += 1;
  state.unheard.heard = 0;
  if (is_refused(a) || lengths == state.outcome.lengths) return;
  // The permit stays: threads that have read it and threads that will must agree, or some wait for the others without end.
  state.outcome.stale += 1;
  if (a.ticket_word != nullptr) store_for_host(a.ticket_word, a.ticket | kNotPrepared);
}

}  // namespace quire::gpu
