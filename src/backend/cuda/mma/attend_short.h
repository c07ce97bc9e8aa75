// SPDX-License-Identifier: Apache-2.0
// Decode: tiles of up to 8 score rows (query rows x group). The four warps of a block share the rows and part the keys: warp w
// folds every fourth tile through a pipeline of its own, so that no warp ever waits for another before the end.
#pragma once

#include "backend/cuda/mma/fold_tile.h"
#include "backend/cuda/mma/instance.h"
#include "backend/cuda/mma/items.h"
#include "backend/cuda/mma/packed_source.h"
#include "backend/cuda/mma/segments.h"
#include "backend/cuda/mma/tile_source.h"
#include "backend/cuda/tile/convert_fp8.h"
#include "backend/cuda/tile/finish.h"

namespace quire::cuda::mma {

/// Source: TileSource or PackedSource.
template <typename T, int kDim_, int kCacheBytes, template <int> typename Source_>
struct Short {
  using Source = Source_<kCacheBytes>;
  static constexpr int kDim = kDim_;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = 8;
  static constexpr int kKeys = kDim == 64 ? 32 : 16;
  static constexpr bool kConvert = kCacheBytes == 1;  ///< stages hold fp8 codes, which become one 16-bit tile a warp
  static constexpr int kStages = kConvert ? 4 : 3;
  static constexpr int kStagePitch = kConvert ? kDim : 2 * kPitch<kDim>;  ///< bytes

  struct Stage {
    alignas(16) Byte k[kKeys * kStagePitch];
    alignas(16) Byte v[kKeys * kStagePitch];
  };
  struct Tile16 {
    std::uint16_t k[kKeys * kPitch<kDim>];
    std::uint16_t v[kKeys * kPitch<kDim>];
  };
  struct Loop {
    Stage stages[kWarps][kStages];
    Tile16 tiles[kConvert ? kWarps : 1];
  };
  struct Results {
    float acc[kWarps][kRows][kDim];
    float max[kWarps][kRows], sum[kWarps][kRows];
  };
  struct Shared {
    union {
      Loop loop;
      Results results;
    };
    Item items[2];  ///< current item, and the next
    ScoreRow score_rows[kRows];
    Segment segment;
  };

  const gpu::AttendArgs& a;
  Shared& shared;
  const Item& item;
  Source source;
  bool careful = false;  ///< infinities and NaN among the values are kept from rows that do not see them

  __device__ Short(const gpu::AttendArgs& args, Shared& memory, const Item& work, const Access& access)
      : a(args), shared(memory), item(work), source{args, work, access.whole_chunks} {}

  /// Straight from memory in the layout of the operand: rows 0-7, and the same again as rows 8-15.
  __device__ void load_query(QueryInRegisters<kDim>& query) const {
    const int lane = threadIdx.x % 32;
    const int row = lane / 4;
    const bool exists = item.slice.row_begin + row < item.slice.row_end;
    const auto* from = reinterpret_cast<const std::uint16_t*>(shared.score_rows[row].query);
    const semantics::KvStrides& s = a.query.strides;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int dim = step * 16 + half * 8 + lane % 4 * 2;
        std::uint32_t pair = 0;
        if (exists && source.whole_chunks) pair = *reinterpret_cast<const std::uint32_t*>(from + dim);
        if (exists && !source.whole_chunks) pair = from[dim * s.dim] | static_cast<std::uint32_t>(from[(dim + 1) * s.dim]) << 16;
        query.a[step][2 * half] = query.a[step][2 * half + 1] = pair;
      }
  }

  /// Lane b holds the start of block b of the tile.
  __device__ BlockStarts blocks_of(int tile, const Segment& segment) const {
    const int lane = threadIdx.x % 32;
    return lane < kKeys / Source::kBlockKeys ? source.block(tile * kKeys + lane * Source::kBlockKeys, segment.begin, segment.end)
                                             : BlockStarts{};
  }
  template <typename Pointer>
  __device__ static Pointer of_lane(Pointer mine, int lane) {
    return reinterpret_cast<Pointer>(__shfl_sync(~0u, reinterpret_cast<std::uint64_t>(mine), lane));
  }

  template <int kBytes, int kPitchOfRow>
  __device__ void load(void* k, void* v, int tile, const BlockStarts& mine, bool blocks, const Segment& segment) const {
    auto* keys = static_cast<Byte*>(k);
    auto* values = static_cast<Byte*>(v);
    const int lane = threadIdx.x % 32;
    if constexpr (Source::kPacked && kBytes == kCacheBytes) {
      if (source.is_packed(tile * kKeys)) return load_packed<kPitchOfRow>(keys, values, tile * kKeys, mine, segment);
    }
    if (blocks) {
      source.template copy_by_blocks<kBytes, kDim, kKeys, kPitchOfRow, 32>(keys, true, tile * kKeys, segment.begin, segment.end,
                                                                           lane, [&](int b) { return of_lane(mine.k, b); });
      source.template copy_by_blocks<kBytes, kDim, kKeys, kPitchOfRow, 32>(
          values, false, tile * kKeys, segment.begin, segment.end, lane, [&](int b) { return of_lane(mine.v, b); });
      return;
    }
    constexpr int kChunks = kDim * kBytes / 16;
#pragma unroll 1
    for (int key = lane / kChunks; key < kKeys; key += 32 / kChunks) {
      const RowAddress row = source.row(tile * kKeys + key, segment.begin, segment.end);
      const int at = key * kPitchOfRow + lane % kChunks * 16;
      source.template copy_row<kBytes>(keys + at, row, true, lane % kChunks);
      source.template copy_row<kBytes>(values + at, row, false, lane % kChunks);
    }
  }

  template <int kPitchOfRow>
  __device__ void load_packed(Byte* keys, Byte* values, int first, const BlockStarts& mine, const Segment& segment) const {
    const int lane = threadIdx.x % 32;
    const auto start_of_keys = [&](int block) { return of_lane(mine.k, block); };
    source.template copy_keys<kDim, kKeys, kPitchOfRow, 32>(keys, first, segment.begin, segment.end, lane, start_of_keys);
    source.template copy_values<kDim, kKeys, 32>(values, first, segment.begin, segment.end, lane,
                                                 of_lane(mine.v, lane % (kKeys / 8)));
  }

  /// The stage as 16-bit rows of keys, and of values or their dims.
  __device__ KeyTile ready(Stage& stage, int tile, const Segment& segment) const {
    if constexpr (Source::kPacked)
      if (source.is_packed(tile * kKeys)) return ready_packed(stage, tile * kKeys, segment);
    if constexpr (kConvert) {
      Tile16& to = shared.loop.tiles[threadIdx.x / 32];
      const bool e4m3 = a.cache_k.dtype == DType::fp8_e4m3fn;
      convert_tile<T, kDim, kKeys, 32>(to.k, stage.k, e4m3, threadIdx.x % 32);
      convert_tile<T, kDim, kKeys, 32>(to.v, stage.v, e4m3, threadIdx.x % 32);
      __syncwarp();
      return {to.k, to.v, tile * kKeys, segment.begin, segment.end};
    } else {
      return {reinterpret_cast<const std::uint16_t*>(stage.k), reinterpret_cast<const std::uint16_t*>(stage.v), tile * kKeys,
              segment.begin, segment.end};
    }
  }

  __device__ KeyTile ready_packed(Stage& stage, int first, const Segment& segment) const {
    const int lane = threadIdx.x % 32;
    KeyTile tile{reinterpret_cast<const std::uint16_t*>(stage.k), nullptr, first, segment.begin, segment.end, true};
    auto* v = reinterpret_cast<std::uint16_t*>(stage.v);
    if constexpr (kConvert) {
      Tile16& to = shared.loop.tiles[threadIdx.x / 32];
      const bool e4m3 = a.cache_k.dtype == DType::fp8_e4m3fn;
      convert_tile<T, kDim, kKeys, 32>(to.k, stage.k, e4m3, lane);
      convert_dim_rows<T, kDim, kKeys, 32>(to.v, stage.v, e4m3, lane);
      __syncwarp();
      tile.k = to.k, v = to.v;
    }
    if (source.template needs_patch<kKeys>(first, segment.begin, segment.end)) {
      source.template patch<kDim, kKeys, 32>(v, first, segment.begin, segment.end, lane);
      __syncwarp();
    }
    tile.v = v;
    return tile;
  }

  template <typename Values>
  __device__ void fold_values(const float (&p)[1][kKeys / 8][4], Rows<1, kDim>& rows, const RowContext& context,
                              const KeyTile& tile, const Values& values) const {
    if (careful) {
      add_non_finite<T, 1, 1, kDim, kKeys>(rows, context, tile, values);
      __syncwarp();
      zero_non_finite<T>(const_cast<std::uint16_t*>(tile.v), kKeys * kPitch<kDim>, threadIdx.x % 32, 32);
      __syncwarp();
    }
    multiply_values<T, 1, 1, kDim, kKeys>(p, rows, values);
  }
  __device__ void fold(Rows<1, kDim>& rows, const RowContext& context, const QueryInRegisters<kDim>& query, const KeyTile& tile,
                       const Segment& segment) const {
    float s[1][kKeys / 8][4];
    fold_scores<T, 1, 1, kDim, kKeys>(s, rows, context, query, tile, segment.logits);
    if (Source::kPacked && tile.by_dims)
      fold_values(s, rows, context, tile, DimValues<kDim, kKeys>(tile.v));
    else
      fold_values(s, rows, context, tile, RowValues<kDim>(tile.v));
  }

  /// Folds the segment's tiles. The position of a tile alone decides which warp folds it. Calls meanwhile() behind the first
  /// copies.
  template <typename Meanwhile>
  __device__ void run_segment(Rows<1, kDim>& rows, const RowContext& context, const QueryInRegisters<kDim>& query,
                              Meanwhile&& meanwhile) const {
    const Segment segment = shared.segment;
    if (segment.begin >= segment.end) return meanwhile();
    const int warp = threadIdx.x / 32, begin = segment.begin / kKeys, end = (segment.end + kKeys - 1) / kKeys;
    const int first = begin + ((warp - begin) % kWarps + kWarps) % kWarps;
    const bool blocks = source.by_blocks();
    if (kConvert && segment.fresh) {
      meanwhile();
      return run_fresh(rows, context, query, segment, first, end);
    }
    Stage* stages = shared.loop.stages[warp];
    const auto load_stage = [&](int stage, int tile, const BlockStarts& mine) {
      if (tile < end) load<kCacheBytes, kStagePitch>(stages[stage].k, stages[stage].v, tile, mine, blocks, segment);
      ptx::commit_copies();
    };
    const auto look_up = [&](int tile) { return blocks ? blocks_of(tile, segment) : BlockStarts{}; };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) load_stage(i, first + i * kWarps, look_up(first + i * kWarps));
    BlockStarts next = look_up(first + (kStages - 1) * kWarps);
    meanwhile();
    __syncwarp();
    int stage = 0;
    for (int tile = first; tile < end; tile += kWarps) {
      ptx::wait_copies<kStages - 2>();
      __syncwarp();  // the tile is visible to the warp, and the stage of the tile before is free
      const int ahead = tile + (kStages - 1) * kWarps;
      load_stage(stage == 0 ? kStages - 1 : stage - 1, ahead, next);
      next = look_up(ahead + kWarps);
      fold(rows, context, query, ready(stages[stage], tile, segment), segment);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    ptx::wait_copies<0>();
    __syncwarp();
    scale_values(rows, segment.v_scale);
  }

  /// Folds this step's rows beside an fp8 cache, which are 16-bit already, one tile at a time.
  __device__ void run_fresh(Rows<1, kDim>& rows, const RowContext& context, const QueryInRegisters<kDim>& query,
                            const Segment& segment, int first, int end) const {
    Tile16& to = shared.loop.tiles[kConvert ? threadIdx.x / 32 : 0];
    for (int tile = first; tile < end; tile += kWarps) {
      __syncwarp();
      load<2, 2 * kPitch<kDim>>(to.k, to.v, tile, source.no_rows(), source.by_blocks(), segment);
      ptx::commit_copies();
      ptx::wait_copies<0>();
      __syncwarp();
      fold(rows, context, query, {to.k, to.v, tile * kKeys, segment.begin, segment.end}, segment);
    }
    __syncwarp();
  }

  template <typename DrawNext>
  __device__ void fold_all(Rows<1, kDim>& rows, const QueryInRegisters<kDim>& query, DrawNext&& draw_next) const {
    const RowContext context = context_of<kRows>(a, item, shared.score_rows, 0);
    const int segments = num_segments(a, kConvert);
    start_rows(rows);
#pragma unroll 1
    for (int i = 0; i < segments; ++i) {
      __syncthreads();
      if (threadIdx.x == 0) shared.segment = segment_of(a, item, i, kConvert);
      __syncthreads();
      run_segment(rows, context, query, [&] {
        if (i == 0 && !careful) draw_next();
      });
    }
    sum_over_columns(rows);
  }

  /// Calls draw_next() once.
  template <typename DrawNext>
  __device__ void run(DrawNext&& draw_next) {
    find_score_rows(shared.score_rows, a, item);
    __syncthreads();
    QueryInRegisters<kDim> query;
    load_query(query);
    Rows<1, kDim> rows;
#pragma unroll 1
    for (bool again = true; again; careful = true) {
      fold_all(rows, query, draw_next);
      again = __syncthreads_or(!all_finite(rows)) && !careful;
    }
    publish(rows);  // results take the memory of the stages
    __syncthreads();
    combine_warps();
    if (item.slice.num_parts > 1) {
      if (!is_last_part(a, item)) return;
      merge_parts<T>(a, item, kWarps, [&](int part) { return partial_tile(a, item, part); });
    }
    count_rows(a, item);
  }

  __device__ void publish(const Rows<1, kDim>& rows) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane / 4;
    if (lane % 4 == 0) shared.results.max[warp][r] = rows.max[0][0], shared.results.sum[warp][r] = rows.sum[0][0];
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
      *reinterpret_cast<float2*>(&shared.results.acc[warp][r][i * 8 + lane % 4 * 2]) =
          make_float2(rows.acc[0][i][0] + rows.acc[0][i][2], rows.acc[0][i][1] + rows.acc[0][i][3]);
  }

  /// Four partial rows to one, in warp order: to the output, or to the workspace if the keys are split over blocks.
  __device__ void combine_warps() const {
    const int lane = threadIdx.x % 32;
    const Results& from = shared.results;
    for (int r = threadIdx.x / 32; r < item.slice.row_end - item.slice.row_begin; r += kWarps) {
      semantics::SoftmaxState state;
      for (int w = 0; w < kWarps; ++w) state = semantics::combine(state, natural_state<T>(from.max[w][r], from.sum[w][r])).state;
      float weight[kWarps];
      for (int w = 0; w < kWarps; ++w)
        weight[w] = semantics::weight_in(natural_state<T>(from.max[w][r], from.sum[w][r]).max, state.max);
      const bool whole = item.slice.num_parts == 1;
      const std::int64_t at = partial_tile(a, item, item.slice.part) * a.work.tile_rows + r;
      OutputRow out{};
      if (whole) out = finish_row(a, item, item.slice.row_begin + r, state, lane == 0);
      if (!whole && lane == 0) a.work.partial_states[at * 2] = state.max, a.work.partial_states[at * 2 + 1] = state.sum;
      for (int dim = lane * 2; dim < kDim; dim += 64) {
        float x = 0.0f, y = 0.0f;
        for (int w = 0; w < kWarps; ++w) {
          const float2 part = *reinterpret_cast<const float2*>(&from.acc[w][r][dim]);
          x += part.x * weight[w], y += part.y * weight[w];
        }
        if (whole)
          store_pair<T>(a, out, dim, x, y);
        else
          *reinterpret_cast<float2*>(a.work.partial_acc + at * kDim + dim) = make_float2(x, y);
      }
    }
  }
};

template <typename T, int kDim, int kCacheBytes, template <int> typename Source>
__global__ void __launch_bounds__(128, kDim == 256 ? 1 : 2)
    attend_short(const __grid_constant__ gpu::AttendArgs a, Access access) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = Short<T, kDim, kCacheBytes, Source>;
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  for (Items items(a, shared.items); items.has_one(); items.advance())
    Kernel(a, shared, items.at_hand(), access).run([&] { items.draw_next(); });
}

}  // namespace quire::cuda::mma
