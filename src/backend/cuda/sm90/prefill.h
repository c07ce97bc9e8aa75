// Prefill on Hopper: tiles of 128 score rows (query rows x group) of one request and KV head against tiles of 128 keys.
//
// Roles: four warps copy by the tensor copy engine (TMA), a box a page; two warpgroups of 64 rows each multiply by
// wgmma:
//
//     S [64 x keys] = Q [64 x d] K^T        both from shared memory
//     O [64 x d]   += P [64 x keys] V       P from registers: what a thread has of S is what it needs of P
//
// Products overlap with softmax twice (Shah et al. 2024, arXiv:2407.08608): inside a warpgroup, O += P V of one tile runs while
// the softmax of the next is computed; between warpgroups, turns are taken at issuing products, so that one multiplies while
// another computes exponentials. Two blocks share tiles of keys: each copies half to both, as what all blocks read of the L2
// cache is near its limit. Weights are rounded to the query's type (docs/numerics.md, "Rounded weights"). Pairs of blocks draw
// items of the list until none is left; the copying warps draw ahead.
#pragma once

#include "backend/cuda/sm90/careful_rows.h"
#include "backend/cuda/sm90/prefill_copy.h"
#include "backend/cuda/sm90/wgmma.h"

namespace quire::cuda::sm90 {

template <typename T, int kDim_>
struct Prefill {
  static constexpr int kDim = kDim_;
  using Memory = PrefillMemory<kDim>;
  using Shared = typename Memory::Shared;
  using Tile = typename Memory::Tile;
  using Query = typename Memory::Query;
  using JobRing = typename Memory::JobRing;
  static constexpr int kHalves = Memory::kHalves, kGroups = Memory::kGroups, kKeys = Memory::kKeys, kRowBytes = Memory::kRowBytes;
  static constexpr int kWorkers = Memory::kWorkers;
  static constexpr bool kF16 = T::kDType == DType::f16;

  struct Ring {
    typename Memory::Ring k, v;
  };

  const gpu::AttendArgs& a;
  const PrefillMaps& maps;
  Shared& shared;
  const int rank;  ///< of this block in its pair

  /// Score rows of a tile that are this block's: [rank * block_rows(), (rank + 1) * block_rows()).
  __device__ int block_rows() const { return a.work.tile_rows / kPair; }

  __device__ static int group_index() { return static_cast<int>(threadIdx.x) / 128; }
  __device__ static void sync_workers() { hopper::named_barrier<1, kWorkers>(); }

  /// Turns at issuing products. Each warpgroup takes one for every tile and hands on to the next.
  __device__ static void await_turn() { hopper::sync_at(2 + group_index(), 256); }
  __device__ static void hand_on() { hopper::arrive_at(2 + (group_index() + 1) % kGroups, 256); }

  /// This thread's rows of the tile are 64 group + 16 warp + lane / 4 + {0, 8}; its columns 8 i + 2 (lane % 4) + {0, 1}.
  struct State {
    float out[kDim / 2];   ///< columns are dims: index 4 i + 2 h + e
    float max[2], sum[2];  ///< base 2; the sum over this thread's columns
  };

  /// What the loop over tiles needs; the rest is looked up where it is needed, as registers are scarce.
  struct Work {
    int first, end;            ///< score rows of the warpgroup
    int full_begin, full_end;  ///< keys that all of them see
    int row_end[2];            ///< of keys that this thread's rows see
    bool plain;                ///< the softmax scale is all that is done to a dot product
    float factor;              ///< what finish_scores() leaves to be done, log2(e) included
  };

  __device__ Work work_of(const PrefillJob& job) const {
    const gpu::WorkSlice& slice = job.item.slice;
    const int block = slice.row_begin + rank * block_rows(), first = block + 64 * group_index();
    const mma::RowSpan span =
        mma::row_span(a, job.item.lengths, first, min(min(first + 64, block + block_rows()), slice.row_end));
    const bool plain = a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr && a.score.scale > 0.0f;
    Work w{span.first, span.end, span.full_begin, span.full_end, {}, plain, plain ? a.score.scale * mma::kLog2e : 1.0f};
#pragma unroll
    for (int h = 0; h < 2; ++h)
      w.row_end[h] = job.item.lengths.context_len + min(first + row_in_group() + 8 * h, slice.row_end - 1) / a.group + 1;
    return w;
  }

  __device__ static int row_in_group() {
    return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 4 * 2; }

  using Scores = float[kKeys / 2];           ///< index 4 i + 2 h + e
  using Weights = std::uint32_t[kKeys / 4];  ///< pairs in the order in which wgmma takes them as A

  __device__ static void start_scores(Scores& s, const Query& query, const Tile& k) {
    hopper::wgmma_begin();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      std::uint64_t rows =
          hopper::matrix<hopper::Swizzle::bytes128>(query.halves[half] + group_index() * 64 * kRowBytes, 8 * kRowBytes);
      const std::uint64_t keys = hopper::matrix<hopper::Swizzle::bytes128>(k.halves[half], 8 * kRowBytes);
      hopper::keep_here(rows);
#pragma unroll
      for (int step = 0; step < 4; ++step)
        hopper::multiply_shared<kF16>(s, hopper::advanced(rows, step * 32), hopper::advanced(keys, step * 32), half + step);
    }
    hopper::wgmma_commit();
  }

  __device__ static void start_values(State& state, const Weights& p, const Tile& v) {
    hopper::wgmma_begin();
    const std::uint64_t values = hopper::matrix<hopper::Swizzle::bytes128>(v.halves[0], 8 * kRowBytes, sizeof(v.halves[0]));
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      hopper::multiply_registers<kF16>(state.out, p + 4 * step, hopper::advanced(values, step * 16 * kRowBytes));
    hopper::wgmma_commit();
  }

  /// What is not a key of the span is zeros in V: 0 times what lay there before could be NaN. All warpgroups write the same.
  __device__ static void clear_unseen(Tile& v, const KeyTileSpan& span) {
    const int begin = span.begin - span.first, end = span.end - span.first;
    if (begin <= 0 && end >= kKeys) return;
    for (int i = threadIdx.x % 128; i < kKeys * 8; i += 128) {
      const int key = i / 8;
      if (key >= begin && key < end) continue;
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        *reinterpret_cast<uint4*>(v.halves[half] + key * kRowBytes + i % 8 * 16) = uint4{};
    }
    hopper::fence_shared();
    hopper::sync_at(5 + group_index(), 128);
  }

  /// Every row of the warpgroup sees every key of the tile.
  __device__ static bool is_whole(const Work& w, const KeyTileSpan& span) {
    return span.first >= max(span.begin, w.full_begin) && span.first + kKeys <= min(span.end, w.full_end);
  }

  /// Soft cap and ALiBi.
  __device__ void cap_and_slope(Scores& s, const Work& w, const mma::Item& item, int first) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.first + row_in_group() + 8 * h;
      const float slope = a.alibi_slopes.at(item.kv_head * a.group + row % a.group, 0.0f);
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const auto distance = static_cast<float>(first + i / 2 * 8 + i % 2 - (w.row_end[h] - 1));
        float& x = s[i / 2 * 4 + 2 * h + i % 2];
        x = mma::kLog2e * semantics::score<mma::ShortTanh>(x, a.score, slope, distance);
      }
    }
  }

  /// Dot products to logits in base 2 where that takes more than one product; -inf for keys that a row does not see.
  __device__ void finish_scores(Scores& s, const Work& w, const mma::Item& item, const KeyTileSpan& span) const {
    const int first = span.first + column();
    if (!w.plain) cap_and_slope(s, w, item, first);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const semantics::KeyRange seen = semantics::visible_range(w.row_end[h] - 1, a.window);
      const int begin = max(static_cast<int>(seen.begin), span.begin) - first, end = min(w.row_end[h], span.end) - first;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const int at = i / 2 * 8 + i % 2;
        if (at < begin || at >= end) s[i / 2 * 4 + 2 * h + i % 2] = -INFINITY;
      }
    }
  }

  /// Largest score of each row in the tile, in all four threads of the row. Several chains, as one warp has nobody to wait for.
  __device__ static void row_maxima(float (&top)[2], const Scores& s) {
    float of[2][4];
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float pair = fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]);
        of[h][i % 4] = i < 4 ? pair : fmaxf(of[h][i % 4], pair);
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) top[h] = fmaxf(fmaxf(of[h][0], of[h][1]), fmaxf(of[h][2], of[h][3]));
#pragma unroll
    for (int mask = 1; mask <= 2; mask *= 2)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], mask));
  }

  /// Logits to weights relative to the new maximum (times 2^kWeightShift). What was summed before is to be multiplied by
  /// `rescale`.
  __device__ static void fold_weights(Scores& s, State& state, float factor, float (&rescale)[2]) {
    float top[2], shifted[2], sum[2][2] = {};
    row_maxima(top, s);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] = fmaxf(top[h] * factor, state.max[h]);
      const float base = top[h] == -INFINITY ? 0.0f : top[h];  // nothing seen yet: every weight below becomes 0
      rescale[h] = ptx::exp2_approx(state.max[h] - base);
      state.max[h] = top[h];
      shifted[h] = base - T::kWeightShift;
    }
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int h = i / 2 % 2;
      s[i] = ptx::exp2_approx(fmaf(s[i], factor, -shifted[h]));
      sum[h][i % 2] += s[i];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) state.sum[h] = state.sum[h] * rescale[h] + (sum[h][0] + sum[h][1]);
  }

  __device__ static void pack_weights(Weights& p, const Scores& s) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i] = T::pack(s[2 * i], s[2 * i + 1]);
  }

  __device__ static void rescale_out(State& state, const float (&rescale)[2]) {
    if (!__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) state.out[i] *= rescale[i / 2 % 2];
  }

  __device__ static void free(hopper::Barrier& barrier) {
    if (threadIdx.x % 32 == 0) hopper::arrive(&barrier);
  }
  /// Both blocks copy into the memory that becomes free.
  __device__ static void free_in_pair(hopper::Barrier& barrier) {
    if (threadIdx.x % 32 < kPair) hopper::arrive_in_cluster(&barrier, threadIdx.x % 32);
  }

  /// All tiles of the job. The products of a tile's weights and values are issued with the scores of the next tile.
  __device__ void fold_job(State& state, const PrefillJob& job, const Work& w, const Query& query, Ring& ring) const {
    const int tiles = job.tiles();
    if (tiles == 0) return;
    Scores s;
    Weights p;
    float rescale[2];
    KeyTiles<kKeys> walk(job);
    KeyTileSpan span = walk.span();
    bool whole = is_whole(w, span);
    hopper::wait(&shared.k_full[ring.k.stage], ring.k.parity);
    await_turn();
    start_scores(s, query, shared.k[ring.k.stage]);
    hand_on();
    hopper::wgmma_wait<0>();
    hopper::settle(s);
    free_in_pair(shared.k_free[ring.k.stage]);
    ring.k.advance();
    if (!w.plain || !whole) finish_scores(s, w, job.item, span);
    fold_weights(s, state, w.factor, rescale);
    pack_weights(p, s);
#pragma unroll 1
    for (int n = 1; n < tiles; ++n) {
      walk.advance();
      const KeyTileSpan next = walk.span();
      const bool next_whole = is_whole(w, next), easy = w.plain && next_whole;
      hopper::wait(&shared.k_full[ring.k.stage], ring.k.parity);
      await_turn();
      start_scores(s, query, shared.k[ring.k.stage]);
      hopper::wait(&shared.v_full[ring.v.stage], ring.v.parity);
      if (!whole) clear_unseen(shared.v[ring.v.stage], span);
      start_values(state, p, shared.v[ring.v.stage]);
      hand_on();
      hopper::wgmma_wait<1>();
      hopper::settle(s);
      free_in_pair(shared.k_free[ring.k.stage]);
      ring.k.advance();
      if (!easy) finish_scores(s, w, job.item, next);
      fold_weights(s, state, w.factor, rescale);
      hopper::keep_before_wait(state.sum[0], state.sum[1], &shared.last);
      hopper::wgmma_wait<0>();
      hopper::settle(state.out);
      free_in_pair(shared.v_free[ring.v.stage]);
      ring.v.advance();
      pack_weights(p, s);
      rescale_out(state, rescale);
      span = next, whole = next_whole;
    }
    hopper::wait(&shared.v_full[ring.v.stage], ring.v.parity);
    if (!whole) clear_unseen(shared.v[ring.v.stage], span);
    start_values(state, p, shared.v[ring.v.stage]);
    hopper::wgmma_wait<0>();
    hopper::settle(state.out);
    free_in_pair(shared.v_free[ring.v.stage]);
    ring.v.advance();
  }

  /// No sum of a row that exists is infinite or NaN, in the whole warpgroup.
  __device__ static bool all_finite(const State& state, const Work& w) {
    bool finite = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float zero = state.sum[h] * 0.0f;  // x * 0 is NaN for every such x
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) zero += state.out[4 * i + 2 * h] * 0.0f + state.out[4 * i + 2 * h + 1] * 0.0f;
      if (w.first + row_in_group() + 8 * h < w.end && zero != 0.0f) finite = false;
    }
    return hopper::all_at(5 + group_index(), 128, finite);
  }

  /// Partial results of this item's rows: index of the row that is row 0 of the tile.
  __device__ std::int64_t partial_row(const mma::Item& item) const {
    return mma::partial_tile(a, item, item.slice.part) * a.work.tile_rows;
  }

  __device__ void store_partial(const State& state, const mma::Item& item, const Work& w) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.first + row_in_group() + 8 * h;
      if (row >= w.end) continue;
      const std::int64_t at = partial_row(item) + row - item.slice.row_begin;
      const semantics::SoftmaxState natural = mma::natural_state<T>(state.max[h], state.sum[h]);
      if (threadIdx.x % 4 == 0)
        *reinterpret_cast<float2*>(a.work.partial_states + at * 2) = make_float2(natural.max, natural.sum);
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i)
        *reinterpret_cast<float2*>(a.work.partial_acc + at * kDim + i * 8 + column()) =
            make_float2(state.out[4 * i + 2 * h], state.out[4 * i + 2 * h + 1]);
    }
  }

  /// 16 bytes of staged output rows.
  __device__ static unsigned char* staged(Query& staging, int row, int chunk) {
    return staging.halves[chunk / 8] + row * kRowBytes + (chunk % 8 ^ row % 8) * 16;
  }

  /// Chunk `chunk` of the output row at `offset`.
  __device__ void write_chunk(std::int64_t offset, int chunk, const uint4& words) const {
    auto* const row = static_cast<std::uint16_t*>(a.output) + offset;
    if (maps.output_chunks) {
      *reinterpret_cast<uint4*>(row + chunk * 8) = words;
      return;
    }
    const std::uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      row[(chunk * 8 + i) * a.output_strides.dim] = static_cast<std::uint16_t>(pairs[i / 2] >> i % 2 * 16);
  }

  /// Finished rows, through the memory of the warp's own query rows, so that whole rows are written.
  __device__ void store_rows(const State& state, const mma::Item& item, const Work& w, Query& staging) const {
    constexpr std::int64_t kNowhere = INT64_MIN;
    const int lane = threadIdx.x % 32, row_of_warp = group_index() * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    std::int64_t offset[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.first + row_in_group() + 8 * h;
      mma::OutputRow to{kNowhere, 0.0f};
      if (row < w.end)
        to = mma::finish_row(a, item, row, mma::natural_state<T>(state.max[h], state.sum[h]), threadIdx.x % 4 == 0);
      offset[h] = to.offset;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i)
        *reinterpret_cast<std::uint32_t*>(staged(staging, row_of_warp + lane / 4 + 8 * h, i) + column() * 2) =
            T::pack(state.out[4 * i + 2 * h] * to.factor, state.out[4 * i + 2 * h + 1] * to.factor);
    }
    __syncwarp();
    constexpr int kChunks = kDim / 8;
#pragma unroll 4
    for (int i = lane; i < 16 * kChunks; i += 32) {
      const int r = i / kChunks, chunk = i % kChunks;
      const std::int64_t lower = __shfl_sync(~0u, offset[0], r % 8 * 4), upper = __shfl_sync(~0u, offset[1], r % 8 * 4);
      const std::int64_t to = r < 8 ? lower : upper;
      if (to != kNowhere) write_chunk(to, chunk, *reinterpret_cast<const uint4*>(staged(staging, row_of_warp + r, chunk)));
    }
  }

  __device__ void store_careful(const mma::Item& item, const Work& w) const {
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
    const std::int64_t first = item.slice.num_parts > 1 ? partial_row(item) - item.slice.row_begin : 0;
#pragma unroll 1
    for (int row = w.first + warp; row < w.end; row += 4) store_careful_row<T, kDim>(a, item, row, first + row);
  }

  __device__ void store(State& state, const mma::Item& item, const Work& w, Query& staging) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 1);
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 2);
    }
    if (!all_finite(state, w)) return store_careful(item, w);
    if (item.slice.num_parts > 1) return store_partial(state, item, w);
    store_rows(state, item, w, staging);
  }

  /// True in every worker of the block that completes the last part of the tile, both blocks' rows.
  __device__ bool is_last_part(const mma::Item& item) const {
    sync_workers();
    if (threadIdx.x == 0) {
      __threadfence();
      shared.last =
          atomicAdd(a.work.parts_done + item.slice.merge * a.num_kv_heads + item.kv_head, 1) == kPair * item.slice.num_parts - 1;
      __threadfence();
    }
    sync_workers();
    return shared.last != 0;
  }

  __device__ void finish(mma::Item item) const {
    if (item.slice.num_parts > 1) {
      if (!is_last_part(item)) return;
      mma::merge_parts<T>(a, item, kWorkers / 32, [&](int part) { return mma::partial_tile(a, item, part); });
    } else {
      item.slice.row_begin += rank * block_rows();
      item.slice.row_end = min(item.slice.row_end, item.slice.row_begin + block_rows());
    }
    if (item.slice.row_begin < item.slice.row_end) mma::count_rows(a, item);
  }

  __device__ void work_all() const {
    Ring ring;
    JobRing jobs;
    if (group_index() == kGroups - 1) hand_on();  // the first turn is the first warpgroup's
    for (;; jobs.advance()) {
      hopper::wait(&shared.job_full[jobs.stage], jobs.parity);
      const PrefillJob& job = shared.jobs[jobs.stage];
      if (job.cached_tiles == kNoMoreJobs) return;
      const Work w = work_of(job);
      State state{};
      state.max[0] = state.max[1] = -INFINITY;
      fold_job(state, job, w, shared.query[jobs.stage], ring);
      store(state, job.item, w, shared.query[jobs.stage]);
      finish(job.item);
      hopper::fence_shared();  // the memory that results went through will be written by a copy
      __syncwarp();
      free(shared.job_free[jobs.stage]);
    }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(PrefillMemory<kDim>::kThreads, 1)
    attend_prefill(const __grid_constant__ gpu::AttendArgs a, const __grid_constant__ PrefillMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Memory = PrefillMemory<kDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Memory::kJobs; ++i)
      hopper::init_barrier(&shared.job_known[i], 1), hopper::init_barrier(&shared.job_full[i], 1),
          hopper::init_barrier(&shared.job_free[i], Memory::kThreads / 32), hopper::init_barrier(&shared.index_full[i], 1);
    for (int i = 0; i < Memory::kStages; ++i) {
      hopper::init_barrier(&shared.k_full[i], 1), hopper::init_barrier(&shared.v_full[i], 1);
      hopper::init_barrier(&shared.k_free[i], kPair * Memory::kWorkers / 32);
      hopper::init_barrier(&shared.v_free[i], kPair * Memory::kWorkers / 32);
    }
    hopper::fence_barrier_init();
  }
  hopper::sync_cluster();
  hopper::wait_for_dependencies();
  const int rank = hopper::rank_in_cluster();
  if (threadIdx.x >= Memory::kWorkers) {
    hopper::keep_registers<Memory::kCopyRegisters>();
    PrefillCopy<kDim>{a, maps, shared, rank}.copy_all();
  } else {
    hopper::take_registers<Memory::kWorkRegisters>();
    Prefill<T, kDim>{a, maps, shared, rank}.work_all();
  }
  hopper::sync_cluster();  // the other block copies into this one's memory and arrives at its barriers
#endif
}

}  // namespace quire::cuda::sm90
