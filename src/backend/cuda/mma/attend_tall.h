// SPDX-License-Identifier: Apache-2.0
// Prefill: tiles of 64 score rows. Four warps own 16 rows each and share tiles of keys in shared memory, loaded
// one tile ahead. Every row folds the keys in tiles that begin at multiples of kKeys, so its bits do not depend on its place.
#pragma once

#include "backend/cuda/mma/fold_tile.h"
#include "backend/cuda/mma/packed_source.h"
#include "backend/cuda/mma/segments.h"
#include "backend/cuda/mma/tile_source.h"
#include "backend/cuda/tile/convert_fp8.h"
#include "backend/cuda/tile/finish.h"

namespace quire::cuda::mma {

/// Source: TileSource or PackedSource.
template <typename T, int kDim_, int kCacheBytes, template <int> typename Source_>
struct Tall {
  using Source = Source_<kCacheBytes>;
  static constexpr int kDim = kDim_;
  static constexpr int kM = 1;  ///< blocks of 16 rows a warp: 2 would need more registers than there are (measured: spills)
  static constexpr int kThreads = 128;
  static constexpr int kRows = 64 * kM;
  static constexpr int kKeys = kDim == 256 ? 32 : 64;
  static constexpr bool kConvert = kCacheBytes == 1;  ///< stages hold fp8 codes, which become one 16-bit tile
  static constexpr int kPitchBytes = 2 * kPitch<kDim>;

  struct Tile16 {
    std::uint16_t k[kKeys * kPitch<kDim>];
    std::uint16_t v[kKeys * kPitch<kDim>];
  };
  struct TileCodes {
    alignas(16) Byte k[kKeys * kDim];
    alignas(16) Byte v[kKeys * kDim];
  };
  struct Shared {
    std::uint16_t query[kRows * kPitch<kDim>];
    Tile16 tiles[kConvert ? 1 : 2];
    TileCodes codes[kConvert ? 2 : 1];
    union {
      RowAddress rows[2][kKeys];
      BlockOffsets blocks[2][kKeys / Source::kBlockKeys];
    };
    Item items[2];  ///< the one at hand and the next
    Segment segment;
  };

  const gpu::AttendArgs& a;
  Shared& shared;
  const Item& item;  ///< in shared memory, because accumulators need the registers
  Source source;
  bool careful = false;  ///< infinities and NaN among the values are kept from rows that do not see them

  __device__ Tall(const gpu::AttendArgs& args, Shared& memory, const Item& work, bool whole_chunks)
      : a(args), shared(memory), item(work), source{args, work, whole_chunks} {}

  __device__ void load_query() const {
    constexpr int kChunks = kDim / 8;
    const int chunk = threadIdx.x % kChunks;
    for (int r = threadIdx.x / kChunks; r < kRows; r += kThreads / kChunks) {
      Byte* to = reinterpret_cast<Byte*>(shared.query) + r * kPitchBytes + chunk * 16;
      source.template copy_chunk<2>(to, source.query_row(item.slice.row_begin + r), a.query.strides, chunk);
    }
  }

  /// Looks up where tile rows lie, for load() after the next barrier.
  struct Addresses {
    RowAddress row;
    BlockOffsets block;
  };
  __device__ Addresses look_up(int first, bool blocks) const {
    Addresses found{};
    const Segment& segment = shared.segment;
    const int thread = threadIdx.x;
    if (!blocks && thread < kKeys) found.row = source.row(first + thread, segment.begin, segment.end);
    if (blocks && thread < kKeys / Source::kBlockKeys)
      found.block = source.block(first + thread * Source::kBlockKeys, segment.begin, segment.end);
    return found;
  }
  __device__ void publish(int stage, const Addresses& found, bool blocks) const {
    if (!blocks && threadIdx.x < kKeys) shared.rows[stage][threadIdx.x] = found.row;
    if (blocks && threadIdx.x < kKeys / Source::kBlockKeys) shared.blocks[stage][threadIdx.x] = found.block;
  }

  /// The tile whose addresses are in `stage`, as it is stored (elements of kBytes) into k and v.
  template <int kPitchOfRow>
  __device__ void load_packed(void* k, void* v, int stage, int first) const {
    const Segment& segment = shared.segment;
    const auto offsets = [&](int block) { return shared.blocks[stage][block]; };
    const int thread = threadIdx.x;
    source.template copy_keys<kDim, kKeys, kPitchOfRow, kThreads>(static_cast<Byte*>(k), first, segment.begin, segment.end,
                                                                  thread, offsets);
    source.template copy_values<kDim, kKeys, kThreads>(static_cast<Byte*>(v), first, segment.begin, segment.end, thread,
                                                       offsets(thread % (kKeys / 8)).v);
  }

  template <int kBytes, int kPitchOfRow>
  __device__ void load(void* k, void* v, int stage, int first, bool blocks) const {
    const Segment& segment = shared.segment;
    if constexpr (Source::kPacked && kBytes == kCacheBytes) {
      if (source.is_packed(first)) return load_packed<kPitchOfRow>(k, v, stage, first);
    }
    const auto copy = [&](void* tile, bool keys) {
      auto* bytes = static_cast<Byte*>(tile);
      if (blocks) {
        const auto offsets = [&](int block) { return shared.blocks[stage][block]; };
        source.template copy_by_blocks<kBytes, kDim, kKeys, kPitchOfRow, kThreads>(bytes, keys, first, segment.begin, segment.end,
                                                                                   threadIdx.x, offsets);
        return;
      }
      constexpr int kChunks = kDim * kBytes / 16;
      const int chunk = threadIdx.x % kChunks;
#pragma unroll 1
      for (int key = threadIdx.x / kChunks; key < kKeys; key += kThreads / kChunks)
        source.template copy_row<kBytes>(bytes + key * kPitchOfRow + chunk * 16, shared.rows[stage][key], keys, chunk);
    };
    copy(k, true);
    copy(v, false);
  }
  __device__ void load_stage(int stage, int first, bool blocks) const {
    if constexpr (kConvert)
      load<1, kDim>(shared.codes[stage].k, shared.codes[stage].v, stage, first, blocks);
    else
      load<2, kPitchBytes>(shared.tiles[stage].k, shared.tiles[stage].v, stage, first, blocks);
  }

  /// Completes the tile at `first` if it has rows of keys: tokens that are no cached ones of the segment.
  __device__ void patch(Tile16& tile, int first) const {
    if constexpr (Source::kPacked) {
      const Segment& segment = shared.segment;
      if (!source.is_packed(first) || !source.template needs_patch<kKeys>(first, segment.begin, segment.end)) return;
      source.template patch<kDim, kKeys, kThreads>(tile.v, first, segment.begin, segment.end, threadIdx.x);
      __syncthreads();
    }
  }
  __device__ void convert(Tile16& tile, const TileCodes& codes) const {
    const bool e4m3 = a.cache_k.dtype == DType::fp8_e4m3fn;
    convert_tile<T, kDim, kKeys, kThreads>(tile.k, codes.k, e4m3, threadIdx.x);
    if constexpr (Source::kPacked)
      convert_dim_rows<T, kDim, kKeys, kThreads>(tile.v, codes.v, e4m3, threadIdx.x);
    else
      convert_tile<T, kDim, kKeys, kThreads>(tile.v, codes.v, e4m3, threadIdx.x);
  }

  template <typename Values>
  __device__ void fold_values(const float (&p)[kM][kKeys / 8][4], Rows<kM, kDim>& rows, const RowContext& context,
                              const KeyTile& tile, bool seen, const Values& values) const {
    if (careful) {
      if (seen) add_non_finite<T, 2, kM, kDim, kKeys>(rows, context, tile, values);
      __syncthreads();
      zero_non_finite<T>(const_cast<std::uint16_t*>(tile.v), kKeys * kPitch<kDim>, threadIdx.x, kThreads);
      __syncthreads();
    }
    if (seen) multiply_values<T, 2, kM, kDim, kKeys>(p, rows, values);
  }

  __device__ void fold(Rows<kM, kDim>& rows, const RowContext& context, const KeyTile& tile, const Logits& logits) const {
    const bool seen = tile.first < context.span.any_end && tile.first + kKeys > context.span.any_begin;
    float s[kM][kKeys / 8][4];
    if (seen) {
      const QueryInShared<kDim> query{shared.query + threadIdx.x / 32 * 16 * kM * kPitch<kDim>};
      fold_scores<T, 2, kM, kDim, kKeys>(s, rows, context, query, tile, logits);
    }
    if (Source::kPacked && tile.by_dims)
      fold_values(s, rows, context, tile, seen, DimValues<kDim, kKeys>(tile.v));
    else
      fold_values(s, rows, context, tile, seen, RowValues<kDim>(tile.v));
  }

  /// Two stages: while one tile is folded the next arrives, and the row addresses of the one after it are looked up.
  __device__ void run_segment(Rows<kM, kDim>& rows, const RowContext& context) const {
    const Segment& segment = shared.segment;
    if (segment.begin >= segment.end) return;
    if (kConvert && segment.fresh) return run_fresh(rows, context);
    const int first = segment.begin / kKeys * kKeys;
    const int tiles = (segment.end - first + kKeys - 1) / kKeys;
    const bool blocks = source.by_blocks();
    publish(0, look_up(first, blocks), blocks);
    publish(1, look_up(first + kKeys, blocks), blocks);
    __syncthreads();
    load_stage(0, first, blocks);
    ptx::commit_copies();
    for (int t = 0; t < tiles; ++t) {
      ptx::wait_copies<0>();
      __syncthreads();  // tile t is there for all; nobody reads the other stage any more
      if (t + 1 < tiles) load_stage((t + 1) % 2, first + (t + 1) * kKeys, blocks);
      ptx::commit_copies();
      const Addresses next = look_up(first + (t + 2) * kKeys, blocks);
      if constexpr (kConvert) {
        convert(shared.tiles[0], shared.codes[t % 2]);
        __syncthreads();
      }
      Tile16& tile = shared.tiles[kConvert ? 0 : t % 2];
      patch(tile, first + t * kKeys);
      fold(rows, context, {tile.k, tile.v, first + t * kKeys, segment.begin, segment.end, source.is_packed(first + t * kKeys)},
           segment.logits);
      publish(t % 2, next, blocks);
    }
    __syncthreads();
    scale_values(rows, segment.v_scale);
  }

  /// Folds this step's rows beside an fp8 cache, which are 16-bit already, one tile at a time.
  __device__ void run_fresh(Rows<kM, kDim>& rows, const RowContext& context) const {
    const Segment& segment = shared.segment;
    const bool blocks = source.by_blocks();
    Tile16& tile = shared.tiles[0];
    for (int first = segment.begin / kKeys * kKeys; first < segment.end; first += kKeys) {
      __syncthreads();
      publish(0, look_up(first, blocks), blocks);
      __syncthreads();
      load<2, kPitchBytes>(tile.k, tile.v, 0, first, blocks);
      ptx::commit_copies();
      ptx::wait_copies<0>();
      __syncthreads();
      fold(rows, context, {tile.k, tile.v, first, segment.begin, segment.end}, segment.logits);
    }
    __syncthreads();
  }

  __device__ void fold_all(Rows<kM, kDim>& rows) const {
    const int first = item.slice.row_begin + static_cast<int>(threadIdx.x) / 32 * 16 * kM;
    const RowContext context{a, item.lengths, item.kv_head,
                             row_span(a, item.lengths, first, min(first + 16 * kM, item.slice.row_end))};
    start_rows(rows);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      __syncthreads();
      if (threadIdx.x == 0) shared.segment = segment_of(a, item, i, kConvert);
      __syncthreads();
      run_segment(rows, context);
    }
    sum_over_columns(rows);
  }

  __device__ void run() {
    load_query();
    Rows<kM, kDim> rows;
#pragma unroll 1
    for (bool again = true; again; careful = true) {
      fold_all(rows);
      again = __syncthreads_or(!all_finite(rows)) && !careful;
    }
    const bool whole = item.slice.num_parts == 1;
    store_rows(rows, whole);
    if (whole) return count_rows(a, item);
    if (!is_last_part(a, item)) return;
    merge_parts<T>(a, item, kThreads / 32, [&](int part) { return partial_tile(a, item, part); });
    count_rows(a, item);
  }

  __device__ void store_rows(const Rows<kM, kDim>& rows, bool whole) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = (threadIdx.x / 32 * kM + m) * 16 + h * 8 + lane / 4;
        const int row = item.slice.row_begin + r;
        if (row >= item.slice.row_end) continue;
        const semantics::SoftmaxState state = natural_state<T>(rows.max[m][h], rows.sum[m][h]);
        if (whole) {
          const OutputRow out = finish_row(a, item, row, state, lane % 4 == 0);
#pragma unroll
          for (int i = 0; i < kDim / 8; ++i)
            store_pair<T>(a, out, i * 8 + lane % 4 * 2, rows.acc[m][i][2 * h], rows.acc[m][i][2 * h + 1]);
        } else {
          const std::int64_t at = partial_tile(a, item, item.slice.part) * a.work.tile_rows + r;
          if (lane % 4 == 0) a.work.partial_states[at * 2] = state.max, a.work.partial_states[at * 2 + 1] = state.sum;
#pragma unroll
          for (int i = 0; i < kDim / 8; ++i)
            *reinterpret_cast<float2*>(a.work.partial_acc + at * kDim + i * 8 + lane % 4 * 2) =
                make_float2(rows.acc[m][i][2 * h], rows.acc[m][i][2 * h + 1]);
        }
      }
  }
};

template <typename T, int kDim, int kCacheBytes, template <int> typename Source>
__global__ void __launch_bounds__(128, 2) attend_tall(const __grid_constant__ gpu::AttendArgs a, bool whole_chunks) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = Tall<T, kDim, kCacheBytes, Source>;
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  for_each_item(a, shared.items, [&](const Item& item) { Kernel(a, shared, item, whole_chunks).run(); });
}

}  // namespace quire::cuda::mma
