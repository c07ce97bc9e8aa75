// SPDX-License-Identifier: Apache-2.0
// Values of a prefill tile that no row sees: zeros, before the second product.
#pragma once

#include "backend/cuda/sm90/packed_layout.h"
#include "backend/cuda/sm90/prefill/rows.h"

namespace quire::cuda::sm90::prefill {

template <typename Memory>
struct UnseenValues {
  using Job = typename Memory::Job;
  using Tile = typename Memory::ValueTile;
  using ValueLayout = PackedValues<Memory::kDim, 2>;
  static constexpr int kDim = Memory::kDim, kHalves = Memory::kOutHalves, kRowBytes = Memory::kRowBytes;
  static constexpr bool kPackedValues = Memory::kPacked;

  const Block<Memory> block;

  /// Makes values outside the span zeros, of the first `keys` rows of V: 0 times what lay there before could be NaN. All
  /// warpgroups write the same.
  __device__ void clear(Tile& v, const Job& job, const KeyTileSpan& span, int keys) const {
    const int begin = span.begin - span.first, end = span.end - span.first;
    if constexpr (Memory::kMasks) {
      clear_gap(v, job.gap_begin - span.first, job.gap_end - span.first, keys);
      if (job.sight.mask.has_tree()) clear_holes(v, job, span, keys);
    }
    if (begin <= 0 && end >= keys) return;
    if (kPackedValues && !span.fresh)
      clear_packed(v, begin, end, keys);
    else
      clear_rows(v, begin, end, keys);
    hopper::fence_shared();
    hopper::sync_at(kGroupBarrier + Lane::group(), 128);
  }
  /// Rows that are in the tile and in a gap.
  __device__ static void clear_gap(Tile& v, int begin, int end, int keys) {
    if (begin >= keys || end <= 0 || begin >= end) return;
    for (int i = max(begin, 0) * 8 + static_cast<int>(threadIdx.x) % 128; i < min(end, keys) * 8; i += 128)
      clear_chunk(v, i / 8, i % 8);
    hopper::fence_shared();
    hopper::sync_at(kGroupBarrier + Lane::group(), 128);
  }
  /// Keys of the span that no row of the tile sees, between keys that rows see: of a tree, and between the rows and the tree.
  __device__ void clear_holes(Tile& v, const Job& job, const KeyTileSpan& span, int keys) const {
    const int end = min(span.end - span.first, keys);
    for (int key = max(span.begin - span.first, 0) + static_cast<int>(threadIdx.x) % 128; key < end; key += 128) {
      if (job.sees_key(block.a, span.first + key)) continue;
#pragma unroll 1
      for (int chunk = 0; chunk < 8; ++chunk) clear_chunk(v, key, chunk);
    }
    hopper::fence_shared();
    hopper::sync_at(kGroupBarrier + Lane::group(), 128);
  }
  /// Clears 8 tokens of a dim at a time: groups that are not all seen, at the beginning of the tile and at its end.
  __device__ void clear_packed(Tile& v, int begin, int end, int keys) const {
    clear_eights(v, 0, min(max(begin + 7, 0), keys) / 8, begin, end);
    clear_eights(v, max(end, 0) / 8, keys / 8, begin, end);
  }
  __device__ void clear_eights(Tile& v, int from, int to, int begin, int end) const {
    const ValueLayout layout(block.a.page_size);
    for (int i = threadIdx.x % 128; i < (to - from) * kDim; i += 128) {
      const int first = (from + i / kDim) * 8;
      auto* const tokens = reinterpret_cast<uint4*>(v.halves[0] + layout.element(first, i % kDim));
      if (first + 8 <= begin || first >= end) {
        *tokens = uint4{};
        continue;
      }
      const auto kept = [&](int key) { return key >= begin && key < end ? 0xFFFFu : 0u; };
      const auto pair = [&](int key) { return kept(key) | kept(key + 1) << 16; };
      const uint4 is = *tokens;
      *tokens = {is.x & pair(first), is.y & pair(first + 2), is.z & pair(first + 4), is.w & pair(first + 6)};
    }
  }
  __device__ static void clear_rows(Tile& v, int begin, int end, int keys) {
    for (int i = threadIdx.x % 128; i < keys * 8; i += 128) {
      const int key = i / 8;
      if (key < begin || key >= end) clear_chunk(v, key, i % 8);
    }
  }
  /// 16 bytes of each 64 dims.
  __device__ static void clear_chunk(Tile& v, int key, int chunk) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) *reinterpret_cast<uint4*>(v.halves[half] + key * kRowBytes + chunk * 16) = uint4{};
  }
};

}  // namespace quire::cuda::sm90::prefill
