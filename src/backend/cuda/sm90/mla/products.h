// SPDX-License-Identifier: Apache-2.0
// The two products of a tile of MLA decode, by wgmma:
//
//     S [64 x 64]   = Q [64 x 576] K^T        both from shared memory
//     O [64 x 256] += P [64 x 64] V           P from registers, V the warpgroup's half of the values
//
// and the way of the weights P from one warpgroup to the other: warp w of both has the same 16 rows.
#pragma once

#include "backend/cuda/sm90/mla/memory.h"
#include "backend/cuda/sm90/prefill/softmax.h"
#include "backend/cuda/sm90/wgmma.h"

namespace quire::cuda::sm90::mla {

/// Sizes of a warpgroup's work, as the running softmax of prefill asks for them.
struct HalfTile {
  static constexpr int kDim = kHalfDim, kKeys = mla::kKeys;
  static constexpr bool kCodes = false;
};

template <typename T>
using Online = prefill::Softmax<T, HalfTile>;

/// Boxes [kBegin, kEnd) of the scores of the tile in `slot`, which part `part` completes.
template <typename T, int kBegin, int kEnd>
__device__ inline void start_scores(typename Online<T>::Scores& s, Shared& shared, int slot, int part, std::uint32_t parity) {
  const hopper::Matrix rows(shared.query.boxes[0], 8 * kRowBytes), keys(shared.keys[slot].boxes[0], 8 * kRowBytes);
  hopper::wait(&shared.full[slot][part], parity);
  hopper::wgmma_begin();
#pragma unroll
  for (int box = kBegin; box < kEnd; ++box)
#pragma unroll
    for (int step = 0; step < 4; ++step)
      hopper::multiply_shared<prefill::is_f16<T>>(s, rows.at(box * kBoxBytes + step * 32), keys.at(box * kBoxBytes + step * 32),
                                                  box + step);
  hopper::wgmma_commit();
}
/// Scores of the dims whose values are warpgroup 0's, and of the others. Box 8 comes last: in slot 1 it is of part 0.
template <typename T>
__device__ inline void start_first_scores(typename Online<T>::Scores& s, Shared& shared, int slot, std::uint32_t parity) {
  start_scores<T, 0, kHalfBoxes>(s, shared, slot, 0, parity);
}
template <typename T>
__device__ inline void start_other_scores(typename Online<T>::Scores& s, Shared& shared, int slot, std::uint32_t parity) {
  start_scores<T, kHalfBoxes, kBoxes>(s, shared, slot, 1, parity);
}

template <typename T>
__device__ inline void start_values(typename Online<T>::State& state, const typename Online<T>::Weights& p, Shared& shared,
                                    int slot, int group) {
  const hopper::Matrix values(shared.keys[slot].boxes[group * kHalfBoxes], 8 * kRowBytes, kBoxBytes);
  hopper::wgmma_begin();
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step)
    hopper::multiply_registers<prefill::is_f16<T>, 1>(state.out, p + 4 * step, values.at(step * 16 * kRowBytes));
  hopper::wgmma_commit();
}

/// Place of the lane's 16 bytes among the weights of the tile in `slot`: row lane % 16 of the warp, keys 8 (lane / 16) on.
__device__ inline std::uint32_t weights_of_lane(Shared& shared, int slot) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane % 16;
  return ptx::shared_address(shared.keys[slot].boxes[kWeightBox] + row * kRowBytes + (lane / 16 ^ row % 8) * 16);
}
template <typename Weights>
__device__ inline void give_weights(const Weights& p, Shared& shared, int slot) {
  const std::uint32_t at = weights_of_lane(shared, slot);
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step)
    hopper::store_matrices(at ^ step * 32, {p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3]});
}
template <typename Weights>
__device__ inline void take_weights(Weights& p, Shared& shared, int slot) {
  const std::uint32_t at = weights_of_lane(shared, slot);
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    std::uint32_t pairs[4];
    ptx::load_matrices(pairs, at ^ step * 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) p[4 * step + i] = pairs[i];
  }
}

}  // namespace quire::cuda::sm90::mla
