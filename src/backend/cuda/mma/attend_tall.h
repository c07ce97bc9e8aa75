// SPDX-License-Identifier: Apache-2.0
// Prefill: tiles of 64 or 128 score rows. A warp owns 16 or 32 rows. All warps share a tile of keys and one of values in shared
// memory: values arrive while scores are made, and the next keys while weights and values are multiplied (Dao 2023,
// arXiv:2307.08691).
// Every row folds the keys in tiles that begin at multiples of kKeys, so its bits do not depend on its place.
#pragma once

#include <type_traits>

#include "backend/cuda/mma/fold_tile.h"
#include "backend/cuda/mma/instance.h"
#include "backend/cuda/mma/items.h"
#include "backend/cuda/mma/packed_source.h"
#include "backend/cuda/mma/segments.h"
#include "backend/cuda/mma/tile_source.h"
#include "backend/cuda/tile/convert_fp8.h"
#include "backend/cuda/tile/finish.h"

namespace quire::cuda::mma {

/// Precision of the softmax weights in their product with V.
enum class Weights {
  exact,    ///< weights are two 16-bit parts (fold_tile.h); tiles have 64 rows, which decode rows of large groups fill better
  rounded,  ///< weights are one 16-bit number (numerics.md, "Rounded weights"); tiles have 128 rows
};

/// Abilities of a pass over the keys. Each kind of pass is code of its own, as registers do not suffice for all abilities at
/// once.
enum class Pass {
  plain,    ///< scores are scaled dot products
  scored,   ///< scores may have soft caps and ALiBi
  careful,  ///< the abilities of scored; infinities and NaN among the values are kept from rows that do not see them
};

/// Source: TileSource or PackedSource. kKeys_: keys of a tile; half of 64 are a fifth slower at head_dim 128 (H100, 16k).
template <typename T, int kDim_, int kCacheBytes, template <int> typename Source_, Weights kWeights, int kKeys_ = 64>
struct Tall {
  using Source = Source_<kCacheBytes>;
  static constexpr bool kRounded = kWeights == Weights::rounded;
  static constexpr bool kConvert = kCacheBytes == 1;  ///< fp8 codes are staged and become 16-bit tiles
  static constexpr int kDim = kDim_;
  /// Blocks of 16 rows a warp. Two halve the reads of shared memory, but accumulators of 256 dims fill a thread's registers with
  /// one, and fp8 is faster with more warps that convert (H100: 803 us for 1005).
  static constexpr int kM = kRounded && kDim <= 128 && !kConvert ? 2 : 1;
  static constexpr int kRows = kRounded ? 128 : 64;
  static constexpr int kWarps = kRows / (16 * kM), kThreads = 32 * kWarps;
  static constexpr int kBlocks = 8 / kWarps;  ///< blocks an SM, whose registers eight warps fill
  static constexpr int kKeys = kKeys_;
  static constexpr int kAhead = kM == 1 ? 4 : 2;  ///< operands there ahead; 1 is 3 % slower, 3 is as fast (H100, 16k)
  static constexpr int kPitchBytes = 2 * kPitch<kDim>;

  struct Codes {
    alignas(16) Byte k[kKeys * kDim];
    alignas(16) Byte v[kKeys * kDim];
  };
  struct None {};
  struct Shared {
    std::uint16_t query[kRows * kPitch<kDim>];
    std::uint16_t k[kKeys * kPitch<kDim>];
    std::uint16_t v[kKeys * kPitch<kDim>];
    std::conditional_t<kConvert, Codes, None> codes;
    union {  // addresses of keys: a ring of two windows
      RowAddress rows[2 * kThreads];
      BlockStarts blocks[2 * kThreads];
    };
    Item items[2];  ///< current item, and the next
    ScoreRow score_rows[kRows];
    Segment segment;
  };

  const gpu::AttendArgs& a;
  Shared& shared;
  const Item& item;  ///< shared memory holds it, because accumulators need the registers
  Source source;

  bool output_chunks;  ///< see Access

  __device__ Tall(const gpu::AttendArgs& args, Shared& memory, const Item& work, const Access& access)
      : a(args), shared(memory), item(work), source{args, work, access.whole_chunks}, output_chunks(access.output_chunks) {}

  static constexpr int kWarpRows = 16 * kM;
  /// Index in the item of the first row of this thread's warp.
  __device__ static int warp_row() { return static_cast<int>(threadIdx.x) / 32 * kWarpRows; }

  __device__ void load_query() const {
    constexpr int kChunks = kDim / 8;
    const int chunk = threadIdx.x % kChunks, rows = item.slice.row_end - item.slice.row_begin;
    for (int r = threadIdx.x / kChunks; r < kRows; r += kThreads / kChunks) {
      Byte* to = reinterpret_cast<Byte*>(shared.query) + r * kPitchBytes + chunk * 16;
      const Byte* from = r < rows ? shared.score_rows[r].query : nullptr;
      source.template copy_chunk<2>(to, from, a.query.strides, chunk);
    }
  }

  /// Keys whose places are looked up at a time, an entry a thread; a multiple of kKeys and a power of 2.
  __device__ static constexpr int window(bool blocks) { return kThreads * (blocks ? Source::kBlockKeys : 1); }
  /// Keys between the begin of the window that holds key `first` and this key.
  __device__ static constexpr int place_in_window(int first, bool blocks) { return first & (window(blocks) - 1); }

  /// Looks up where the keys of the window at `first`, a multiple of its size, lie, for loads after the next barrier.
  __device__ void look_up(int first, bool blocks) const {
    const Segment& segment = shared.segment;
    const int position = first + static_cast<int>(threadIdx.x) * (blocks ? Source::kBlockKeys : 1);
    const int entry = first / window(blocks) % 2 * kThreads + static_cast<int>(threadIdx.x);
    if (blocks)
      shared.blocks[entry] = source.block(position, segment.begin, segment.end);
    else
      shared.rows[entry] = source.row(position, segment.begin, segment.end);
  }

  /// Keys, or values, of the tile at `first`, as they are stored (elements of kBytes).
  template <int kBytes, int kPitchOfRow, bool kOfKeys>
  __device__ void load(void* tile, int first, bool blocks) const {
    const Segment& segment = shared.segment;
    const int thread = threadIdx.x;
    auto* bytes = static_cast<Byte*>(tile);
    const int entry = first / Source::kBlockKeys % (2 * kThreads);
    const auto start = [&](int block) {
      const BlockStarts& starts = shared.blocks[entry + block];
      return kOfKeys ? starts.k : starts.v;
    };
    if constexpr (Source::kPacked && kBytes == kCacheBytes) {
      if (source.is_packed(first)) {
        if constexpr (kOfKeys)
          source.template copy_keys<kDim, kKeys, kPitchOfRow, kThreads>(bytes, first, segment.begin, segment.end, thread, start);
        else
          source.template copy_values<kDim, kKeys, kThreads>(bytes, first, segment.begin, segment.end, thread,
                                                             start(thread % (kKeys / 8)));
        return;
      }
    }
    if (blocks)
      return source.template copy_by_blocks<kBytes, kDim, kKeys, kPitchOfRow, kThreads>(bytes, kOfKeys, first, segment.begin,
                                                                                        segment.end, thread, start);
    constexpr int kChunks = kDim * kBytes / 16;
    const int chunk = thread % kChunks;
#pragma unroll 1
    for (int key = thread / kChunks; key < kKeys; key += kThreads / kChunks)
      source.template copy_row<kBytes>(bytes + key * kPitchOfRow + chunk * 16, shared.rows[(first + key) % (2 * kThreads)],
                                       kOfKeys, chunk);
  }
  __device__ void load_keys(int first, bool blocks) const {
    if constexpr (kConvert)
      load<1, kDim, true>(shared.codes.k, first, blocks);
    else
      load<2, kPitchBytes, true>(shared.k, first, blocks);
    ptx::commit_copies();
  }
  __device__ void load_values(int first, bool blocks) const {
    if constexpr (kConvert)
      load<1, kDim, false>(shared.codes.v, first, blocks);
    else
      load<2, kPitchBytes, false>(shared.v, first, blocks);
    ptx::commit_copies();
  }

  /// Completes the values of the tile at `first` if it has rows of keys: tokens that are no cached ones of the segment.
  __device__ void patch(int first) const {
    if constexpr (Source::kPacked) {
      const Segment& segment = shared.segment;
      if (!source.is_packed(first) || !source.template needs_patch<kKeys>(first, segment.begin, segment.end)) return;
      source.template patch<kDim, kKeys, kThreads>(shared.v, first, segment.begin, segment.end, threadIdx.x);
      __syncthreads();
    }
  }
  __device__ void convert_keys() const {
    convert_tile<T, kDim, kKeys, kThreads>(shared.k, shared.codes.k, a.cache_k.dtype == DType::fp8_e4m3fn, threadIdx.x);
    __syncthreads();  // keys are visible to all threads, and no thread reads their codes any more
  }
  __device__ void convert_values() const {
    if constexpr (kConvert) {
      const bool e4m3 = a.cache_k.dtype == DType::fp8_e4m3fn;
      if constexpr (Source::kPacked)
        convert_dim_rows<T, kDim, kKeys, kThreads>(shared.v, shared.codes.v, e4m3, threadIdx.x);
      else
        convert_tile<T, kDim, kKeys, kThreads>(shared.v, shared.codes.v, e4m3, threadIdx.x);
      __syncthreads();
    }
  }

  template <Pass kPass, typename Values>
  __device__ void fold_values(const float (&p)[kM][kKeys / 8][4], Rows<kM, kDim>& rows, const RowContext& context,
                              const KeyTile& tile, bool seen, const Values& values) const {
    if constexpr (kPass == Pass::careful) {
      if (seen) add_non_finite<T, 2, kM, kDim, kKeys>(rows, context, tile, values);
      __syncthreads();
      zero_non_finite<T>(shared.v, kKeys * kPitch<kDim>, threadIdx.x, kThreads);
      __syncthreads();
    }
    if (seen) multiply_values<T, 2, kM, kDim, kKeys, kRounded, kAhead>(p, rows, values);
  }

  /// One tile. `arrive` waits for the values and starts the copies of the next keys.
  template <Pass kPass, typename Arrive>
  __device__ void fold(Rows<kM, kDim>& rows, const RowContext& context, const KeyTile& tile, const Logits& logits,
                       Arrive&& arrive) const {
    const bool seen = tile.first < context.span.any_end && context.span.any_begin - tile.first < kKeys;
    float s[kM][kKeys / 8][4];
    const QueryInShared<kDim> query{shared.query + warp_row() * kPitch<kDim>};
    if (seen) multiply_scores<T, kM, kDim, kKeys, kAhead>(s, query, tile.k);
    arrive();
    if (seen) {
      const float factor = finish_scores < 2, kM, kKeys, true, kPass != Pass::plain > (s, context, tile, logits);
      fold_weights<T, 2, kM, kDim, kKeys, true>(s, rows, factor);
    }
    if (Source::kPacked && tile.by_dims)
      fold_values<kPass>(s, rows, context, tile, seen, DimValues<kDim, kKeys>(tile.v));
    else
      fold_values<kPass>(s, rows, context, tile, seen, RowValues<kDim>(tile.v));
  }

  /// Calls meanwhile() behind the copies of the first keys.
  template <Pass kPass, typename Meanwhile>
  __device__ void run_segment(Rows<kM, kDim>& rows, const RowContext& context, Meanwhile&& meanwhile) const {
    const Segment& segment = shared.segment;
    if (segment.begin >= segment.end) return meanwhile();
    if (kConvert && segment.fresh) {
      meanwhile();
      return run_fresh<kPass>(rows, context);
    }
    const int begin = segment.begin / kKeys * kKeys, end = segment.end;
    const bool blocks = source.by_blocks();
    look_up(begin - place_in_window(begin, blocks), blocks);
    __syncthreads();
    load_keys(begin, blocks);
    meanwhile();
#pragma unroll 1
    for (int first = begin;; first += kKeys) {  // first + kKeys may be beyond an int
      const bool more = end - first > kKeys;
      ptx::wait_copies<0>();
      __syncthreads();  // keys are visible to all threads, and no thread reads the previous values any more
      load_values(first, blocks);
      const int to_next = window(blocks) - place_in_window(first, blocks);
      if ((first == begin || to_next == window(blocks)) && end - first > to_next) look_up(first + to_next, blocks);
      if constexpr (kConvert) {
        convert_keys();
        if (more) load_keys(first + kKeys, blocks);
      }
      const KeyTile tile{shared.k, shared.v, first, segment.begin, end, source.is_packed(first)};
      fold<kPass>(rows, context, tile, segment.logits, [&] {
        if (kConvert && more)
          ptx::wait_copies<1>();
        else
          ptx::wait_copies<0>();
        __syncthreads();  // values are visible to all threads, and no thread reads the keys any more
        if (!kConvert && more) load_keys(first + kKeys, blocks);
        convert_values();
        patch(first);
      });
      if (!more) break;
    }
    __syncthreads();
    scale_values(rows, segment.v_scale);
  }

  /// Folds this step's rows beside an fp8 cache, which are 16-bit already, one tile at a time.
  template <Pass kPass>
  __device__ void run_fresh(Rows<kM, kDim>& rows, const RowContext& context) const {
    const Segment& segment = shared.segment;
    const bool blocks = source.by_blocks();
    const int begin = segment.begin / kKeys * kKeys;
#pragma unroll 1
    for (int first = begin;; first += kKeys) {
      __syncthreads();
      const int place = place_in_window(first, blocks);
      if (first == begin || place == 0) look_up(first - place, blocks);
      __syncthreads();
      load<2, kPitchBytes, true>(shared.k, first, blocks);
      load<2, kPitchBytes, false>(shared.v, first, blocks);
      ptx::commit_copies();
      ptx::wait_copies<0>();
      __syncthreads();
      fold<kPass>(rows, context, {shared.k, shared.v, first, segment.begin, segment.end}, segment.logits, [] {});
      if (segment.end - first <= kKeys) break;
    }
    __syncthreads();
  }

  template <Pass kPass, typename DrawNext>
  __device__ void fold_all(Rows<kM, kDim>& rows, DrawNext&& draw_next) const {
    const RowContext context = context_of<kWarpRows>(a, item, shared.score_rows, warp_row());
    const int segments = num_segments(a, kConvert);
    start_rows(rows);
#pragma unroll 1
    for (int i = 0; i < segments; ++i) {
      __syncthreads();
      if (threadIdx.x == 0) shared.segment = segment_of(a, item, i, kConvert);
      __syncthreads();
      run_segment<kPass>(rows, context, [&] {
        if (i == 0 && kPass != Pass::careful) draw_next();
      });
    }
    sum_over_columns(rows);
  }

  /// Calls draw_next() once.
  template <typename DrawNext>
  __device__ void run(DrawNext&& draw_next) {
    find_score_rows(shared.score_rows, a, item);
    __syncthreads();
    load_query();
    Rows<kM, kDim> rows;
    const bool plain = a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr;
    if (plain)
      fold_all<Pass::plain>(rows, draw_next);
    else
      fold_all<Pass::scored>(rows, draw_next);
    if (__syncthreads_or(!all_finite(rows))) fold_all<Pass::careful>(rows, draw_next);
    if (item.slice.num_parts == 1) {
      store_rows(rows);
      return count_rows(a, item);
    }
    store_part(rows);
    if (!is_last_part(a, item)) return;
    merge_parts<T>(a, item, kThreads / 32, [&](int part) { return partial_tile(a, item, part); });
    count_rows(a, item);
  }

  /// Calls store(m, h, index, state) for each row of this thread; `index`: of the row in the item.
  template <typename Store>
  __device__ void for_each_row(const Rows<kM, kDim>& rows, Store&& store) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int index = warp_row() + m * 16 + h * 8 + lane / 4;
        if (index < item.slice.row_end - item.slice.row_begin)
          store(m, h, index, natural_state<T>(rows.max[m][h], rows.sum[m][h]));
      }
  }

  /// Rows to the output: 16 bytes a thread through the memory of the warp's query rows, which no other warp reads, or pairs of
  /// dims.
  __device__ void store_rows(const Rows<kM, kDim>& rows) const {
    const int lane = threadIdx.x % 32;
    for_each_row(rows, [&](int m, int h, int index, const semantics::SoftmaxState& state) {
      const ScoreRow row = shared.score_rows[index];
      const OutputRow out = finish_row(a, item, row.query_row, row.head, state, lane % 4 == 0);
      const int dim = lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        const float x = rows.acc[m][i][2 * h], y = rows.acc[m][i][2 * h + 1];
        if (output_chunks)
          *reinterpret_cast<std::uint32_t*>(shared.query + in_tile<kDim>(index, i) + dim) =
              T::pack(x * out.factor, y * out.factor);
        else
          store_pair<T>(a, out, i * 8 + dim, x, y);
      }
    });
    if (output_chunks) store_chunks();
  }
  __device__ void store_chunks() const {
    constexpr int kChunks = kDim / 8, kRowsAtOnce = 32 / kChunks;
    const int lane = threadIdx.x % 32, chunk = lane % kChunks;
    const int end = min(warp_row() + kWarpRows, item.slice.row_end - item.slice.row_begin);
    __syncwarp();
    for (int index = warp_row() + lane / kChunks; index < end; index += kRowsAtOnce) {
      const ScoreRow row = shared.score_rows[index];
      const std::int64_t token = std::int64_t{item.lengths.first_token} + row.query_row;
      const std::int64_t at = a.output_strides.row(0, item.kv_head * a.group + row.head, token) + chunk * 8;
      *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(a.output) + at) =
          *reinterpret_cast<const uint4*>(shared.query + in_tile<kDim>(index, chunk));
    }
  }

  /// Rows to the workspace.
  __device__ void store_part(const Rows<kM, kDim>& rows) const {
    const int lane = threadIdx.x % 32;
    for_each_row(rows, [&](int m, int h, int index, const semantics::SoftmaxState& state) {
      const std::int64_t at = partial_tile(a, item, item.slice.part) * a.work.tile_rows + index;
      if (lane % 4 == 0) a.work.partial_states[at * 2] = state.max, a.work.partial_states[at * 2 + 1] = state.sum;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i)
        *reinterpret_cast<float2*>(a.work.partial_acc + at * kDim + i * 8 + lane % 4 * 2) =
            make_float2(rows.acc[m][i][2 * h], rows.acc[m][i][2 * h + 1]);
    });
  }
};

template <typename Body>
__global__ void __launch_bounds__(Body::kThreads, Body::kBlocks)
    attend_tall(const __grid_constant__ gpu::AttendArgs a, Access access) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Body::Shared*>(memory);
  for (Items items(a, shared.items); items.has_one(); items.advance())
    Body(a, shared, items.at_hand(), access).run([&] { items.draw_next(); });
}

}  // namespace quire::cuda::mma
