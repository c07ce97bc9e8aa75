// SPDX-License-Identifier: Apache-2.0
// The registers of a consumer thread of decode: scores of a tile, and the running softmax of the warpgroup's rows.
//
// Online softmax in base 2 (Milakov and Gimelshein 2018, arXiv:1805.02867). The maximum may lag behind the largest logit, as long
// as no weight overflows: mainloop.h.
#pragma once

#include "backend/cuda/sm90/decode/memory.h"
#include "backend/cuda/tile/logits.h"
#include "semantics/softmax_state.h"

namespace quire::cuda::sm90::decode {

/// The thread's place in the warpgroup and in the accumulators. Each function makes its own: values that follow from a shared one
/// would be computed before the loop over tiles, and leave the loop no registers. (Narrow tiles have registers for them.)
template <typename Tiles>
struct Lane {
  std::uint32_t thread;  ///< unsigned, so that dividing by a power of two is one instruction
  __device__ explicit Lane(bool anew = true) : thread(threadIdx.x) {
    if (anew) hopper::compute_here(thread);
  }
  __device__ int lane() const { return static_cast<int>(thread % 32); }
  __device__ int warp() const { return static_cast<int>(thread / 32 % 4); }
  /// Score row q of the thread; the thread's keys are 16 warp + lane / 4 + {0, 8}.
  __device__ int column(int q) const { return q / 2 * 8 + static_cast<int>(thread % 4 * 2) + q % 2; }
  __device__ int matrix_row() const { return static_cast<int>(thread / 32 % 4 * 16 + thread % 32 / 4); }
  /// Key of element i of Scores.
  __device__ int key(int i) const { return matrix_row() + i % 4 / 2 * 8; }
  __device__ int dim(int half, int j) const { return Tiles::dim_of(half, j, lane(), warp()); }
};

/// Types and arithmetic of the running softmax.
template <typename Memory>
struct Softmax {
  using Weight = typename Memory::Tiles::Weight;
  static constexpr int kHalves = Memory::kHalves, kRows = Memory::kRows;
  static constexpr int kSums = Memory::kHeads * kHalves;  ///< accumulators: a head's halves, then the next one's
  static constexpr int kColumns = kRows / 4;              ///< columns that a thread holds
  /// The most by which a logit may exceed the maximum, in base 2: f16 weights are 2^14 times as large and end at 2^16.
  static constexpr float kHeadroom = Weight::kDType == DType::f16 ? 1.0f : 8.0f;
  /// The largest logit that needs no other maximum, rounded down: a sum rounded up would let a weight end at 2^16.
  __device__ static float limit_of(float max) { return __fadd_rd(max, kHeadroom); }

  struct State {
    float out[kSums][kRows];             ///< [64 dims x 2 kRows columns] each: high parts, then low parts
    float max[kColumns], sum[kColumns];  ///< base 2, the reference of the weights; the sum over this thread's keys
  };
  /// Scores [64 keys x kRows]: this thread's, element i of column column_of(i).
  using Scores = float[kRows / 2];
  __device__ static constexpr int column_of(int i) { return i / 4 * 2 + i % 2; }

  /// Makes `top` the maximum of column q, and rescales sums and accumulators.
  __device__ static void rescale(State& state, int q, float top) {
    const float factor = semantics::weight_in<ptx::Exp2>(state.max[q], top);
    state.sum[q] *= factor;
#pragma unroll
    for (int half = 0; half < kSums; ++half)
#pragma unroll
      for (int i = q / 2 * 4 + q % 2; i < kRows; i += kRows / 2) {
        state.out[half][i] *= factor;
        state.out[half][i + 2] *= factor;
      }
    state.max[q] = top;
  }

  /// Weight of a logit of column q, times 2^kWeightShift.
  __device__ static float weight_of(const State& state, float logit, int q) {
    return ptx::exp2_approx(semantics::shifted_exponent(logit, semantics::base_of(state.max[q]), Weight::kWeightShift));
  }

  /// Two heads a tile: whether column q is a row of the second head, where a head has `rows` rows.
  __device__ static bool is_second_head(int q, int rows) { return Lane<typename Memory::Tiles>().column(q) >= rows; }
  /// Moves the second head's accumulators of its own rows to where the first head's are.
  __device__ static void keep_own_heads(State& state, int rows) {
    static_assert(Memory::kHeads == 2 && kHalves == 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (is_second_head(column_of(i % (kRows / 2)), rows)) state.out[0][i] = state.out[1][i];
  }

  /// Adds the low parts to the high parts. The low part of an infinite value means nothing and is left out.
  __device__ static void combine_parts(State& state) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        float& high = state.out[half][i];
        if (isfinite(high)) high += state.out[half][kRows / 2 + i];
      }
  }

  /// Writes the sums over the keys of each warp to shared memory.
  __device__ static void publish_sums(State& state, float (&of_warp)[4][kRows]) {
    const Lane<typename Memory::Tiles> me;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) state.sum[q] += __shfl_xor_sync(~0u, state.sum[q], mask);
      if (me.lane() < 4) of_warp[me.warp()][me.column(q)] = state.sum[q];
    }
  }
  /// The sum over all keys of a warpgroup, once all warps have published theirs.
  __device__ static float sum_of(const float (&of_warp)[4][kRows], int row) {
    return (of_warp[0][row] + of_warp[1][row]) + (of_warp[2][row] + of_warp[3][row]);
  }
};

}  // namespace quire::cuda::sm90::decode
