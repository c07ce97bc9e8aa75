// Decode: tiles of up to 8 score rows (query rows x group). The four warps of a block share the rows and part the keys: warp w
// folds every fourth tile through a pipeline of its own, so that no warp ever waits for another before the end.
#pragma once

#include "backend/cuda/mma/finish.h"
#include "backend/cuda/mma/fold_tile.h"
#include "backend/cuda/mma/segments.h"
#include "backend/cuda/mma/tile_source.h"

namespace quire::cuda::mma {

template <typename T, int kDim_>
struct Short {
  static constexpr int kDim = kDim_;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = 8;
  static constexpr int kKeys = kDim == 64 ? 32 : 16;
  static constexpr int kStages = 3;
  static constexpr int kChunks = kDim / 8;
  static constexpr int kRowsPerCopy = 32 / kChunks;

  struct Stage {
    std::uint16_t k[kKeys * kPitch<kDim>];
    std::uint16_t v[kKeys * kPitch<kDim>];
  };
  struct Results {
    float acc[kWarps][kRows][kDim];
    float max[kWarps][kRows], sum[kWarps][kRows];
  };
  struct Shared {
    union {
      Stage stages[kWarps][kStages];
      Results results;
    };
    Item items[2];  ///< the one at hand and the next
    Segment segment;
  };

  const gpu::AttendArgs& a;
  Shared& shared;
  const Item& item;
  TileSource source;
  bool careful = false;  ///< infinities and NaN among the values are kept from rows that do not see them

  __device__ Short(const gpu::AttendArgs& args, Shared& memory, const Item& work, bool whole_chunks)
      : a(args), shared(memory), item(work), source{args, work, static_cast<int>(threadIdx.x) % kChunks, whole_chunks} {}

  /// Straight from memory in the layout of the operand: rows 0-7, and the same again as rows 8-15.
  __device__ void load_query(QueryInRegisters<kDim>& query) const {
    const int lane = threadIdx.x % 32, row = item.slice.row_begin + lane / 4;
    const bool exists = row < item.slice.row_end;
    const auto& s = a.query.strides;
    const auto* from = static_cast<const std::uint16_t*>(a.query.data) +
                       (exists ? s.row(0, item.kv_head * a.group + row % a.group, item.lengths.first_token + row / a.group) : 0);
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

  /// Page of each block of 16 keys of a tile: lane b holds that of block b. Only where such blocks never straddle pages.
  __device__ std::int64_t page_of_block(int tile, const Segment& segment) const {
    const int lane = threadIdx.x % 32, position = tile * kKeys + lane * 16;
    const bool read = lane < kKeys / 16 && position + 15 >= segment.begin && position < segment.end;
    return read ? source.page(position) : 0;
  }

  __device__ void load_by_blocks(Stage& stage, int tile, std::int64_t pages, const Segment& segment) const {
    const int lane = threadIdx.x % 32, chunk = source.chunk;
#pragma unroll
    for (int block = 0; block < kKeys / 16; ++block) {
      const std::int64_t page = __shfl_sync(~0u, pages, block);
      const int first = tile * kKeys + block * 16 + lane / kChunks, offset = first % a.page_size;
      const auto* k =
          static_cast<const std::uint16_t*>(a.cache_k.data) + a.cache_k.strides.row(page, item.kv_head, offset) + chunk * 8;
      const auto* v =
          static_cast<const std::uint16_t*>(a.cache_v.data) + a.cache_v.strides.row(page, item.kv_head, offset) + chunk * 8;
#pragma unroll
      for (int i = 0; i < 16; i += kRowsPerCopy) {
        const int row = block * 16 + i + lane / kChunks;
        const int bytes = first + i >= segment.begin && first + i < segment.end ? 16 : 0;
        ptx::copy_async_16(stage.k + in_tile<kDim>(row, chunk), k + i * a.cache_k.strides.token, bytes);
        ptx::copy_async_16(stage.v + in_tile<kDim>(row, chunk), v + i * a.cache_v.strides.token, bytes);
      }
    }
  }

  /// Any page size, any source: lane l works out the address of row l.
  __device__ void load_by_rows(Stage& stage, int tile, const Segment& segment) const {
    const int lane = threadIdx.x % 32;
    RowAddress mine;
    if (lane < kKeys) mine = source.row(tile * kKeys + lane, segment.begin, segment.end);
#pragma unroll 1
    for (int i = 0; i < kKeys; i += kRowsPerCopy) {
      const int key = i + lane / kChunks;
      RowAddress row;
      row.k = from_lane(mine.k, key), row.v = from_lane(mine.v, key);
      row.fresh = __shfl_sync(~0u, mine.fresh, key);
      const int at = in_tile<kDim>(key, source.chunk);
      source.copy_row(stage.k + at, stage.v + at, row);
    }
  }
  __device__ static const std::uint16_t* from_lane(const std::uint16_t* p, int lane) {
    return reinterpret_cast<const std::uint16_t*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(p), lane));
  }

  __device__ void fold(Rows<1, kDim>& rows, const RowContext& context, const QueryInRegisters<kDim>& query, Stage& stage,
                       int tile, const Segment& segment) const {
    const KeyTile keys{stage.k, stage.v, tile * kKeys, segment.begin, segment.end};
    float s[1][kKeys / 8][4];
    fold_scores<T, 1, 1, kDim, kKeys>(s, rows, context, query, keys, segment.logits);
    if (careful) {
      add_non_finite<T, 1, 1, kDim, kKeys>(rows, context, keys);
      __syncwarp();
      zero_non_finite<T>(stage.v, kKeys * kPitch<kDim>, threadIdx.x % 32, 32);
      __syncwarp();
    }
    multiply_values<T, 1, 1, kDim, kKeys>(s, rows, stage.v);
  }

  /// Which tile goes to which warp depends on its position alone.
  __device__ void run_segment(Rows<1, kDim>& rows, const RowContext& context, const QueryInRegisters<kDim>& query) const {
    const Segment segment = shared.segment;
    if (segment.begin >= segment.end) return;
    const int warp = threadIdx.x / 32, begin = segment.begin / kKeys, end = (segment.end + kKeys - 1) / kKeys;
    const int first = begin + ((warp - begin) % kWarps + kWarps) % kWarps;
    const bool blocks = source.by_blocks(segment.end);
    Stage* stages = shared.stages[warp];
    const auto load = [&](int stage, int tile, std::int64_t pages) {
      if (tile < end && blocks) load_by_blocks(stages[stage], tile, pages, segment);
      if (tile < end && !blocks) load_by_rows(stages[stage], tile, segment);
      ptx::commit_copies();
    };
    const auto pages_of = [&](int tile) { return blocks && tile < end ? page_of_block(tile, segment) : 0; };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) load(i, first + i * kWarps, pages_of(first + i * kWarps));
    std::int64_t next = pages_of(first + (kStages - 1) * kWarps);
    int stage = 0;
    for (int tile = first; tile < end; tile += kWarps) {
      ptx::wait_copies<kStages - 2>();
      __syncwarp();  // the tile is there for the warp, and the stage of the tile before it is free
      const int ahead = tile + (kStages - 1) * kWarps;
      load(stage == 0 ? kStages - 1 : stage - 1, ahead, next);
      next = pages_of(ahead + kWarps);
      fold(rows, context, query, stages[stage], tile, segment);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    ptx::wait_copies<0>();
    __syncwarp();
    scale_values(rows, segment.v_scale);
  }

  __device__ void fold_all(Rows<1, kDim>& rows, const QueryInRegisters<kDim>& query) const {
    const RowContext context{a, item.lengths, item.kv_head, row_span(a, item.lengths, item.slice.row_begin, item.slice.row_end)};
    start_rows(rows);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      __syncthreads();
      if (threadIdx.x == 0) shared.segment = segment_of(a, item, i);
      __syncthreads();
      run_segment(rows, context, query);
    }
    sum_over_columns(rows);
  }

  __device__ void run() {
    QueryInRegisters<kDim> query;
    load_query(query);
    Rows<1, kDim> rows;
#pragma unroll 1
    for (bool again = true; again; careful = true) {
      fold_all(rows, query);
      again = __syncthreads_or(!all_finite(rows)) && !careful;
    }
    publish(rows);  // results take the memory of the stages
    __syncthreads();
    combine_warps();
    if (item.slice.num_parts > 1) {
      if (!is_last_part(a, item)) return;
      merge_parts<T>(a, item);
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
      for (int w = 0; w < kWarps; ++w) state = semantics::combine(state, natural_state(from.max[w][r], from.sum[w][r])).state;
      float weight[kWarps];
      for (int w = 0; w < kWarps; ++w) {
        const semantics::SoftmaxState part = natural_state(from.max[w][r], from.sum[w][r]);
        weight[w] = part.max == -INFINITY ? 0.0f : expf(part.max - state.max);
      }
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

template <typename T, int kDim>
__global__ void __launch_bounds__(128, kDim == 256 ? 1 : 2)
    attend_short(const __grid_constant__ gpu::AttendArgs a, bool whole_chunks) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = Short<T, kDim>;
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  __shared__ bool more[2];
  const int num_items = *a.work.num_slices * a.num_kv_heads;
  const auto draw = [&](int slot) {
    const int index = atomicAdd(a.work.next_item, 1);
    more[slot] = index < num_items;
    if (more[slot]) shared.items[slot] = item_at(a, index);
  };
  if (threadIdx.x == 0) draw(0);
  __syncthreads();
  for (int slot = 0; more[slot]; slot ^= 1) {
    if (threadIdx.x == 96) draw(slot ^ 1);  // while the item at hand is worked on
    Kernel(a, shared, shared.items[slot], whole_chunks).run();
    __syncthreads();
  }
}

}  // namespace quire::cuda::mma
