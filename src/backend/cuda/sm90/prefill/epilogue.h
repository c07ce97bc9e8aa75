// SPDX-License-Identifier: Apache-2.0
// The end of a prefill job: its rows to the output or its partial results to the workspace, and the merge by the block that
// completes the last part.
//
// Rows go through the memory of the job's own query rows. Where all 16 rows of a warp exist and the output suits tensor copies,
// they are copied from there as a box, and no thread waits until they are written. Other rows (the last rows of a chunk, groups
// that do not fill 16 rows, rows that are computed again) go by ordinary writes.
#pragma once

#include "backend/cuda/sm90/prefill/exact_rows.h"
#include "backend/cuda/sm90/prefill/merge_few.h"
#include "backend/cuda/sm90/prefill/rows.h"
#include "backend/cuda/sm90/prefill/softmax.h"

namespace quire::cuda::sm90::prefill {

/// T: type of query, output and this step's rows.
template <typename T, typename Memory>
struct Epilogue {
  using Online = Softmax<T, Memory>;
  using State = typename Online::State;
  using Job = typename Memory::Job;
  using Query = typename Memory::Query;
  static constexpr int kOutDim = Memory::kOutDim, kHalves = Memory::kOutHalves, kRowBytes = Memory::kRowBytes;

  const Block<Memory> block;

  __device__ static void sync_consumers() { hopper::named_barrier<kConsumersBarrier, Memory::kConsumerThreads>(); }

  /// Bits of the warp's 16 rows whose sums are infinite or NaN: bit r, of rows that exist.
  __device__ static std::uint32_t not_finite(const State& state, const Rows& w) {
    std::uint32_t rows = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float zero[2] = {state.sum[h] * 0.0f, 0.0f};  // x * 0 is NaN for every such x
#pragma unroll
      for (int i = 0; i < kOutDim / 4; ++i) zero[i % 2] = fmaf(state.out[i / 2 * 4 + 2 * h + i % 2], 0.0f, zero[i % 2]);
      const bool bad = w.first + Lane::row_in_group() + 8 * h < w.end && zero[0] + zero[1] != 0.0f;
      const std::uint32_t lanes = __ballot_sync(~0u, bad);
      if (lanes == 0) continue;
#pragma unroll
      for (int r = 0; r < 8; ++r) rows |= (lanes >> 4 * r & 15u) != 0 ? 1u << (r + 8 * h) : 0u;
    }
    return rows;
  }

  /// In natural units. A NaN sum marks a NaN score, which a maximum passes over.
  __device__ static semantics::SoftmaxState natural_state(const State& state, int h) {
    const float sum = state.sum[h];
    return {sum != sum ? sum : (state.max[h] - Online::kShift) * tile::kLn2, sum};
  }

  /// Partial results of this item's rows: index of the row that is row 0 of the tile.
  __device__ std::int64_t partial_row(const tile::Item& item) const {
    return tile::partial_tile(block.a, item, item.slice.part) * block.a.work.tile_rows;
  }

  __device__ void store_partial(const State& state, const tile::Item& item, const Rows& w, float scale) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.first + Lane::row_in_group() + 8 * h;
      if (row >= w.end) continue;
      const std::int64_t at = partial_row(item) + row - item.slice.row_begin;
      const auto [stored, factor] = partial_of<Memory::kSplitsValues>(natural_state(state, h));
      if (block.in_one_block(threadIdx.x % 4 == 0))
        *reinterpret_cast<float2*>(block.a.work.partial_states + at * 2) = make_float2(stored.max, stored.sum);
      const std::int64_t first = at * Memory::kValueDim + block.first_out_dim();
      const float by = scale * factor;
#pragma unroll
      for (int i = 0; i < kOutDim / 8; ++i)
        *reinterpret_cast<float2*>(block.a.work.partial_acc + first + i * 8 + Lane::column()) =
            make_float2(state.out[4 * i + 2 * h] * by, state.out[4 * i + 2 * h + 1] * by);
    }
  }

  /// The factors of the rows' sums; the lse of the rows is written.
  template <tile::Output kOutput>
  __device__ void finish_rows(float (&factor)[2], const State& state, const Job& job, const Rows& w) const {
    const float scale = job.out_scale;
    if (kOutput == tile::Output::own && block.a.sinks.data == nullptr && block.a.lse == nullptr) {  // sums decide alone
#pragma unroll
      for (int h = 0; h < 2; ++h) factor[h] = state.sum[h] == 0.0f ? 0.0f : ptx::reciprocal_approx(state.sum[h]) * scale;
      return;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.first + Lane::row_in_group() + 8 * h;
      factor[h] = 0.0f;
      if (row < w.end)
        factor[h] =
            tile::finish_row<kOutput>(block.a, job.item, row, natural_state(state, h), block.in_one_block(threadIdx.x % 4 == 0))
                .factor *
            scale;
    }
  }

  /// 16 bytes of staged output rows, swizzled as tensor copies have it.
  __device__ static unsigned char* staged(Query& staging, int row, int chunk) {
    return staging.halves[chunk / 8] + row * kRowBytes + (chunk % 8 ^ row % 8) * 16;
  }

  /// The warp's rows, from `row_of_warp` of the block's on. Element: of the output.
  template <typename Element>
  __device__ static void stage(Query& staging, int row_of_warp, const State& state, const float (&factor)[2]) {
    int lane = threadIdx.x % 32;
    hopper::compute_here(lane);
    const std::uint32_t at = ptx::shared_address(staged(staging, row_of_warp + lane % 16, lane / 16));
#pragma unroll
    for (int j = 0; j < kOutDim / 16; ++j) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int i = 4 * (2 * j + m / 2) + 2 * (m % 2);
        pairs[m] = Element::pack(state.out[i] * factor[m % 2], state.out[i + 1] * factor[m % 2]);
      }
      hopper::store_matrices((at ^ j % 4 * 32) + j / 4 * static_cast<int>(sizeof(staging.halves[0])), pairs);
    }
  }

  /// Stages the warp's rows as codes.
  __device__ static void stage_codes(Query& staging, int row_of_warp, const State& state, const float (&factor)[2]) {
    int lane = threadIdx.x % 32;
    hopper::compute_here(lane);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < kOutDim / 8; ++i) {
        const float* const dims = state.out + 4 * i + 2 * h;
        unsigned char* const chunk = staged(staging, row_of_warp + lane / 4 + 8 * h, i / 2);
        *reinterpret_cast<std::uint16_t*>(chunk + i % 2 * 8 + lane % 4 * 2) =
            tile::pack_codes(dims[0] * factor[h], dims[1] * factor[h]);
      }
  }

  /// The warp reads and writes nothing of the slot any more; copies may.
  __device__ void give_back(int slot) const {
    hopper::fence_shared();
    __syncwarp();
    free_in_block(block.shared.job_free[slot]);
  }

  /// Staged rows, all 16. The slot is to be given back when they have been read.
  __device__ void write_box(Query& staging, int row_of_warp, const Place& place) const {
    hopper::fence_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        hopper::write_box(&block.maps.output, block.first_out_dim() + half * 64, place.head, place.token, 0,
                          staging.halves[half] + row_of_warp * kRowBytes);
      hopper::commit_writes();
    }
    __syncwarp();
  }
  /// The slot whose rows write_box() wrote last.
  __device__ void give_back_written(int slot) const {
    if (threadIdx.x % 32 == 0) {
      hopper::await_reads_of_writes();
      hopper::arrive(&block.shared.job_free[slot]);
    }
    __syncwarp();
  }

  /// Chunk `chunk` of the output row at `offset`, where rows cannot be written 16 bytes at a time.
  __device__ void write_singly(std::int64_t offset, int chunk, const uint4& words) const {
    auto* const row = static_cast<std::uint16_t*>(block.a.output) + offset + block.first_out_dim() * block.a.output_strides.dim;
    const std::uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      row[(chunk * 8 + i) * block.a.output_strides.dim] = static_cast<std::uint16_t>(pairs[i / 2] >> i % 2 * 16);
  }

  /// Staged rows by ordinary writes, those that exist. The slot is given back before they are written, as the fence waits for all
  /// writes on their way.
  __device__ void write_rows(Query& staging, int row_of_warp, const Job& job, const Rows& w, int slot) const {
    constexpr std::int64_t kNowhere = INT64_MIN;
    constexpr int kChunks = kOutDim / 8, kTurns = kChunks / 2;
    int lane = threadIdx.x % 32;
    hopper::compute_here(lane);
    const int row = w.first + Lane::warp_in_group() * 16 + lane % 16;
    const Place place = block.place_of(job, min(row, w.end - 1) - job.item.slice.row_begin);
    const std::int64_t offset = row < w.end ? block.a.output_strides.row(0, place.head, place.token) : kNowhere;
    __syncwarp();
    uint4 words[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int at = lane + 32 * i;
      words[i] = *reinterpret_cast<const uint4*>(staged(staging, row_of_warp + at / kChunks, at % kChunks));
    }
    give_back(slot);
    const auto write = [&](auto&& write_chunk) {
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const int r = (lane + 32 * i) / kChunks, chunk = (lane + 32 * i) % kChunks;
        const std::int64_t to = __shfl_sync(~0u, offset, r);
        if (to != kNowhere) write_chunk(to, chunk, words[i]);
      }
    };
    if (block.maps.output_chunks)  // asked once: code for the rest between these writes would cost more than they do
      write([&](std::int64_t to, int chunk, const uint4& x) {
        *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(block.a.output) + to + block.first_out_dim() + chunk * 8) = x;
      });
    else
      write([&](std::int64_t to, int chunk, const uint4& x) { write_singly(to, chunk, x); });
  }

  /// Staged rows of codes, those that exist. In few instructions: all of them stand beside the loop over tiles.
  __device__ void write_codes(Query& staging, int row_of_warp, const Job& job, const Rows& w) const {
    constexpr int kChunks = kOutDim / 16;
    const int first = w.first + Lane::warp_in_group() * 16;
    __syncwarp();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < 16 * kChunks && first + i / kChunks < w.end; i += 32) {
      const Place place = block.place_of(job, first + i / kChunks - job.item.slice.row_begin);
      const unsigned char* const codes = staged(staging, row_of_warp + i / kChunks, i % kChunks);
      const std::int64_t dim = block.a.output_strides.dim;
      auto* const to = static_cast<unsigned char*>(block.a.output) + block.a.output_strides.row(0, place.head, place.token) +
                       (block.first_out_dim() + i % kChunks * 16) * (block.maps.output_chunks ? 1 : dim);
      if (block.maps.output_chunks) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(codes);
      } else {
#pragma unroll 1
        for (int d = 0; d < 16; ++d) to[d * dim] = codes[d];
      }
    }
  }

  /// Finished rows as codes.
  __device__ void store_codes(const State& state, const Job& job, const Rows& w, int slot) const {
    Query& staging = block.shared.query[slot % Memory::kQueries];
    const int row_of_warp = Lane::group() * 64 + Lane::warp_in_group() * 16;
    float factor[2];
    finish_rows<tile::Output::any>(factor, state, job, w);
    stage_codes(staging, row_of_warp, state, factor);
    write_codes(staging, row_of_warp, job, w);
    give_back(slot);
  }

  /// Finished rows. `alone`: they are not written again. True if the slot is not given back: its memory is being read.
  __device__ bool store_rows(const State& state, const Job& job, const Rows& w, int slot, bool alone) const {
    Query& staging = block.shared.query[slot % Memory::kQueries];
    const int row_of_warp = Lane::group() * 64 + Lane::warp_in_group() * 16, first = w.first + Lane::warp_in_group() * 16;
    float factor[2];
    finish_rows<tile::Output::own>(factor, state, job, w);
    hopper::settle(factor);  // without it, the compiler emits products for a factor of 0 and for others
    if (Memory::kCodes && T::kDType == DType::f16 && block.a.output_dtype == DType::bf16)  // the query has codes
      stage<tile::Bf16>(staging, row_of_warp, state, factor);
    else
      stage<T>(staging, row_of_warp, state, factor);
    const bool boxes = block.maps.output_boxes && alone && first + 16 <= w.end;
    if (boxes)
      write_box(staging, row_of_warp, block.place_of(job, first - job.item.slice.row_begin));
    else
      write_rows(staging, row_of_warp, job, w, slot);
    return boxes;
  }

  /// Rows of the warp, key by key.
  __device__ void store_exact(const tile::Item& item, const Rows& w, std::uint32_t rows) const {
    const int first_of_warp = w.first + Lane::warp_in_group() * 16;
    const std::int64_t first = item.slice.num_parts > 1 ? partial_row(item) - item.slice.row_begin : 0;
#pragma unroll 1
    for (; rows != 0; rows &= rows - 1) {
      const int row = first_of_warp + __ffs(static_cast<int>(rows)) - 1;
      store_exact_row<T>(block, item, row, first + row);
    }
  }

  __device__ bool store(State& state, const Job& job, const tile::Item& item, const Rows& w, int slot) const {
    bool reads = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 1);
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 2);
    }
    const std::uint32_t again = not_finite(state, w);
    if (item.slice.num_parts > 1) {
      const float scale = job.out_scale;
      give_back(slot);
      store_partial(state, item, w, scale);
    } else if (tile::writes_codes(block.a)) {
      store_codes(state, job, w, slot);
    } else {
      reads = store_rows(state, job, w, slot, again == 0);
    }
    if (again != 0) {
      __syncwarp();  // stores of other lanes to these rows come first
      store_exact(item, w, again);
    }
    return reads;
  }

  /// True in every consumer thread of the block that completes the last part of the tile, both blocks' rows.
  __device__ bool is_last_part(const tile::Item& item) const {
    sync_consumers();
    if (threadIdx.x == 0) {
      __threadfence();
      block.shared.last = gpu::count_part(block.a.work.parts_done + item.slice.merge * block.a.num_kv_heads + item.kv_head,
                                          kPair * item.slice.num_parts);
      __threadfence();
    }
    sync_consumers();
    return block.shared.last != 0;
  }

  __device__ void finish(tile::Item item) const {
    if (item.slice.num_parts > 1) {
      if (!is_last_part(item)) return;
      const auto place = [&](int part) { return tile::partial_tile(block.a, item, part); };
      constexpr int kWarps = Memory::kConsumerThreads / 32;
      if constexpr (!Memory::kCodes && !Memory::kPacked) {  // the others have no registers to spare
        if (item.slice.num_parts <= kFewParts)
          merge_few_parts<T, Memory::kValueDim>(block.a, item, kWarps, place);
        else
          tile::merge_parts<T>(block.a, item, kWarps, place);
      } else {
        tile::merge_parts<T>(block.a, item, kWarps, place);
      }
    } else {
      if (!block.in_one_block(true)) return;
      item.slice.row_begin += block.place_of_rows() * block.block_rows();
      item.slice.row_end = min(item.slice.row_end, item.slice.row_begin + block.block_rows());
    }
    if (item.slice.row_begin < item.slice.row_end) tile::count_rows(block.a, item);
  }

  /// Stores the results of the job in `slot`, when all of its products are done, and gives the slot back; true if the caller
  /// gives it back by give_back_written().
  __device__ bool close(State& state, int slot) const {
    const Job& job = block.shared.jobs[slot];
    const tile::Item item = job.item;
    const Rows rows = block.rows_of(item.slice);
    bool reads = false;
    if (rows.first < rows.end)
      reads = store(state, job, item, rows, slot);
    else
      give_back(slot);
    finish(item);
    return reads;
  }
};

}  // namespace quire::cuda::sm90::prefill
