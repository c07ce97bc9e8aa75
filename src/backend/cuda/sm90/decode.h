// SPDX-License-Identifier: Apache-2.0
// Decode on Hopper: slices of score rows (query rows x group) of one request and KV head against its keys, 64 at a time.
//
// Roles: decode_memory.h. A warpgroup multiplies by wgmma with keys and dims as the 64 rows of the matrix unit and score rows as
// its columns ("swap-AB"), so that 8 rows waste nothing:
//
//     S^T [64 keys x kRows]       = K [64 x d] Q^T [d x kRows]
//     O^T [64 dims x 2 kRows] (x2) += V^T [64 x 64 keys] P^T [64 keys x 2 kRows]
//
// where the first half of the columns of P^T are the high parts of the weights and the second the low ones. plain_tiles.h and
// fp8_tiles.h say where K and V^T come from.
//
// Weights enter in two 16-bit parts as in cuda_mma. Work: shares.h. 0 x NaN reaches nobody: decode_tiles.h. (Rows of visible
// pages that no row sees are copied and not used; no other memory of the cache is read.)
#pragma once

#include <type_traits>

#include "backend/cuda/mma/finish.h"
#include "backend/cuda/sm90/decode_copy.h"
#include "backend/cuda/sm90/decode_tiles.h"
#include "backend/cuda/sm90/merge_segment.h"
#include "backend/cuda/sm90/merge_staged.h"
#include "backend/cuda/sm90/turns.h"
#include "backend/gpu/break_call.h"

namespace quire::cuda::sm90 {

/// What a warpgroup does: pieces, one after the other.
template <typename T, typename Memory>
struct DecodeWork : DecodeTiles<T, Memory> {
  using Fold = DecodeTiles<T, Memory>;
  using Fold::a;
  using Fold::add_value;
  using Fold::base_of;
  using Fold::exact_weights;
  using Fold::first_row;
  using Fold::fold_tile;
  using Fold::fresh_row;
  using Fold::group;
  using Fold::kColumns;
  using Fold::kDim;
  using Fold::kGroups;
  using Fold::kHalves;
  using Fold::kRows;
  using Fold::load_query;
  using Fold::num_rows;
  using Fold::refer_to;
  using Fold::shared;
  using Fold::sync_group;
  using Fold::weight_of;
  using typename Fold::Place;
  using typename Fold::Ring;
  using typename Fold::State;
  using typename Fold::Tiles;
  using typename Fold::Weight;

  // --- the end of a piece: by the first warpgroup, or by each for its rows ---

  __device__ bool by_rows(const DecodeJob& w) const { return Memory::kByRows && w.by_rows; }
  __device__ int end_index() const { return Memory::kByRows ? group : 0; }
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % 128; }
  /// Rows of a partial result's place, and this warpgroup's first among all places.
  __device__ int place_rows() const { return Memory::kSlices ? a.work.tile_rows : kRows; }
  __device__ std::int64_t rows_before(const DecodeJob& w) const {
    return static_cast<std::int64_t>(w.parts.place(w.parts.part)) * place_rows() + first_row(w) - w.item.slice.row_begin;
  }

  /// High and low parts as one, in the high parts' place. Where a value was infinite the low parts say nothing.
  __device__ static void combine_parts(State& state) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        float& high = state.out[half][i];
        if (isfinite(high)) high += state.out[half][kRows / 2 + i];
      }
  }

  /// Sums over this warp's keys.
  __device__ static void publish_sums(State& state, float (&of_warp)[4][kRows]) {
    const Place me;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) state.sum[q] += __shfl_xor_sync(~0u, state.sum[q], mask);
      if (me.lane() < 4) of_warp[me.warp()][me.column(q)] = state.sum[q];
    }
  }
  /// Over all keys of a warpgroup, once all warps have published theirs.
  __device__ static float sum_of(const float (&of_warp)[4][kRows], int row) {
    return (of_warp[0][row] + of_warp[1][row]) + (of_warp[2][row] + of_warp[3][row]);
  }

  /// What this warpgroup, not the first, knows of the piece.
  __device__ void hand_over(State& state, std::uint32_t parity) const {
    const Place me;
    typename Memory::Found& found = shared.found[group - 1];
    hopper::wait(&shared.found_free[group - 1], parity ^ 1);
    publish_sums(state, found.sums);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (me.lane() < 4 && me.warp() == 0) found.max[me.column(q)] = state.max[q];
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 2; ++j) found.out[me.column(q)][me.dim(half, j)] = state.out[half][q / 2 * 4 + j * 2 + q % 2];
    }
    Memory::arrive_warp(shared.found_full[group - 1]);
  }

  /// The same into the first warpgroup's state, whose parts are combined.
  __device__ void take_over(State& state, int other, std::uint32_t parity) const {
    const Place me;
    const typename Memory::Found& found = shared.found[other - 1];
    hopper::wait(&shared.found_full[other - 1], parity);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const float top = fmaxf(state.max[q], found.max[me.column(q)]), rescale = ptx::exp2_approx(state.max[q] - base_of(top));
      const float weight = ptx::exp2_approx(found.max[me.column(q)] - base_of(top));
      state.max[q] = top;
      state.sum[q] *= rescale;
      if (me.matrix_row() == 0) state.sum[q] += weight * sum_of(found.sums, me.column(q));  // one thread of each column
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& mine = state.out[half][q / 2 * 4 + j * 2 + q % 2];
          mine = mine * rescale + weight * found.out[me.column(q)][me.dim(half, j)];
        }
    }
    Memory::arrive_warp(shared.found_free[other - 1]);
  }

  /// Accumulators to this part's place in the workspace, straight from registers: eight lanes fill 32 bytes.
  __device__ void keep_values(const State& state, const DecodeJob& w) const {
    const Place me;
    const std::int64_t place = rows_before(w);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (me.column(q) >= num_rows(w)) continue;
      float* const row = a.work.partial_acc + (place + me.column(q)) * kDim;
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 2; ++j) row[me.dim(half, j)] = state.out[half][q / 2 * 4 + j * 2 + q % 2];
    }
  }

  /// Maximum and sum of this piece's rows, once all warps have published their sums.
  __device__ void keep_states(const State& state, float2* to) const {
    const Place me;
    const auto& sums = shared.sums[end_index()];
    if (thread() >= 4) return;
#pragma unroll
    for (int q = 0; q < kColumns; q += 2)
      *reinterpret_cast<float4*>(to + me.column(q)) =
          make_float4(state.max[q], sum_of(sums, me.column(q)), state.max[q + 1], sum_of(sums, me.column(q + 1)));
  }

  /// Whether prepare found no broken rule; a launch of which none is beside waits for prepare here (turns.h). Reading the flag
  /// takes a round trip to memory, so callers read it before work that does not need it. Partial results may be written without
  /// asking: no block reads a partial result before its part is counted, and is_last_part() reads the flag when it counts.
  __device__ bool is_sound() const {
    if (a.work.turn != gpu::Turn::beside) hopper::wait_for_dependencies();
    return !gpu::is_refused(a);
  }

  /// True in every thread of the warpgroup that completes the last part of the segment, if it may be written. One thread's fence
  /// stands for all: the barriers make it cumulative (PTX ISA, "Memory Consistency Model", causality order).
  __device__ bool is_last_part(const DecodeJob& w) const {
    int& last = shared.last[end_index()];
    const int of_rows = by_rows(w) && group > 0 ? static_cast<int>(gridDim.x) : 0;  // a counter a block for these rows
    __syncwarp();
    if (thread() == 0) {
      const bool sound = is_sound();
      hopper::fence_device();
      const int last_part = w.parts.count - 1;
      last = hopper::count(a.work.parts_done + w.parts.counter + of_rows, last_part) == last_part && sound;
    }
    sync_group();
    return last != 0;
  }

  /// The state of a score row to what scales it, its place, and lse.
  template <mma::Output kOutput>
  __device__ mma::OutputRow end_of_row(const mma::Item& item, int score_row, const float2& state, bool writes_lse) const {
    const int query_row = this->query_row(score_row);
    return mma::finish_row<kOutput>(a, item, query_row, score_row - query_row * a.group,
                                    mma::natural_state<Weight>(state.x, state.y), writes_lse);
  }
  template <mma::Output kOutput>
  __device__ void end_rows(const DecodeJob& w) const {
    sync_group();  // states are there
    const int row = thread();
    if (row < num_rows(w)) {
      const mma::OutputRow end = end_of_row<kOutput>(w.item, first_row(w) + row, shared.states[end_index()][row], true);
      shared.ends[end_index()][row] = {end.offset, end.factor};
    }
    sync_group();
  }
  __device__ mma::OutputRow end_of(int row) const {
    const typename Memory::RowEnd& end = shared.ends[end_index()][row];
    return {end.offset, end.factor};
  }

  /// Calls write(which types of output it is to write). Wide tiles have one piece of code for all.
  template <typename Write>
  __device__ void with_output(Write&& write) const {
    if (!Memory::kSlices && mma::is_own_output<T>(a))
      write(std::integral_constant<mma::Output, mma::Output::own>{});
    else
      write(std::integral_constant<mma::Output, mma::Output::any>{});
  }

  /// Rows of a segment that is whole.
  template <mma::Output kOutput>
  __device__ void write_rows(const State& state, const DecodeJob& w) const {
    const Place me;
    keep_states(state, shared.states[end_index()]);
    end_rows<kOutput>(w);
    const bool words = Tiles::kDimsInPairs && a.output_pairs;
    const std::int64_t stride = a.output_strides.dim;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (me.column(q) >= num_rows(w)) continue;
      const mma::OutputRow to = end_of(me.column(q));
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float x = state.out[half][q / 2 * 4 + q % 2], y = state.out[half][q / 2 * 4 + 2 + q % 2];
        const int dim = me.dim(half, 0);
        mma::store_pair<T, kOutput>(a, to.offset + (words ? dim : dim * stride), (me.dim(half, 1) - dim) * stride, words,
                                    x * to.factor, y * to.factor);
      }
    }
  }

  /// Rows of a segment from its parts.
  __device__ void merge_rows(const DecodeJob& w) const {
    static_assert(sizeof(shared.weights[0]) >= sizeof(float2[128]));
    const SegmentMerge<T, kDim, kRows, Tiles::kPartsAtOnce> merge{a,
                                                                  num_rows(w),
                                                                  place_rows(),
                                                                  first_row(w) - w.item.slice.row_begin,
                                                                  w.parts,
                                                                  reinterpret_cast<float2*>(shared.weights[group])};
#pragma unroll 1
    for (int chunk = 0; chunk < merge.chunks(); ++chunk) {
      float2 state;
      const float4 total = merge.fold(chunk, state);
      const int row = merge.row_of(chunk);
      const bool exists = row < merge.rows;
      const mma::OutputRow end =
          end_of_row<mma::Output::any>(w.item, first_row(w) + (exists ? row : 0), state, exists && merge.dim() == 0);
      if (exists) merge.store(total, end);
    }
  }

  /// Segments that this block completed, when its share is done: the memory of tiles is free, and nothing waits behind them.
  template <mma::Output kOutput>
  __device__ void merge_last(int count) const {
    using Merge = StagedMerge<kDim, kRows, sizeof(shared.k) + sizeof(shared.v)>;
    static_assert(sizeof(typename Merge::Weights) <= sizeof(shared.weights[0]));
    sync_group();  // what is unmerged, and that tiles are used up
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const auto& w = shared.unmerged[i];
      const Merge merge(a, w.rows, w.parts, reinterpret_cast<typename Merge::Slot*>(shared.k),
                        reinterpret_cast<typename Merge::Weights&>(shared.weights[0]));
      merge.run([&](const typename Merge::Row& row, int number) {
        const bool exists = number < w.rows;
        const mma::OutputRow end =
            end_of_row<kOutput>(w.item, exists ? number : 0, {row.max, row.sum}, exists && merge.dim() == 0);
        if (!exists) return;
        mma::store_pair<T, kOutput>(a, end, merge.dim(), row.total.x, row.total.y);
        mma::store_pair<T, kOutput>(a, end, merge.dim() + 2, row.total.z, row.total.w);
      });
    }
  }

  // --- this step's rows where they are not in the tiles: in f32 ---

  /// Logit of key `position` and row r in base 2; -inf where the row does not see the key.
  __device__ float fresh_logit(const DecodeJob& w, int position, int r) const {
    const int row = first_row(w) + r, q_pos = w.item.lengths.context_len + row / a.group;
    const semantics::KeyRange seen = semantics::visible_range(q_pos, a.window);
    if (r >= num_rows(w) || position < seen.begin || position >= seen.end) return -INFINITY;
    const int head = w.item.kv_head * a.group + row % a.group;
    const auto* q =
        reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint16_t*>(a.query.data) +
                                               a.query.strides.row(0, head, w.item.lengths.first_token + row / a.group));
    const auto* k = reinterpret_cast<const std::uint32_t*>(fresh_row(a.key, w, position));
    float dot = 0.0f;
#pragma unroll 4
    for (int i = 0; i < kDim / 2; ++i) {
      const float2 x = T::unpack(q[i]), y = T::unpack(k[i]);
      dot += x.x * y.x;
      dot += x.y * y.y;
    }
    const float slope = a.alibi_slopes.at(head, 0.0f);
    return mma::kLog2e * semantics::score<mma::ShortTanh>(dot, a.score, slope, static_cast<float>(position - q_pos));
  }

  /// Positions [begin, begin + count) of one tile, into values in real units.
  __device__ void fold_fresh_rows(State& state, const DecodeJob& w, int begin, int count) const {
    const Place me;
    auto* const exact = exact_weights(0);
    sync_group();  // the weights of the last tile are used up
#pragma unroll 1
    for (int i = thread(); i < count * kRows; i += 128)
      exact[i / kRows][i % kRows] = fresh_logit(w, begin + i / kRows, i % kRows);
    sync_group();
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      float top = state.max[q];
#pragma unroll 1
      for (int i = 0; i < count; ++i) top = fmaxf(top, exact[i][me.column(q)]);
      refer_to(state, q, top);
    }
    sync_group();  // logits are read, and become weights
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
#pragma unroll 1
      for (int i = me.warp() * 8 + me.lane() / 4; i < count; i += 32) {
        float& weight = exact[i][me.column(q)];
        weight = weight_of(state, weight, q);
        state.sum[q] += weight;
      }
    }
    sync_group();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const std::uint16_t* row = fresh_row(a.value, w, begin + i);
      add_value(state, w, begin + i, [&](int dim) { return T::unpack(row[dim]).x; }, exact[i]);
    }
  }
  __device__ void fold_fresh_rows(State& state, const DecodeJob& w) const {
    const int cached_len = w.item.lengths.cached_len;
#pragma unroll 1
    for (int tile = max(w.first, cached_len / kTileKeys); tile < w.end; ++tile) {
      const int begin = max(tile * kTileKeys, max(cached_len, w.span.any_begin));
      fold_fresh_rows(state, w, begin, min((tile + 1) * kTileKeys, w.span.any_end) - begin);
    }
  }

  /// Everything about the piece, or this warpgroup's rows of it, is in the state.
  __device__ void finish_piece(State& state, const DecodeJob& w, int& unmerged) const {
    const float v_scale = a.v_scale.at(w.item.kv_head, 1.0f);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) state.out[half][i] *= v_scale;
    if (!w.fresh_in_tiles && w.item.lengths.cached_len < w.span.any_end) [[unlikely]]
      fold_fresh_rows(state, w);
    const bool split = w.parts.count > 1, sound = split || is_sound();
    publish_sums(state, shared.sums[end_index()]);
    if (split) keep_values(state, w);
    sync_group();  // all sums are there
    if (!sound) return;
    if (!split) {
      with_output([&](auto output) { write_rows<output()>(state, w); });
    } else {
      keep_states(state, reinterpret_cast<float2*>(a.work.partial_states) + rows_before(w));
      if (!is_last_part(w)) return;
      if constexpr (Memory::kMergesLast) {
        if (thread() == 0) shared.unmerged[unmerged] = {w.item, w.parts, num_rows(w)};
        ++unmerged;
      } else {
        merge_rows(w);
      }
    }
    if (thread() == 0) atomicAdd(&a.outcome->rows_written, static_cast<unsigned long long>(num_rows(w)));
  }

  /// Tiles of a piece before this warpgroup's first.
  __device__ int tiles_before(const DecodeJob& w, int group) const {
    if constexpr (kGroups == 1) return 0;
    return by_rows(w) ? 0 : group ^ w.turn;
  }
  /// The tiles of a piece that are this warpgroup's.
  __device__ void fold_tiles(State& state, const DecodeJob& w, Ring& ring, int& turn) const {
    static_assert(kGroups <= 2, "more would need more than one turn and parity");
    Ring mine = ring;
    const int before = tiles_before(w, group), step = by_rows(w) ? 1 : kGroups;
    mine.advance(before);
    const typename Fold::Facts facts = this->facts_of(w);
    const int begin = hopper::uniform(w.first), end = hopper::uniform(w.end);
#pragma unroll 1
    for (int tile = begin + before; tile < end; tile += step, mine.advance(step), turn ^= 1)
      fold_tile(state, w, facts, tile, mine, kGroups == 1 ? mine.at & 1 : turn);
    if constexpr (kGroups == 1)
      ring = mine;
    else
      ring.skip(end - begin);
  }

  __device__ void run() const {
    Ring ring;
    typename Memory::JobRing jobs;
    std::uint32_t found_parity = 0;  // of what one warpgroup tells the other
    int turn = 0;                    // of the weights: those of the last piece may still be read
    int unmerged = 0;
#pragma unroll 1
    for (;; jobs.advance()) {
      hopper::wait(&shared.job_full[jobs.stage()], jobs.parity());
      const DecodeJob& w = shared.jobs[jobs.stage()];
      const int tiles = hopper::uniform(w.end - w.first);
      if (tiles == 0) break;
      load_query(w);
      State state{};
#pragma unroll
      for (int q = 0; q < kColumns; ++q) state.max[q] = -INFINITY;
      fold_tiles(state, w, ring, turn);
      combine_parts(state);
      if (group != 0 && !by_rows(w)) {
        if constexpr (kGroups > 1)
          if (tiles > tiles_before(w, group)) hand_over(state, found_parity), found_parity ^= 1;
      } else {
        if constexpr (kGroups > 1)
          if (!by_rows(w) && tiles > tiles_before(w, 1)) take_over(state, 1, found_parity), found_parity ^= 1;
        finish_piece(state, w, unmerged);
      }
      Memory::arrive_warp(shared.job_free[jobs.stage()]);
    }
    if constexpr (Memory::kMergesLast) with_output([&](auto output) { merge_last<output()>(unmerged); });
    end_turn(a);
  }
};

template <typename T, typename Memory>
__global__ void __launch_bounds__(Memory::kThreads, Memory::kBlocks)
    attend_decode(const __grid_constant__ gpu::AttendArgs a, const __grid_constant__ CacheMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  if (threadIdx.x == 0) {  // no copying warp: those are waited for
    hopper::prefetch_map(&maps.k), hopper::prefetch_map(&maps.v);
    Memory::init_barriers(shared);
  }
  const int blocks = begin_decode_turn<Memory::kBlocks>(a);
  if (static_cast<int>(blockIdx.x) >= blocks) return end_turn(a);
  const Places<Memory::kSlices> places(a, blocks);
  const int warp = static_cast<int>(threadIdx.x) / 32 - Memory::kWorkers / 32;
  const bool few = a.num_reqs <= kFewRequests, copies = warp >= 0 && warp < Memory::kCopyWarps;
  Counted row{};
  if (!few || copies) row = count_tiles<Memory::kThreads>(a, places, shared.row, few, warp);
  if (few) __syncthreads();  // mbarriers are there
  if (warp < 0) {
    if constexpr (Memory::kMoveRegisters) hopper::take_registers<Memory::kWorkRegisters>();
    gpu::confirm_if_first(a);
    DecodeWork<T, Memory>{{a, shared}}.run();
  } else {
    if constexpr (Memory::kMoveRegisters) hopper::keep_registers<Memory::kCopyRegisters>();
    if (copies)
      DecodeCopy<Memory>{a, maps, shared, warp}.run(
          Pieces<Memory::kSlices>(a, places, row, static_cast<int>(blockIdx.x), blocks));
    let_trailing_start(a);
    end_turn(a);
    // Prepare says so, too, but where there are too many parts.
    if (row.all == kUnsound && threadIdx.x == Memory::kWorkers) gpu::break_call(a);
  }
#endif
}

}  // namespace quire::cuda::sm90
