// Decode on Hopper: up to kRows score rows (query rows x group) of one request and KV head against its keys, 64 at a time.
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
// Weights enter in two 16-bit parts as in cuda_mma. Work: shares.h. What not all rows see is kept out of the second product and
// added in f32, so that 0 x NaN cannot reach a row that does not see the NaN. (Rows of visible pages that no row sees are copied
// and not used; no other memory of the cache is read.)
#pragma once

#include "backend/cuda/mma/finish.h"
#include "backend/cuda/sm90/decode_copy.h"
#include "backend/cuda/sm90/decode_tiles.h"
#include "backend/cuda/sm90/merge_segment.h"
#include "backend/cuda/sm90/turns.h"

namespace quire::cuda::sm90 {

/// What a warpgroup does: pieces, one after the other.
template <typename T, typename Memory>
struct DecodeWork : DecodeTiles<T, Memory> {
  using Fold = DecodeTiles<T, Memory>;
  using Fold::a;
  using Fold::add_value;
  using Fold::base_of;
  using Fold::exact_weights;
  using Fold::fold_tile;
  using Fold::fresh_row;
  using Fold::group;
  using Fold::kColumns;
  using Fold::kDim;
  using Fold::kGroups;
  using Fold::kHalves;
  using Fold::kRows;
  using Fold::load_query;
  using Fold::refer_to;
  using Fold::shared;
  using Fold::sync_group;
  using Fold::weight_of;
  using typename Fold::Place;
  using typename Fold::Ring;
  using typename Fold::State;
  using typename Fold::Tiles;
  using typename Fold::Weight;

  // --- the end of a piece ---

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
    const std::int64_t place = static_cast<std::int64_t>(w.parts.place(w.parts.part)) * kRows;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (me.column(q) >= w.item.slice.row_end) continue;
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
    if (threadIdx.x >= 4) return;
#pragma unroll
    for (int q = 0; q < kColumns; q += 2)
      *reinterpret_cast<float4*>(to + me.column(q)) =
          make_float4(state.max[q], sum_of(shared.sums, me.column(q)), state.max[q + 1], sum_of(shared.sums, me.column(q + 1)));
  }

  /// True in every thread of the warpgroup that completes the last part of the segment. One thread's fence stands for all: the
  /// barriers make it cumulative (PTX ISA, "Memory Consistency Model", causality order).
  __device__ bool is_last_part(const DecodeJob& w) const {
    __syncwarp();
    if (threadIdx.x == 0) {
      __threadfence();
      shared.last = atomicAdd(a.work.parts_done + w.parts.first_block, 1) == w.parts.count - 1;
      __threadfence();
    }
    sync_group();
    return shared.last != 0;
  }

  /// States of rows to what scales them, their place, and lse.
  __device__ void end_rows(const DecodeJob& w) const {
    sync_group();  // states are there
    const int row = threadIdx.x;
    if (row < w.item.slice.row_end) {
      const float2 state = shared.states[row];
      const mma::OutputRow end = mma::finish_row(a, w.item, row, mma::natural_state<Weight>(state.x, state.y), true);
      shared.ends[row] = {end.offset, end.factor};
    }
    sync_group();
  }
  __device__ mma::OutputRow end_of(int row) const { return {shared.ends[row].offset, shared.ends[row].factor}; }

  /// Rows of a segment that is whole.
  __device__ void write_rows(const State& state, const DecodeJob& w) const {
    const Place me;
    keep_states(state, shared.states);
    end_rows(w);
    auto* const output = static_cast<std::uint16_t*>(a.output);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (me.column(q) >= w.item.slice.row_end) continue;
      const mma::OutputRow to = end_of(me.column(q));
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const std::uint32_t pair =
            T::pack(state.out[half][q / 2 * 4 + q % 2] * to.factor, state.out[half][q / 2 * 4 + 2 + q % 2] * to.factor);
        const int dim = me.dim(half, 0);
        if (Tiles::kDimsInPairs && a.output_pairs) {
          *reinterpret_cast<std::uint32_t*>(output + to.offset + dim) = pair;
        } else {
          output[to.offset + dim * a.output_strides.dim] = static_cast<std::uint16_t>(pair);
          output[to.offset + me.dim(half, 1) * a.output_strides.dim] = static_cast<std::uint16_t>(pair >> 16);
        }
      }
    }
  }

  /// Rows of a segment from its parts.
  __device__ void merge_rows(const DecodeJob& w) const {
    static_assert(sizeof(shared.weights[0]) == sizeof(float2[kPartsStaged][kRows]));
    const SegmentMerge<T, kDim, kRows, Tiles::kPartsAtOnce> merge{a, w.item, w.parts,
                                                                  reinterpret_cast<float2(*)[kRows]>(shared.weights[0])};
#pragma unroll 1
    for (int chunk = 0; chunk < merge.chunks(); ++chunk) {
      const float4 total = merge.fold(chunk, shared.states, [this] { sync_group(); });
      end_rows(w);  // those of later chunks are not right yet
      merge.store(total, chunk, end_of(merge.row_of(chunk)));
    }
  }

  // --- this step's rows beside a cache of another type: at most kRows keys, in f32 ---

  /// Logit of key `position` and row r in base 2; -inf where the row does not see the key.
  __device__ float fresh_logit(const DecodeJob& w, int position, int r) const {
    const int q_pos = w.item.lengths.context_len + r / a.group;
    const semantics::KeyRange seen = semantics::visible_range(q_pos, a.window);
    if (r >= w.item.slice.row_end || position < seen.begin || position >= seen.end) return -INFINITY;
    const int head = w.item.kv_head * a.group + r % a.group;
    const auto* q = reinterpret_cast<const std::uint32_t*>(
        static_cast<const std::uint16_t*>(a.query.data) + a.query.strides.row(0, head, w.item.lengths.first_token + r / a.group));
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

  /// By the first warpgroup, into values in real units.
  __device__ void fold_fresh_rows(State& state, const DecodeJob& w) const {
    const Place me;
    const int count = w.span.any_end - w.item.lengths.cached_len;
    auto* const exact = exact_weights(0);
    sync_group();  // the weights of the last tile are used up
#pragma unroll 1
    for (int i = threadIdx.x; i < count * kRows; i += 128)
      exact[i / kRows][i % kRows] = fresh_logit(w, w.item.lengths.cached_len + i / kRows, i % kRows);
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
      const std::uint16_t* row = fresh_row(a.value, w, w.item.lengths.cached_len + i);
      add_value(state, w, w.item.lengths.cached_len + i, [&](int dim) { return T::unpack(row[dim]).x; }, exact[i]);
    }
  }

  /// By the first warpgroup: everything about the piece is in its state.
  __device__ void finish_piece(State& state, const DecodeJob& w) const {
    const float v_scale = a.v_scale.at(w.item.kv_head, 1.0f);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) state.out[half][i] *= v_scale;
    const bool has_end = w.parts.part == w.parts.count - 1;
    if (!Tiles::kHoldFreshRows && has_end && w.item.lengths.cached_len < w.span.any_end) fold_fresh_rows(state, w);
    const bool split = w.parts.count > 1;
    publish_sums(state, shared.sums);
    if (split) keep_values(state, w);
    sync_group();  // all sums are there
    if (!split) {
      write_rows(state, w);
    } else {
      const std::int64_t place = static_cast<std::int64_t>(w.parts.place(w.parts.part)) * kRows;
      keep_states(state, reinterpret_cast<float2*>(a.work.partial_states) + place);
      if (!is_last_part(w)) return;
      merge_rows(w);
    }
    mma::count_rows(a, w.item);
  }

  /// The tiles of a piece that are this warpgroup's.
  __device__ void fold_tiles(State& state, const DecodeJob& w, Ring& ring, int& turn) const {
    Ring mine = ring;
    mine.advance(group);
#pragma unroll 1
    for (int tile = w.first + group; tile < w.end; tile += kGroups, mine.advance(kGroups), turn ^= 1)
      fold_tile(state, w, tile, mine, kGroups == 1 ? mine.at & 1 : turn);
    if constexpr (kGroups == 1)
      ring = mine;
    else
      ring.skip(w.end - w.first);
  }

  __device__ void run() const {
    Ring ring;
    typename Memory::JobRing jobs;
    std::uint32_t found_parity[kGroups] = {};  // of those that took part
    int turn = 0;                              // of the weights: those of the last piece may still be read
#pragma unroll 1
    for (;; jobs.advance()) {
      hopper::wait(&shared.job_full[jobs.stage()], jobs.parity());
      const DecodeJob& w = shared.jobs[jobs.stage()];
      const int tiles = w.end - w.first;
      if (tiles == 0) break;
      load_query(w);
      State state{};
#pragma unroll
      for (int q = 0; q < kColumns; ++q) state.max[q] = -INFINITY;
      fold_tiles(state, w, ring, turn);
      combine_parts(state);
      if (group != 0) {
        if constexpr (kGroups > 1)
          if (tiles > group) hand_over(state, found_parity[0]), found_parity[0] ^= 1;
      } else {
        if constexpr (kGroups > 1)
#pragma unroll
          for (int other = 1; other < kGroups; ++other)
            if (tiles > other) take_over(state, other, found_parity[other]), found_parity[other] ^= 1;
        if (a.work.turn == gpu::Turn::alone) hopper::wait_for_dependencies();  // nothing was written so far
        if (*static_cast<volatile const std::int32_t*>(&a.outcome->broken) == 0) finish_piece(state, w);
      }
      Memory::arrive_warp(shared.job_free[jobs.stage()]);
    }
    end_turn(a);
  }
};

template <typename T, typename Memory>
__global__ void __launch_bounds__(Memory::kThreads, Memory::kBlocks)
    attend_decode(const __grid_constant__ gpu::AttendArgs a, const __grid_constant__ CacheMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  if (threadIdx.x == Memory::kWorkers) {
    hopper::prefetch_map(&maps.k), hopper::prefetch_map(&maps.v);
    Memory::init_barriers(shared);
  }
  const int blocks = begin_decode_turn<Memory::kBlocks>(a);
  if (static_cast<int>(blockIdx.x) >= blocks || !count_tiles<Memory::kThreads>(a, shared.row)) {  // prepare says so, too
    end_turn(a);
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / 32 - Memory::kWorkers / 32;
  if (warp < 0) {
    if constexpr (Memory::kMoveRegisters) hopper::take_registers<Memory::kWorkRegisters>();
    DecodeWork<T, Memory>{{a, shared}}.run();
  } else {
    if constexpr (Memory::kMoveRegisters) hopper::keep_registers<Memory::kCopyRegisters>();
    if (warp < Memory::kCopyWarps)
      DecodeCopy<Memory>{a, maps, shared, warp}.run(Pieces(a, shared.row, static_cast<int>(blockIdx.x), blocks));
    end_turn(a);
  }
#endif
}

}  // namespace quire::cuda::sm90
