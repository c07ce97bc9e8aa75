// Prefill: tiles of 64 or 128 score rows. Four warps own 16 or 32 rows each and share tiles of keys in shared memory, loaded
// one tile ahead. Every row folds the keys in tiles that begin at multiples of kKeys, so its bits do not depend on its place.
#pragma once

#include "backend/cuda/mma/finish.h"
#include "backend/cuda/mma/fold_tile.h"
#include "backend/cuda/mma/segments.h"
#include "backend/cuda/mma/tile_source.h"

namespace quire::cuda::mma {

template <typename T, int kDim_, int kM_>
struct Tall {
  static constexpr int kDim = kDim_, kM = kM_;
  static constexpr int kThreads = 128;
  static constexpr int kRows = 64 * kM;
  static constexpr int kKeys = kDim == 256 ? 32 : 64;
  static constexpr int kChunks = kDim / 8;

  struct Shared {
    std::uint16_t query[kRows * kPitch<kDim>];
    std::uint16_t k[2][kKeys * kPitch<kDim>];
    std::uint16_t v[2][kKeys * kPitch<kDim>];
    RowAddress rows[2][kKeys];                                      ///< either these
    std::int64_t k_blocks[2][kKeys / 16], v_blocks[2][kKeys / 16];  ///< or element offsets of each 16 keys
    Item item;
    Segment segment;
  };

  const gpu::AttendArgs& a;
  Shared& shared;
  const Item& item;  ///< in shared memory, as registers are for accumulators
  TileSource source;
  bool careful = false;  ///< infinities and NaN among the values are kept from rows that do not see them

  __device__ Tall(const gpu::AttendArgs& args, Shared& memory, bool whole_chunks)
      : a(args),
        shared(memory),
        item(memory.item),
        source{args, memory.item, static_cast<int>(threadIdx.x) % kChunks, whole_chunks} {}

  __device__ void load_query() const {
    for (int r = threadIdx.x / kChunks; r < kRows; r += kThreads / kChunks) {
      const int row = item.slice.row_begin + r;
      const std::uint16_t* from = nullptr;
      if (row < item.slice.row_end)
        from = static_cast<const std::uint16_t*>(a.query.data) +
               a.query.strides.row(0, item.kv_head * a.group + row % a.group, item.lengths.first_token + row / a.group);
      std::uint16_t* to = shared.query + in_tile<kDim>(r, source.chunk);
      source.copy(to, from, a.query.strides);
    }
  }

  /// Looks up where tile rows lie, for load_tile() after the next barrier.
  struct Addresses {
    RowAddress row;
    std::int64_t k_block, v_block;
  };
  __device__ Addresses look_up(int first, bool blocks) const {
    Addresses found{};
    const Segment& segment = shared.segment;
    const int thread = threadIdx.x;
    if (!blocks && thread < kKeys) found.row = source.row(first + thread, segment.begin, segment.end);
    const int position = first + thread * 16;
    if (blocks && thread < kKeys / 16 && position + 15 >= segment.begin && position < segment.end) {
      const std::int64_t page = source.page(position), offset = position % a.page_size;
      found.k_block = a.cache_k.strides.row(page, item.kv_head, offset);
      found.v_block = a.cache_v.strides.row(page, item.kv_head, offset);
    }
    return found;
  }
  __device__ void publish(int stage, const Addresses& found, bool blocks) const {
    if (!blocks && threadIdx.x < kKeys) shared.rows[stage][threadIdx.x] = found.row;
    if (blocks && threadIdx.x < kKeys / 16)
      shared.k_blocks[stage][threadIdx.x] = found.k_block, shared.v_blocks[stage][threadIdx.x] = found.v_block;
  }

  __device__ void load_tile(int stage, int first, bool blocks) const {
    constexpr int kRowsPerPass = kThreads / kChunks;
    const int row = threadIdx.x / kChunks, chunk = source.chunk;
    if (!blocks) {
#pragma unroll 1
      for (int key = row; key < kKeys; key += kRowsPerPass) {
        const int at = in_tile<kDim>(key, chunk);
        source.copy_row(shared.k[stage] + at, shared.v[stage] + at, shared.rows[stage][key]);
      }
      return;
    }
    const Segment& segment = shared.segment;
    const int begin = segment.begin - first, end = segment.end - first;
    const auto load = [&](const gpu::RowSource& from, std::uint16_t* tile, const std::int64_t* blocks_of) {
      const auto* base = static_cast<const std::uint16_t*>(from.data) + chunk * 8;
#pragma unroll
      for (int i = 0; i < kKeys; i += kRowsPerPass) {
        const int key = i + row;
        const auto* at = base + blocks_of[key / 16] + key % 16 * from.strides.token;
        ptx::copy_async_16(tile + in_tile<kDim>(key, chunk), at, key >= begin && key < end ? 16 : 0);
      }
    };
    load(a.cache_k, shared.k[stage], shared.k_blocks[stage]);
    load(a.cache_v, shared.v[stage], shared.v_blocks[stage]);
  }

  __device__ void fold(Rows<kM, kDim>& rows, const RowContext& context, const KeyTile& tile, const Logits& logits) const {
    const bool seen = tile.first < context.span.any_end && tile.first + kKeys > context.span.any_begin;
    float s[kM][kKeys / 8][4];
    if (seen) {
      const QueryInShared<kDim> query{shared.query + threadIdx.x / 32 * 16 * kM * kPitch<kDim>};
      fold_scores<T, 2, kM, kDim, kKeys>(s, rows, context, query, tile, logits);
    }
    auto* v = static_cast<std::uint16_t*>(const_cast<void*>(tile.v));
    if (careful) {
      if (seen) add_non_finite<T, 2, kM, kDim, kKeys>(rows, context, tile);
      __syncthreads();
      zero_non_finite<T>(v, kKeys * kPitch<kDim>, threadIdx.x, kThreads);
      __syncthreads();
    }
    if (seen) multiply_values<T, 2, kM, kDim, kKeys>(s, rows, v);
  }

  /// Two stages: while one tile is folded the next arrives, and the row addresses of the one after it are looked up.
  __device__ void run_segment(Rows<kM, kDim>& rows, const RowContext& context) const {
    const Segment& segment = shared.segment;
    if (segment.begin >= segment.end) return;
    const int first = segment.begin / kKeys * kKeys;
    const int tiles = (segment.end - first + kKeys - 1) / kKeys;
    const bool blocks = source.by_blocks(segment.end);
    publish(0, look_up(first, blocks), blocks);
    publish(1, look_up(first + kKeys, blocks), blocks);
    __syncthreads();
    load_tile(0, first, blocks);
    ptx::commit_copies();
    for (int t = 0; t < tiles; ++t) {
      ptx::wait_copies<0>();
      __syncthreads();  // tile t is there for all; nobody reads the other stage any more
      if (t + 1 < tiles) load_tile((t + 1) % 2, first + (t + 1) * kKeys, blocks);
      ptx::commit_copies();
      const Addresses next = look_up(first + (t + 2) * kKeys, blocks);
      fold(rows, context, {shared.k[t % 2], shared.v[t % 2], first + t * kKeys, segment.begin, segment.end}, segment.logits);
      publish(t % 2, next, blocks);
    }
    __syncthreads();
    scale_values(rows, segment.v_scale);
  }

  __device__ void fold_all(Rows<kM, kDim>& rows) const {
    const int first = item.slice.row_begin + static_cast<int>(threadIdx.x) / 32 * 16 * kM;
    const RowContext context{a, item.lengths, item.kv_head,
                             row_span(a, item.lengths, first, min(first + 16 * kM, item.slice.row_end))};
    start_rows(rows);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      __syncthreads();
      if (threadIdx.x == 0) shared.segment = segment_of(a, item, i);
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
    merge_parts<T>(a, item);
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
        const semantics::SoftmaxState state = natural_state(rows.max[m][h], rows.sum[m][h]);
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

template <typename T, int kDim, int kM>
__global__ void __launch_bounds__(128, 2) attend_tall(const __grid_constant__ gpu::AttendArgs a, bool whole_chunks) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = Tall<T, kDim, kM>;
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  for (int i = draw_item(a); i >= 0; i = draw_item(a)) {
    if (threadIdx.x == 0) shared.item = item_at(a, i);
    __syncthreads();
    Kernel(a, shared, whole_chunks).run();
  }
}

}  // namespace quire::cuda::mma
