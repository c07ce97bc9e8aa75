// SPDX-License-Identifier: Apache-2.0
// The two products of a tile of MLA decode, by wgmma:
//
//     S [64 x 64]   = Q [64 x 576] K^T        both from shared memory
//     O [64 x 256] += P [64 x 64] V           P from registers, V the warpgroup's half of the values
//
// and the way of the weights P from one warpgroup to the other: warp w of both has the same 16 rows.
#pragma once

#include "backend/cuda/hopper/wgmma.h"
#include "backend/cuda/sm90/mla/memory.h"
#include "backend/cuda/sm90/prefill/softmax.h"

namespace quire::cuda::sm90::mla {

/// Sizes of a warpgroup's work, as the running softmax of prefill asks for them.
struct HalfTile {
  static constexpr int kOutDim = kHalfDim, kKeys = mla::kKeys;
  static constexpr bool kCodes = false;
};

template <typename T>
using Online = prefill::Softmax<T, HalfTile>;

/// Waits for a part of a tile. What threads copied is fenced for wgmma.
__device__ inline void await_copies(const LatentMaps& maps, hopper::Barrier* full, std::uint32_t parity) {
  hopper::wait(full, parity);
  if (maps.copied_tokens == 1) hopper::fence_shared();
}

/// Scores of the tile in `slot`, as its parts arrive.
template <typename T>
__device__ inline void start_scores(typename Online<T>::Scores& s, const LatentMaps& maps, Shared& shared, int slot,
                                    std::uint32_t parity) {
  const hopper::Matrix rows(shared.query.boxes[0], 8 * kRowBytes), keys(shared.keys[slot].pieces[0][0], kStrideBytes);
#pragma unroll
  for (int box = 0; box < kBoxes; ++box) {
    if (box % kHalfBoxes == 0) {
      await_copies(maps, &shared.full[slot][box / kHalfBoxes], parity);
      hopper::wgmma_begin();
    }
#pragma unroll
    for (int step = 0; step < 4; ++step)
      hopper::multiply_shared<prefill::is_f16<T>>(s, rows.at(box * kBoxBytes + step * 32), keys.at(box * kPieceBytes + step * 32),
                                                  box + step);
  }
  hopper::wgmma_commit();
}
static_assert(kFirstHalf == 0 && kSecondHalf == 1 && kRest == 2 && kWeightBox == 2 * kHalfBoxes);

template <typename T>
__device__ inline void start_values(typename Online<T>::State& state, const typename Online<T>::Weights& p, Shared& shared,
                                    int slot, int group) {
  const hopper::Matrix values(shared.keys[slot].pieces[0][group * kHalfBoxes], kStrideBytes, kPieceBytes);
  hopper::wgmma_begin();
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step)
    hopper::multiply_registers<prefill::is_f16<T>, 1>(state.out, p + 4 * step, values.at(step * 2 * kStrideBytes));
  hopper::wgmma_commit();
}

/// Place of the lane's 16 bytes among the weights of the tile in `slot`: row lane % 16 of the warp, keys 8 (lane / 16) on.
__device__ inline std::uint32_t weights_of_lane(Shared& shared, int slot) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane % 16;
  return ptx::shared_address(shared.keys[slot].pieces[row / 8][kWeightBox] + row % 8 * kRowBytes + (lane / 16 ^ row % 8) * 16);
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
