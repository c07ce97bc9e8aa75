// SPDX-License-Identifier: Apache-2.0
// The end of a piece of decode: rows of a whole segment to the output, or a partial result to the workspace. The block that
// completes the last part of a segment merges its parts (split-KV; Flash-Decoding, Dao et al. 2023).
#pragma once

#include <type_traits>

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/decode/merge_parts.h"
#include "backend/cuda/sm90/decode/merge_staged.h"
#include "backend/cuda/sm90/decode/softmax.h"
#include "backend/cuda/sm90/decode/uncached_rows.h"
#include "backend/cuda/sm90/decode/warpgroup.h"
#include "backend/cuda/tile/finish.h"

namespace quire::cuda::sm90::decode {

/// T: type of query, output and this step's rows.
template <typename T, typename Memory>
struct Epilogue {
  using Tiles = typename Memory::Tiles;
  using Weight = typename Tiles::Weight;
  using Online = Softmax<Memory>;
  using State = typename Online::State;
  using Me = Lane<Tiles>;
  static constexpr int kDim = Memory::kDim, kHalves = Memory::kHalves, kRows = Memory::kRows, kColumns = Online::kColumns;

  const HopperArgs& args;
  typename Memory::Shared& shared;
  const Warpgroup<Memory>& group;
  const gpu::AttendArgs& a = args.common;

  // --- partial results ---

  /// Index of this warpgroup's memory for the end of a piece: the first warpgroup ends pieces, or each ends its own rows.
  __device__ int end_index() const { return Memory::kByRows ? group.index : 0; }
  /// Rows of a partial result, and this warpgroup's first row among those of all partial results.
  __device__ int partial_rows() const { return Memory::kSlices ? a.work.tile_rows : kRows; }
  __device__ std::int64_t rows_before(const Job& job) const {
    return static_cast<std::int64_t>(job.parts.partial(job.parts.part)) * partial_rows() + group.first_row(job) -
           job.item.slice.row_begin;
  }

  /// Accumulators to this part's partial result in the workspace, straight from registers: eight lanes fill 32 bytes.
  __device__ void keep_values(const State& state, const Job& job) const {
    const Me me;
    const std::int64_t first = rows_before(job);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (me.column(q) >= group.num_rows(job)) continue;
      float* const row = a.work.partial_acc + (first + me.column(q)) * kDim;
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 2; ++j) row[me.dim(half, j)] = state.out[half][q / 2 * 4 + j * 2 + q % 2];
    }
  }

  /// Maximum and sum of this piece's rows, once all warps have published their sums.
  __device__ void keep_states(const State& state, float2* to) const {
    const Me me;
    const auto& sums = shared.sums[end_index()];
    if (group.thread() >= 4) return;
#pragma unroll
    for (int q = 0; q < kColumns; q += 2)
      *reinterpret_cast<float4*>(to + me.column(q)) =
          make_float4(state.max[q], Online::sum_of(sums, me.column(q)), state.max[q + 1], Online::sum_of(sums, me.column(q + 1)));
  }

  /// True if prepare found no broken rule. A launch that does not overlap another waits for prepare here (launch_order.h).
  /// Reading the flag takes a round trip to memory, so callers read it before work that does not need it. Partial results may be
  /// written without the flag: no block reads a partial result before its part is counted, and is_last_part() reads the flag
  /// when it counts.
  __device__ bool is_sound() const {
    if (args.turn != Turn::beside) wait_for_dependencies();
    return !gpu::is_refused(a);
  }

  /// True in every thread of the warpgroup that completes the last part of the segment, if it may be written. One thread's fence
  /// stands for all: the barriers make it cumulative (PTX ISA, "Memory Consistency Model", causality order).
  __device__ bool is_last_part(const Job& job) const {
    int& last = shared.last[end_index()];
    const int of_rows =
        group.by_rows(job) && group.index > 0 ? static_cast<int>(gridDim.x) : 0;  // a counter a block for these rows
    __syncwarp();
    if (group.thread() == 0) {
      const bool sound = is_sound();
      hopper::fence_device();
      const int last_part = job.parts.count - 1;
      last = hopper::count(a.work.parts_done + job.parts.counter + of_rows, last_part) == last_part && sound;
    }
    group.sync();
    return last != 0;
  }

  // --- rows of the output ---

  /// Place and factor of a score row with this state; its lse is written.
  template <tile::Output kOutput>
  __device__ tile::OutputRow end_of_row(const tile::Item& item, int score_row, const float2& state, bool writes_lse) const {
    const int query_row = group.query_row(score_row);
    return tile::finish_row<kOutput>(a, item, query_row, score_row - query_row * a.group,
                                     tile::natural_state<Weight>(state.x, state.y), writes_lse);
  }
  template <tile::Output kOutput>
  __device__ void end_rows(const Job& job) const {
    group.sync();  // states of all warps are visible
    const int row = group.thread();
    if (row < group.num_rows(job)) {
      const tile::OutputRow end =
          end_of_row<kOutput>(job.item, group.first_row(job) + row, shared.states[end_index()][row], true);
      shared.ends[end_index()][row] = {end.offset, end.factor};
    }
    group.sync();
  }
  __device__ tile::OutputRow end_of(int row) const {
    const typename Memory::RowEnd& end = shared.ends[end_index()][row];
    return {end.offset, end.factor};
  }

  /// Calls write(types of output that it writes). Wide tiles have one piece of code for all types.
  template <typename Write>
  __device__ void with_output(Write&& write) const {
    if (!Memory::kSlices && tile::is_own_output<T>(a))
      write(std::integral_constant<tile::Output, tile::Output::own>{});
    else
      write(std::integral_constant<tile::Output, tile::Output::any>{});
  }

  /// Rows of a segment that one piece holds.
  template <tile::Output kOutput>
  __device__ void write_rows(const State& state, const Job& job) const {
    const Me me;
    keep_states(state, shared.states[end_index()]);
    end_rows<kOutput>(job);
    const bool words = Tiles::kDimsInPairs && a.output_pairs;
    const std::int64_t stride = a.output_strides.dim;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (me.column(q) >= group.num_rows(job)) continue;
      const tile::OutputRow to = end_of(me.column(q));
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float x = state.out[half][q / 2 * 4 + q % 2], y = state.out[half][q / 2 * 4 + 2 + q % 2];
        const int dim = me.dim(half, 0);
        tile::store_pair<T, kOutput>(a, to.offset + (words ? dim : dim * stride), (me.dim(half, 1) - dim) * stride, words,
                                     x * to.factor, y * to.factor);
      }
    }
  }

  // --- merging ---

  /// Rows of a segment from its parts.
  __device__ void merge_rows(const Job& job) const {
    static_assert(sizeof(shared.weights[0]) >= sizeof(float2[128]));
    const MergeParts<T, kDim, kRows, Tiles::kPartsAtOnce> merge{a,
                                                                group.num_rows(job),
                                                                partial_rows(),
                                                                group.first_row(job) - job.item.slice.row_begin,
                                                                job.parts,
                                                                reinterpret_cast<float2*>(shared.weights[group.index])};
#pragma unroll 1
    for (int chunk = 0; chunk < merge.chunks(); ++chunk) {
      float2 state;
      const float4 total = merge.fold(chunk, state);
      const int row = merge.row_of(chunk);
      const bool exists = row < merge.rows;
      const tile::OutputRow end =
          end_of_row<tile::Output::any>(job.item, group.first_row(job) + (exists ? row : 0), state, exists && merge.dim() == 0);
      if (exists) merge.store(total, end);
    }
  }

  /// Segments that this block completed, when its share is done: the memory of tiles is free, and no piece waits behind them.
  template <tile::Output kOutput>
  __device__ void merge_last(int count) const {
    using Merge = StagedMerge<kDim, kRows, sizeof(shared.k) + sizeof(shared.v)>;
    static_assert(sizeof(typename Merge::Weights) <= sizeof(shared.weights[0]));
    group.sync();  // unmerged segments are written, and tiles are used up
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const auto& w = shared.unmerged[i];
      const Merge merge(a, w.rows, w.parts, reinterpret_cast<typename Merge::Slot*>(shared.k),
                        reinterpret_cast<typename Merge::Weights&>(shared.weights[0]));
      merge.run([&](const typename Merge::Row& row, int number) {
        const bool exists = number < w.rows;
        const tile::OutputRow end =
            end_of_row<kOutput>(w.item, exists ? number : 0, {row.max, row.sum}, exists && merge.dim() == 0);
        if (!exists) return;
        tile::store_pair<T, kOutput>(a, end, merge.dim(), row.total.x, row.total.y);
        tile::store_pair<T, kOutput>(a, end, merge.dim() + 2, row.total.z, row.total.w);
      });
    }
  }

  // --- a piece ---

  /// Ends a piece whose keys, or whose rows of this warpgroup, are all in the state.
  __device__ void finish(State& state, const Job& job, int& unmerged) const {
    const float v_scale = a.v_scale.at(job.item.kv_head, 1.0f);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) state.out[half][i] *= v_scale;
    if constexpr (Memory::kHeads == 1) {  // tiles of two heads have no scales, so rows of this step are in tiles
      if (!job.uncached_in_tiles && job.item.lengths.cached_len < job.span.any_end) [[unlikely]]
        UncachedRows<T, Memory>{a, shared, group}.fold(state, job);
    }
    const bool split = job.parts.count > 1, sound = split || is_sound();
    Online::publish_sums(state, shared.sums[end_index()]);
    if (split) keep_values(state, job);
    group.sync();  // sums of all warps are visible
    if (!sound) return;
    if (!split) {
      with_output([&](auto output) { write_rows<output()>(state, job); });
    } else {
      keep_states(state, reinterpret_cast<float2*>(a.work.partial_states) + rows_before(job));
      if (!is_last_part(job)) return;
      if constexpr (Memory::kMergesLast) {
        if (group.thread() == 0) shared.unmerged[unmerged] = {job.item, job.parts, group.num_rows(job)};
        ++unmerged;
      } else {
        merge_rows(job);
      }
    }
    if (group.thread() == 0) atomicAdd(&a.outcome->rows_written, static_cast<unsigned long long>(group.num_rows(job)));
  }
};

}  // namespace quire::cuda::sm90::decode
