// SPDX-License-Identifier: Apache-2.0
// Decode tiles that are not full: keys that not every row sees, and this step's rows.
//
// A key that no row sees is zero in the second product. Infinities and NaN that some rows see and others do not are kept out of
// the product and added in f32: 0 x NaN reaches no row that does not see the NaN.
#pragma once

#include "backend/cuda/sm90/decode/softmax.h"
#include "backend/cuda/sm90/decode/warpgroup.h"

namespace quire::cuda::sm90::decode {

template <typename Memory>
struct PartialTile {
  using Tiles = typename Memory::Tiles;
  using Tile = typename Tiles::Tile;
  using State = typename Softmax<Memory>::State;
  static constexpr int kDim = Memory::kDim, kHalves = Memory::kHalves;
  static constexpr int kHeadChunks = kDim * Tiles::kElementBytes / 16;  ///< 16-byte chunks in a head's row
  static constexpr int kChunks = Memory::kHeads * kHeadChunks;          ///< chunks in a row of all heads

  const gpu::AttendArgs& a;
  typename Memory::Shared& shared;
  const Warpgroup<Memory>& group;

  __device__ bool is_e4m3() const { return a.cache_k.dtype == DType::fp8_e4m3fn; }

  /// Overwrites the rows of a tile outside positions [begin, end): rows that are not in the cache, or must not enter a product.
  /// `source(position, head)` is the row that takes the place of one of the tile's heads, or null for zeros (which are the same
  /// in every type). Warpgroups that use the same tile write the same into it.
  template <bool kValues, typename Source>
  __device__ void patch(const Job& job, Tile& tile, int first, int begin, int end, Source&& source) const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 128; i < kTileKeys * kChunks; i += 128) {
      const int key = i / kChunks, chunk = i % kChunks, position = first + key;
      if (position >= begin && position < end) continue;
      const std::uint16_t* from = source(position, chunk / kHeadChunks);
      const uint4 dims = from != nullptr ? *reinterpret_cast<const uint4*>(from + chunk % kHeadChunks * 8) : uint4{};
      if constexpr (kValues)
        Tiles::put_values(tile, key, chunk, dims, a.page_size);
      else
        Tiles::put_keys(tile, key, chunk, dims);
    }
    hopper::fence_shared();
    group.sync_users(job);
  }

  __device__ void put_uncached_keys(const Job& job, Tile& k, int first) const {
    patch</*kValues=*/false>(job, k, first, 0, job.item.lengths.cached_len, [&](int position, int head) {
      return position < job.span.any_end ? group.uncached_row(a.key, job, position, head) : nullptr;
    });
  }

  /// Adds weights[row] times value(dim) to the rows that see the position; the value itself where there are no weights.
  template <typename Value>
  __device__ void add_value(State& state, const Job& job, int position, Value&& value, const float* weights) const {
    const Lane<Tiles> me;
    float values[kHalves][2];
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int j = 0; j < 2; ++j) values[half][j] = value(me.dim(half, j));
#pragma unroll
    for (int q = 0; q < Softmax<Memory>::kColumns; ++q) {
      const semantics::KeyRange seen = group.keys_of_column(job, me.column(q));
      if (position < seen.begin || position >= seen.end) continue;
      const float weight = weights != nullptr ? weights[me.column(q)] : 1.0f;
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 2; ++j) state.out[half][q / 2 * 4 + j * 2 + q % 2] += weight * values[half][j];
    }
  }

  /// Infinities and NaN among the values of keys that some rows see and others do not: added to the rows that see them, and
  /// taken out of the tile. A weight is positive, so its product with such a value is the value itself.
  __device__ void set_non_finite_apart(State& state, const Job& job, Tile& v, int first) const {
    const int end = min(first + kTileKeys, min(job.span.any_end, job.end_in_tiles)) - first;
    const int begin = max(first, job.span.any_begin) - first;
    const auto is_for_all = [&](int key) { return first + key >= job.span.full_begin && first + key < job.span.full_end; };
    const auto values_of = [&](int i) { return Tiles::values_of(v, i / kChunks, i % kChunks, a.page_size); };
    bool found = false;
#pragma unroll 1
    for (int i = begin * kChunks + static_cast<int>(threadIdx.x) % 128; i < end * kChunks; i += 128) {
      if (is_for_all(i / kChunks)) continue;
      const uint4 is = values_of(i), left = Tiles::finite_of(is, is_e4m3());
      found |= is.x != left.x || is.y != left.y || is.z != left.z || is.w != left.w;
    }
    if (!group.any_user(job, found)) return;
#pragma unroll 1
    for (int key = begin; key < end; ++key) {
      if (is_for_all(key)) continue;
      const auto value = [&](int dim) {
        const float x = Tiles::value_at(v, key, dim, is_e4m3(), a.page_size);
        return isfinite(x) ? 0.0f : x;
      };
      add_value(state, job, first + key, value, nullptr);
    }
    group.sync_users(job);
#pragma unroll 1
    for (int i = begin * kChunks + static_cast<int>(threadIdx.x) % 128; i < end * kChunks; i += 128) {
      if (!is_for_all(i / kChunks))
        Tiles::put_values(v, i / kChunks, i % kChunks, Tiles::finite_of(values_of(i), is_e4m3()), a.page_size);
    }
    hopper::fence_shared();
    group.sync_users(job);
  }

  /// Values of a tile that is not full: zeros where no row sees the key, this step's rows, and nothing that would spoil rows
  /// that do not see it. Products with weight 0 add 0: a row's bits do not depend on what other rows see.
  __device__ void prepare_values(State& state, const Job& job, Tile& v, int first) const {
    const int cached_end = min(job.span.any_end, job.item.lengths.cached_len);
    patch</*kValues=*/true>(job, v, first, job.span.any_begin, cached_end, [&](int position, int head) -> const std::uint16_t* {
      const bool uncached =
          position >= job.item.lengths.cached_len && position < job.span.any_end && position >= job.span.any_begin;
      return job.uncached_in_tiles && uncached ? group.uncached_row(a.value, job, position, head) : nullptr;
    });
    if constexpr (Memory::kHeads > 1) return;  // tiles of several heads have one query row: all score rows see the same keys
    if (job.span.any_begin != job.span.full_begin || job.span.any_end != job.span.full_end)
      set_non_finite_apart(state, job, v, first);
  }
};

}  // namespace quire::cuda::sm90::decode
