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

#include <type_traits>

#include "backend/cuda/sm90/careful_rows.h"
#include "backend/cuda/sm90/prefill_convert.h"
#include "backend/cuda/sm90/prefill_copy.h"
#include "backend/cuda/sm90/turns.h"
#include "backend/cuda/sm90/wgmma.h"

namespace quire::cuda::sm90 {

template <typename T, int kDim_, bool kCodes>
struct Prefill {
  static constexpr int kDim = kDim_;
  using Memory = PrefillMemory<kDim, kCodes>;
  using Shared = typename Memory::Shared;
  using Tile = typename Memory::Tile;
  using Query = typename Memory::Query;
  using JobRing = typename Memory::JobRing;
  static constexpr int kHalves = Memory::kHalves, kGroups = Memory::kGroups, kKeys = Memory::kKeys, kRowBytes = Memory::kRowBytes;
  static constexpr int kWorkers = Memory::kWorkers;
  /// What weights and cached values are in the second product. Codes become f16 whatever the query is, and so do their weights.
  using Weight = std::conditional_t<kCodes, mma::F16, T>;
  template <typename Element>
  static constexpr bool is_f16 = Element::kDType == DType::f16;

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
    int easy_begin, easy_end;  ///< tiles of the job, from the cache, whose every key is seen by all of them
    int row_end[2];            ///< of keys that this thread's rows see
    bool plain;                ///< the softmax scale is all that is done to a dot product

    __device__ bool is_easy(int n) const { return n >= easy_begin && n < easy_end; }
  };

  /// Query row of the request that score row `row` of the tile (0: its first) belongs to. Rows of a tile are fewer than 256, so
  /// that a product does for the division.
  __device__ int query_row(const PrefillJob& job, int row) const { return job.first_query + (row * shared.group_inverse >> 16); }

  __device__ Work work_of(const PrefillJob& job) const {
    const gpu::WorkSlice& slice = job.item.slice;
    const int block = slice.row_begin + rank * block_rows(), first = block + 64 * group_index();
    const int end = min(min(first + 64, block + block_rows()), slice.row_end);
    const bool plain =
        a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr && a.score.scale > 0.0f && job.parts[0].k_scale > 0.0f;
    Work w{first, end, 0, 0, {}, plain};
    if (first >= end) return w;
    const int context = job.item.lengths.context_len, local = first - slice.row_begin;
    const semantics::KeyRange of_first = semantics::visible_range(context + query_row(job, local), a.window);
    const semantics::KeyRange of_last = semantics::visible_range(context + query_row(job, end - 1 - slice.row_begin), a.window);
    const int before = job.first_cached + (job.cached_end - 1) / kKeys;  // tile n holds keys from (before - n) kKeys on
    const int seen_begin = max(slice.key_begin, static_cast<int>(of_last.begin));
    const int seen_end = min(job.cached_end, static_cast<int>(of_first.end));
    w.easy_begin = max(before + 1 - seen_end / kKeys, job.first_cached);
    w.easy_end = before + 1 - (seen_begin + kKeys - 1) / kKeys;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      w.row_end[h] = context + query_row(job, min(local + row_in_group() + 8 * h, slice.row_end - 1 - slice.row_begin)) + 1;
    return w;
  }

  __device__ static int row_in_group() {
    return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 4 * 2; }

  using Scores = float[kKeys / 2];           ///< index 4 i + 2 h + e
  using Weights = std::uint32_t[kKeys / 4];  ///< pairs in the order in which wgmma takes them as A

  __device__ static void start_scores(Scores& s, const Query& query, const Tile& k) {
    const hopper::Matrix rows(query.halves[0] + group_index() * 64 * kRowBytes, 8 * kRowBytes);
    const hopper::Matrix keys(k.halves[0], 8 * kRowBytes);
    hopper::wgmma_begin();
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int step = 0; step < 4; ++step)
        hopper::multiply_shared<is_f16<T>>(s, rows.at(half * sizeof(query.halves[0]) + step * 32),
                                           keys.at(half * sizeof(k.halves[0]) + step * 32), half + step);
    hopper::wgmma_commit();
  }

  template <typename Element>
  __device__ static void start_values(State& state, const Weights& p, const Tile& v) {
    const hopper::Matrix values(v.halves[0], 8 * kRowBytes, sizeof(v.halves[0]));
    hopper::wgmma_begin();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      hopper::multiply_registers<is_f16<Element>>(state.out, p + 4 * step, values.at(step * 16 * kRowBytes));
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

  /// k_scale, soft cap and ALiBi.
  __device__ void cap_and_slope(Scores& s, const Work& w, const mma::Item& item, int first, float k_scale) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.first + row_in_group() + 8 * h;
      const float slope = a.alibi_slopes.at(item.kv_head * a.group + row % a.group, 0.0f);
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const auto distance = static_cast<float>(first + i / 2 * 8 + i % 2 - (w.row_end[h] - 1));
        float& x = s[i / 2 * 4 + 2 * h + i % 2];
        x = mma::kLog2e * semantics::score<mma::ShortTanh>(x * k_scale, a.score, slope, distance);
      }
    }
  }

  /// A bit for each of this thread's columns 0, 1, 8, 9, 16, ... (counted from its first) that is below `end`.
  __device__ static std::uint32_t columns_below(int end) {
    const int at = min(max(end, 0), kKeys), count = at / 8 * 2 + min(at % 8, 2);
    return static_cast<std::uint32_t>((std::uint64_t{1} << count) - 1);
  }

  /// Dot products to logits in base 2 where that takes more than one product; -inf for keys that a row does not see.
  template <bool kPlain>
  __device__ void finish_scores(Scores& s, const Work& w, const mma::Item& item, const KeyTileSpan& span, float k_scale) const {
    const int first = span.first + column();
    if constexpr (!kPlain) cap_and_slope(s, w, item, first, k_scale);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const semantics::KeyRange seen = semantics::visible_range(w.row_end[h] - 1, a.window);
      const int begin = max(static_cast<int>(seen.begin), span.begin) - first, end = min(w.row_end[h], span.end) - first;
      const std::uint32_t hidden = ~columns_below(end) | columns_below(begin);
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i)
        if (hidden >> i & 1) s[i / 2 * 4 + 2 * h + i % 2] = -INFINITY;
    }
  }

  /// Nothing of the tile is hidden from the thread's row `h`. What is true of all rows of an easy tile is asked of each here:
  /// what becomes of a row depends on no other.
  __device__ bool sees_all(const Work& w, const KeyTileSpan& span, int h) const {
    const semantics::KeyRange seen = semantics::visible_range(w.row_end[h] - 1, a.window);
    return seen.begin <= span.first && min(w.row_end[h], span.end) >= span.first + kKeys;
  }

  /// Largest of each row in this thread's columns. Several chains, as one warp has nobody to wait for.
  __device__ static void largest(float (&top)[2], const Scores& s) {
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
  }

  /// The same in all four threads of a row.
  __device__ static void share_largest(float (&top)[2]) {
#pragma unroll
    for (int mask = 1; mask <= 2; mask *= 2)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], mask));
  }

  /// Weights are relative to a maximum that lags behind, so that rows are seldom rescaled: in most data in their first tiles
  /// alone. Where maxima are looked at, they may be outgrown by kSlack (base 2); where they are not, by what the sums show.
  /// Weights are 2^kShift times as large, and at most kMostSum: an f16 holds that. What becomes of a row depends on no other
  /// row: some of a warp's may not exist, and hold what was left in memory.
  static constexpr float kSlack = 8.0f, kShift = is_f16<Weight> ? 7.0f : 0.0f, kMostSum = 32768.0f;

  /// Moves the maxima of rows that have outgrown them (`first_only`: only if they had none); true if one of the warp's did.
  /// What was summed before is to be multiplied by `rescale`.
  __device__ static bool move_maxima(State& state, const Scores& s, float factor, const bool (&first_only)[2],
                                     float (&rescale)[2]) {
    float top[2], most[2];
    largest(top, s);
#pragma unroll
    for (int h = 0; h < 2; ++h) most[h] = first_only[h] && state.max[h] != -INFINITY ? INFINITY : state.max[h] + kSlack;
    if (!__any_sync(~0u, top[0] * factor > most[0] || top[1] * factor > most[1])) return false;
    share_largest(top);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] *= factor;
      if (!(top[h] > most[h])) top[h] = state.max[h];
      rescale[h] = top[h] == -INFINITY ? 1.0f : ptx::exp2_approx(state.max[h] - top[h]);
      state.max[h] = top[h];
      state.sum[h] *= rescale[h];
    }
    return true;
  }

  /// A row of the warp has seen no key yet, or none but with a score of -inf.
  __device__ static bool any_empty(const State& state) {
    return __any_sync(~0u, state.max[0] == -INFINITY || state.max[1] == -INFINITY);
  }

  /// Logits to weights.
  __device__ static void exponentiate(Scores& s, const State& state, float factor) {
    float shifted[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) shifted[h] = (state.max[h] == -INFINITY ? 0.0f : state.max[h]) - kShift;  // empty: all become 0
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) s[i] = ptx::exp2_approx(fmaf(s[i], factor, -shifted[i / 2 % 2]));
    hopper::settle(s);
  }

  /// Sums of this thread's weights, begun here and not among the exponentials.
  __device__ void add_up(float (&total)[2], const Scores& s) const {
    const float zero = hopper::zero_from_here(&shared.zero);
    float sum[2][2] = {{zero, zero}, {zero, zero}};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) sum[i / 2 % 2][i % 2] += s[i];
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h] = sum[h][0] + sum[h][1];
  }

  /// Some rows' weights came out larger than wanted: a power of two is taken off those, and off what was summed.
  __device__ static void lower_weights(Scores& s, float (&total)[2], State& state) {
    float top[2], largest_total[2] = {total[0], total[1]}, rescale[2];
    largest(top, s);
    share_largest(top);
    share_largest(largest_total);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int exponent = (__float_as_int(top[h]) >> 23) - 127 - static_cast<int>(kShift);
      const int above = largest_total[h] > kMostSum ? min(max(exponent, 0), 126) : 0;
      rescale[h] = __int_as_float((127 - above) << 23);
      state.max[h] += static_cast<float>(above);
      state.sum[h] *= rescale[h];
      total[h] *= rescale[h];
    }
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) s[i] *= rescale[i / 2 % 2];
    rescale_out(state, rescale);
  }

  /// Sums weights and packs them.
  template <typename Element>
  __device__ void sum_and_pack(Weights& p, Scores& s, State& state) const {
    float total[2];
    add_up(total, s);
    pack_weights<Element>(p, s);
    if (__any_sync(~0u, total[0] > kMostSum || total[1] > kMostSum)) {
      lower_weights(s, total, state);
      pack_weights<Element>(p, s);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) state.sum[h] += total[h];
  }

  template <typename Element>
  __device__ static void pack_weights(Weights& p, const Scores& s) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
  }

  __device__ static void rescale_out(State& state, const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) state.out[i] *= rescale[i / 2 % 2];
  }

  /// Both blocks copy into the memory of a tile that becomes free; what is converted, each converts for itself.
  __device__ static void free_tile(hopper::Barrier& barrier) {
    if constexpr (kCodes)
      free_in_block(barrier);
    else
      free_in_pair(barrier);
  }

  /// O += P V of tile `n`, whose weights are in `p`.
  template <typename Element>
  __device__ void start_tile_values(State& state, const Weights& p, const PrefillJob& job, const Work& w, const Ring& ring,
                                    int n) const {
    Tile& v = shared.v[ring.v.stage];
    hopper::wait(&shared.v_full[ring.v.stage], ring.v.parity);
    if (!w.is_easy(n)) clear_unseen(v, key_tile<kKeys>(job, n));
    start_values<Element>(state, p, v);
  }
  __device__ void free_values(Ring& ring) const {
    free_tile(shared.v_free[ring.v.stage]);
    ring.v.advance();
  }
  __device__ void free_keys(Ring& ring) const {
    free_tile(shared.k_free[ring.k.stage]);
    ring.k.advance();
  }

  /// Scores of tile `n` to weights relative to the rows' maxima; true if what was summed before is to be multiplied by `rescale`.
  /// `empty`: a row of the warp has no maximum yet.
  template <bool kPlain>
  __device__ bool weigh(Scores& s, State& state, const PrefillJob& job, const TilePart& part, const Work& w, int n,
                        float (&rescale)[2], bool& empty) const {
    const float factor = kPlain ? a.score.scale * mma::kLog2e * part.k_scale : 1.0f;  // what finish_scores() leaves to be done
    const bool easy = kPlain && w.is_easy(n);
    bool first_only[2] = {true, true};
    if (!easy) {
      const KeyTileSpan span = key_tile<kKeys>(job, n);
      finish_scores<kPlain>(s, w, job.item, span, part.k_scale);
#pragma unroll
      for (int h = 0; h < 2; ++h) first_only[h] = kPlain && sees_all(w, span, h);
    }
    bool moved = false;
    if (!easy || empty) {
      moved = move_maxima(state, s, factor, first_only, rescale);
      empty = any_empty(state);
    }
    exponentiate(s, state, factor);
    return moved;
  }

  __device__ void await_keys(const Ring& ring) const { hopper::wait(&shared.k_full[ring.k.stage], ring.k.parity); }

  /// A part of the tiles. The products of a tile's weights and values are issued with the scores of the next tile. kPlain: a loop
  /// of its own, as the code for soft caps and slopes in it would cost registers and instruction cache.
  ///
  /// The wait for the next keys parts exponentials from sums, and keeps them before the wait for products: ptxas moves both over
  /// arithmetic, but not over a loop.
  template <bool kPlain, typename Element>
  __device__ __forceinline__ void fold_tiles(State& state, const PrefillJob& job, const TilePart& part, const Work& w,
                                             const Query& query, Ring& ring) const {
    if (part.begin >= part.end) return;
    Scores s;
    Weights p;
    float rescale[2];
    bool empty = true;
    await_keys(ring);
    await_turn();
    start_scores(s, query, shared.k[ring.k.stage]);
    hand_on();
    hopper::wgmma_wait<0>();
    hopper::settle(s);
    free_keys(ring);
    if (weigh<kPlain>(s, state, job, part, w, part.begin, rescale, empty)) rescale_out(state, rescale);
    if (part.begin + 1 < part.end) await_keys(ring);
    sum_and_pack<Element>(p, s, state);
#pragma unroll 1
    for (int n = part.begin + 1; n < part.end; ++n) {
      await_turn();
      start_scores(s, query, shared.k[ring.k.stage]);
      start_tile_values<Element>(state, p, job, w, ring, n - 1);
      hand_on();
      hopper::wgmma_wait<kPlain ? 1 : 0>();  // soft caps and slopes need the registers of p
      hopper::settle(s);
      free_keys(ring);
      const bool moved = weigh<kPlain>(s, state, job, part, w, n, rescale, empty);
      if (n + 1 < part.end) await_keys(ring);
      hopper::wgmma_wait<0>();
      hopper::settle(state.out);
      free_values(ring);
      if (moved) rescale_out(state, rescale);
      sum_and_pack<Element>(p, s, state);
    }
    start_tile_values<Element>(state, p, job, w, ring, part.end - 1);
    hopper::wgmma_wait<0>();
    hopper::settle(state.out);
    free_values(ring);
  }

  /// Brings what was summed so far to real units.
  __device__ static void scale_values(State& state, float v_scale) {
    if (v_scale == 1.0f) return;
    const float both[2] = {v_scale, v_scale};
    rescale_out(state, both);
  }

  /// Both parts of the tiles.
  template <bool kPlain>
  __device__ __forceinline__ void fold_parts(State& state, const PrefillJob& job, const Work& w, const Query& query,
                                             Ring& ring) const {
    if constexpr (!kCodes) {
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        const TilePart& part = job.parts[i];
        fold_tiles<kPlain, T>(state, job, part, w, query, ring);
        scale_values(state, part.v_scale);
      }
    } else {
      fold_tiles<kPlain, Weight>(state, job, job.parts[0], w, query, ring);
      scale_values(state, job.parts[0].v_scale);
      fold_tiles<kPlain, T>(state, job, job.parts[1], w, query, ring);
    }
  }

  /// Tiles that this warpgroup has no rows for.
  __device__ void skip_tiles(const PrefillJob& job, Ring& ring) const {
    for (int n = 0; n < job.tiles(); ++n) {
      await_keys(ring);
      await_turn();
      hand_on();
      free_keys(ring);
      hopper::wait(&shared.v_full[ring.v.stage], ring.v.parity);
      free_values(ring);
    }
  }

  __device__ void fold_job(State& state, const PrefillJob& job, const Work& w, const Query& query, Ring& ring) const {
    if (job.tiles() == 0) return;
    if (w.first >= w.end)
      skip_tiles(job, ring);
    else if (w.plain)
      fold_parts<true>(state, job, w, query, ring);
    else
      fold_parts<false>(state, job, w, query, ring);
  }

  /// Which of the warp's 16 rows have sums that are infinite or NaN: bit r, of those that exist.
  __device__ static std::uint32_t not_finite(const State& state, const Work& w) {
    std::uint32_t rows = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float zero[2] = {state.sum[h] * 0.0f, 0.0f};  // x * 0 is NaN for every such x
#pragma unroll
      for (int i = 0; i < kDim / 4; ++i) zero[i % 2] = fmaf(state.out[i / 2 * 4 + 2 * h + i % 2], 0.0f, zero[i % 2]);
      const bool bad = w.first + row_in_group() + 8 * h < w.end && zero[0] + zero[1] != 0.0f;
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
    return {sum != sum ? sum : (state.max[h] - kShift) * mma::kLn2, sum};
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
      const semantics::SoftmaxState natural = natural_state(state, h);
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

  /// Chunk `chunk` of the output row at `offset`, where rows cannot be written 16 bytes at a time.
  __device__ void write_singly(std::int64_t offset, int chunk, const uint4& words) const {
    auto* const row = static_cast<std::uint16_t*>(a.output) + offset;
    const std::uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      row[(chunk * 8 + i) * a.output_strides.dim] = static_cast<std::uint16_t>(pairs[i / 2] >> i % 2 * 16);
  }

  /// The warp reads and writes nothing of the slot any more; copies may.
  __device__ void give_back(int slot) const {
    hopper::fence_shared();
    __syncwarp();
    free_in_block(shared.job_free[slot]);
  }

  /// Finished rows, through the memory of the warp's own query rows, so that whole rows are written. That memory is given back
  /// before they are, as the fence waits for all writes on their way.
  __device__ void store_rows(const State& state, const PrefillJob& job, const Work& w, int slot) const {
    constexpr std::int64_t kNowhere = INT64_MIN;
    constexpr int kChunks = kDim / 8, kTurns = kChunks / 2;
    Query& staging = shared.query[slot];
    int lane = threadIdx.x % 32, row_of_warp = group_index() * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    hopper::compute_here(lane), hopper::compute_here(row_of_warp);
    const bool bare = a.sinks.data == nullptr && a.lse == nullptr;  // nothing but sums to look at
    std::int64_t offset[2];
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.first + row_in_group() + 8 * h;
      mma::OutputRow to{kNowhere, 0.0f};
      if (row < w.end && bare) {
        const int local = row - job.item.slice.row_begin, query = query_row(job, local);
        const int head = job.item.kv_head * a.group + local - (query - job.first_query) * a.group;
        to = {a.output_strides.row(0, head, job.item.lengths.first_token + query),
              state.sum[h] == 0.0f ? 0.0f : 1.0f / state.sum[h]};
      } else if (row < w.end) {
        to = mma::finish_row(a, job.item, row, natural_state(state, h), threadIdx.x % 4 == 0);
      }
      offset[h] = to.offset, factor[h] = to.factor;
    }
    hopper::settle(factor);  // or all products with a factor of 0 are computed beside those with another
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i)
        *reinterpret_cast<std::uint32_t*>(staged(staging, row_of_warp + lane / 4 + 8 * h, i) + column() * 2) =
            T::pack(state.out[4 * i + 2 * h] * factor[h], state.out[4 * i + 2 * h + 1] * factor[h]);
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
        const std::int64_t lower = __shfl_sync(~0u, offset[0], r % 8 * 4), upper = __shfl_sync(~0u, offset[1], r % 8 * 4);
        const std::int64_t to = r < 8 ? lower : upper;
        if (to != kNowhere) write_chunk(to, chunk, words[i]);
      }
    };
    if (maps.output_chunks)  // asked once: code for the rest between these writes would cost more than they do
      write([&](std::int64_t to, int chunk, const uint4& x) {
        *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(a.output) + to + chunk * 8) = x;
      });
    else
      write([&](std::int64_t to, int chunk, const uint4& x) { write_singly(to, chunk, x); });
  }

  /// Rows of the warp, key by key.
  __device__ void store_careful(const mma::Item& item, const Work& w, std::uint32_t rows) const {
    const int first_of_warp = w.first + static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    const std::int64_t first = item.slice.num_parts > 1 ? partial_row(item) - item.slice.row_begin : 0;
#pragma unroll 1
    for (; rows != 0; rows &= rows - 1) {
      const int row = first_of_warp + __ffs(static_cast<int>(rows)) - 1;
      store_careful_row<T, kDim, kCodes>(a, item, row, first + row);
    }
  }

  /// The rows of the job in `slot`, which is given back.
  __device__ void store(State& state, const Work& w, int slot) const {
    const mma::Item item = shared.jobs[slot].item;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 1);
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 2);
    }
    const std::uint32_t again = not_finite(state, w);
    if (item.slice.num_parts > 1) {
      give_back(slot);
      store_partial(state, item, w);
    } else {
      store_rows(state, shared.jobs[slot], w, slot);
    }
    if (again != 0) {
      __syncwarp();  // what was stored of these rows is stored again
      store_careful(item, w, again);
    }
    finish(item);
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

  __device__ __forceinline__ void work_all() const {
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
      store(state, w, jobs.stage);
    }
  }
};

template <typename T, int kDim, bool kCodes>
__global__ void __launch_bounds__(PrefillMemory<kDim, kCodes>::kThreads, 1)
    attend_prefill(const __grid_constant__ gpu::AttendArgs a, const __grid_constant__ PrefillMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Memory = PrefillMemory<kDim, kCodes>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  if (threadIdx.x == 0) {
    shared.zero = 0.0f;
    shared.group_inverse = (65536 + a.group - 1) / a.group;
    Memory::init_barriers(shared);
    hopper::fence_barrier_init();
  }
  hopper::sync_cluster();
  if (!begin_turn(a)) return;
  const int rank = hopper::rank_in_cluster();
  if (threadIdx.x >= Memory::kWorkers) {
    hopper::keep_registers<Memory::kCopyRegisters>();
    std::conditional_t<kCodes, PrefillConvert<T, kDim>, PrefillCopy<kDim>>{{a, maps, shared, rank}}.copy_all();
  } else {
    hopper::take_registers<Memory::kWorkRegisters>();
    Prefill<T, kDim, kCodes>{a, maps, shared, rank}.work_all();
  }
  end_turn(a);
  hopper::sync_cluster();  // the other block copies into this one's memory and arrives at its barriers
#endif
}

}  // namespace quire::cuda::sm90
