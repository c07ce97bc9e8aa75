// SPDX-License-Identifier: Apache-2.0
// The tiles of an item into the running softmax of its 64 rows.
//
// An SM's registers hold one output of 64 x 512 and no second one. So two warpgroups have half of its columns each, and take
// turns at scores: warpgroup 0 those of the even tiles of an item, warpgroup 1 those of the odd ones. Both multiply the weights
// of both tiles with their half of the values. While one computes exponentials, products of the other are under way (the
// "seesaw" of FlashMLA, DeepSeek 2025).
//
//     warpgroup 0   S0        softmax 0   P0 V0         P1 V1         S0 of the next pair
//     warpgroup 1        S1               P0 V0    softmax 1    P1 V1
//
// Maxima lag behind (prefill/softmax.h), so accumulators are rescaled seldom. A maximum goes from warpgroup to warpgroup with the
// weights that were made by it, and both use the same ones for the same tile.
#pragma once

#include "backend/cuda/sm90/mla/scores.h"

namespace quire::cuda::sm90::mla {

/// Named barriers by which a warpgroup says that the weights in its slot are there.
constexpr int kWeightsReady = 5;

/// T: type of the query and the cache.
template <typename T, int kGroup>
struct Mainloop {
  using Softmax = Online<T>;
  using State = typename Softmax::State;
  using Scores = typename Softmax::Scores;
  using Weights = typename Softmax::Weights;
  static constexpr int kOther = 1 - kGroup;

  const gpu::AttendArgs& a;
  const LatentMaps& maps;
  Shared& shared;

  __device__ void free_part(int slot, Part part) const {
    if (threadIdx.x % 32 == 0) hopper::arrive(&shared.free[slot][part]);
  }
  /// Waits for the products with the values in `slot`, and frees them. `p` are their weights: registers that products under way
  /// read.
  __device__ void await_values_of(int slot, State& state, const Weights& p) const {
    hopper::wgmma_wait<0>();
    free_part(slot, static_cast<Part>(kGroup));
    hopper::settle(state.out);
#pragma unroll
    for (const std::uint32_t pair : p) asm volatile("" ::"r"(pair));
  }

  /// Scores of tile `n` to weights, given to the other warpgroup. True if accumulators are to be multiplied by `rescale`.
  __device__ bool weigh(Scores& s, Weights& p, State& state, const tile::Item& item, const KeySpan& span, int n,
                        float (&rescale)[2]) const {
    const float factor = a.score.scale * tile::kLog2e;
    if (!span.is_full(n)) hide_unseen(s, a, item, span, n);
    if (!span.is_seen(n)) clear_unseen(shared.keys[kGroup], span, n, kGroup);
    const bool moved = Softmax::move_maxima(state, s, factor, {false, false}, rescale);
    Softmax::exponentiate(s, state, factor);
    float total[2];
    Softmax::add_up(total, s, shared.zero);
    Softmax::template pack_weights<T>(p, s);
    give_weights(p, shared, kGroup);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] += total[h];
      if (threadIdx.x % 4 == 0) shared.max[kGroup][Lane::row() + 8 * h] = state.max[h];
    }
    hopper::arrive_at(kWeightsReady + kGroup, kConsumerThreads);
    return moved;
  }

  /// Waits for the other warpgroup's weights, and takes its maxima. True if accumulators are to be multiplied by `rescale`.
  __device__ bool adopt(Weights& p, State& state, float (&rescale)[2]) const {
    hopper::sync_at(kWeightsReady + kOther, kConsumerThreads);
    bool moved = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float max = shared.max[kOther][Lane::row() + 8 * h];
      rescale[h] = max == state.max[h] ? 1.0f : ptx::exp2_approx(state.max[h] - max);
      moved = moved || max != state.max[h];
      state.max[h] = max;
      state.sum[h] *= rescale[h];
    }
    take_weights(p, shared, kOther);
    __syncwarp();
    free_part(kOther, kRest);
    return __any_sync(~0u, moved);
  }

  __device__ void fold_even(State& state, const tile::Item& item, const KeySpan& span, Phases& phases) const {
#pragma unroll 1
    for (int n = span.first; n < span.end; n += 2) {
      Scores s;
      Weights p, q;
      float rescale[2];
      start_scores<T>(s, maps, shared, 0, phases.of(0));
      phases.advance(0);
      hopper::wgmma_wait<0>();
      hopper::settle(s);
      if (weigh(s, p, state, item, span, n, rescale)) Softmax::rescale_out(state, rescale);
      start_values<T>(state, p, shared, 0, kGroup);
      await_values_of(0, state, p);
      if (n + 1 == span.end) return;
      start_other_values(state, q, phases);
      await_values_of(1, state, q);
    }
  }

  /// Begins the products of the other warpgroup's weights and the values of its tile.
  __device__ void start_other_values(State& state, Weights& p, Phases& phases) const {
    float rescale[2];
    await_copies(maps, &shared.full[kOther][kGroup], phases.of(kOther));  // copies are seen by those who ask
    phases.advance(kOther);
    if (adopt(p, state, rescale)) Softmax::rescale_out(state, rescale);
    start_values<T>(state, p, shared, kOther, kGroup);
  }

  __device__ void fold_odd(State& state, const tile::Item& item, const KeySpan& span, Phases& phases) const {
    int n = span.first;
#pragma unroll 1
    for (; n + 1 < span.end; n += 2) {
      Scores s;
      Weights p, q;
      float rescale[2];
      start_scores<T>(s, maps, shared, 1, phases.of(1));
      phases.advance(1);
      hopper::wgmma_wait<0>();
      hopper::settle(s);
      start_other_values(state, q, phases);
      const bool moved = weigh(s, p, state, item, span, n + 1, rescale);
      await_values_of(0, state, q);
      if (moved) Softmax::rescale_out(state, rescale);
      start_values<T>(state, p, shared, 1, kGroup);
      await_values_of(1, state, p);
    }
    if (n == span.end) return;
    Weights q;
    start_other_values(state, q, phases);
    await_values_of(0, state, q);
  }

  __device__ __forceinline__ void fold(State& state, const tile::Item& item, const KeySpan& span, Phases& phases) const {
    if constexpr (kGroup == 0)
      fold_even(state, item, span, phases);
    else
      fold_odd(state, item, span, phases);
  }
};

}  // namespace quire::cuda::sm90::mla
