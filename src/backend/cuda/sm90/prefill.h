// SPDX-License-Identifier: Apache-2.0
// Prefill on Hopper: tiles of 128 score rows (query rows x group) of one request and KV head against tiles of 128 keys.
//
// Roles: four warps draw items and copy by the tensor copy engine (TMA), a box a page (fp8 codes: prefill_convert.h); two
// warpgroups of 64 rows each multiply by wgmma:
//
//     S [64 x keys] = Q [64 x d] K^T        both from shared memory
//     O [64 x d]   += P [64 x keys] V       P from registers: what a thread has of S is what it needs of P
//
// Products overlap with softmax twice (Shah et al. 2024, arXiv:2407.08608): inside a warpgroup, O += P V of one tile runs while
// the softmax of the next is computed; between warpgroups, turns are taken at issuing products, so that one multiplies while
// another computes exponentials. Two blocks share tiles of keys: each copies half to both, as what all blocks read of the L2
// cache is near its limit. Weights are rounded to the query's type (numerics.md, "Rounded weights"). Pairs of blocks draw
// items of the list until none is left, ahead of the products; an item is begun beside the last product of the one before, and
// its rows are written by tensor copies (prefill_end.h).
#pragma once

#include <type_traits>

#include "backend/cuda/sm90/prefill_convert.h"
#include "backend/cuda/sm90/prefill_copy.h"
#include "backend/cuda/sm90/prefill_end.h"
#include "backend/cuda/sm90/turns.h"
#include "backend/cuda/sm90/wgmma.h"

namespace quire::cuda::sm90 {

template <typename T, int kDim_, CacheKind kCache>
struct Prefill : PrefillEnd<T, kDim_, kCache> {
  using Base = PrefillEnd<T, kDim_, kCache>;
  using Base::a, Base::shared, Base::kDim, Base::kHalves, Base::kRowBytes, Base::kShift;
  using Base::column, Base::group_index, Base::query_row, Base::row_in_group, Base::rows_of;
  using typename Base::Memory;
  using typename Base::Query;
  using typename Base::Rows;
  using typename Base::State;
  using typename Base::Totals;
  using typename Base::Weight;
  using Tile = typename Memory::Tile;
  using JobRing = typename Memory::JobRing;
  static constexpr int kGroups = Memory::kGroups, kKeys = Memory::kKeys;
  static constexpr bool kCodes = Memory::kCodes;
  static constexpr bool kPackedValues = Memory::kPacked, kPackedKeys = Memory::kPacked && !kCodes;  ///< tiles of cached ones
  using KeyLayout = PackedKeys<kDim, 2>;
  using ValueLayout = PackedValues<kDim, 2>;
  /// Jobs are begun before the one before them is closed: there are slots for their queries, and all tiles have the same types.
  static constexpr bool kBeside = !kCodes && Memory::kJobs > 1;
  template <typename Element>
  static constexpr bool is_f16 = Element::kDType == DType::f16;

  struct Ring {
    typename Memory::Ring k, v;
  };

  /// Turns at issuing products. Each warpgroup takes one for every tile and hands on to the next.
  __device__ static void await_turn() { hopper::sync_at(2 + group_index(), 256); }
  __device__ static void hand_on() { hopper::arrive_at(2 + (group_index() + 1) % kGroups, 256); }

  /// What the loop over tiles needs; the rest is looked up where it is needed, as registers are scarce.
  struct Work {
    int first;                 ///< score row of the warpgroup
    int easy_begin, easy_end;  ///< tiles of the job, from the cache, whose every key is seen by all of its rows
    int row_end[2];            ///< of keys that this thread's rows see
    float factor;              ///< of dot products with cached keys, if the softmax scale is all that is done to them

    __device__ bool is_easy(int n) const { return n >= easy_begin && n < easy_end; }
  };

  __device__ Work work_of(const PrefillJob& job) const {
    const gpu::WorkSlice& slice = job.item.slice;
    const auto [first, end] = rows_of(slice);
    const int context = job.item.lengths.context_len, local = first - slice.row_begin;
    const semantics::KeyRange of_first = semantics::visible_range(context + query_row(job, local), a.window);
    const semantics::KeyRange of_last = semantics::visible_range(context + query_row(job, end - 1 - slice.row_begin), a.window);
    const int before = job.first_cached + (job.cached_end - 1) / kKeys;  // tile n holds keys from (before - n) kKeys on
    const int seen_begin = max(slice.key_begin, static_cast<int>(of_last.begin));
    const int seen_end = min(job.cached_end, static_cast<int>(of_first.end));
    Work w{first, 0, 0, {}, a.score.scale * mma::kLog2e * job.k_scale};
    w.easy_begin = max(before + 1 - seen_end / kKeys, job.first_cached);
    w.easy_end = before + 1 - (seen_begin + kKeys - 1) / kKeys;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      w.row_end[h] = context + query_row(job, min(local + row_in_group() + 8 * h, slice.row_end - 1 - slice.row_begin)) + 1;
    return w;
  }

  /// Some functions take scores of the tile's first keys alone, kCount of a thread's.
  using Scores = float[kKeys / 2];           ///< index 4 i + 2 h + e
  using Weights = std::uint32_t[kKeys / 4];  ///< pairs in the order in which wgmma takes them as A

  /// Tiles lie as in a packed cache, or as rows, which this step's keys and values are. A loop over tiles of one form asks no
  /// tile for its form, and the descriptors of its products are additions of constants.
  enum class Form { rows, packed, either };
  static constexpr Form kAny = Memory::kPacked ? Form::either : Form::rows;  ///< form of a job's tiles

  /// True if tile `n` lies as in a packed cache. The reduction tells ptxas that all threads have the same answer.
  template <Form kForm>
  __device__ static bool is_packed(const PrefillJob& job, bool easy, int n) {
    if constexpr (kForm != Form::either) return kForm == Form::packed;
    return __reduce_or_sync(~0u, easy || !job.is_fresh(n)) != 0;
  }

  /// What the scores of a tile are multiplied from. The fence is not for them: where a warp is known to be together ptxas finds
  /// addresses once, in uniform registers.
  struct Operands {
    hopper::Matrix rows, keys;
    int half_bytes = 0, step_bytes = 0;  ///< of keys that may be packed: from 64 dims to the next, and from 16
  };
  __device__ Operands operands(const Query& query, const Ring& ring, bool packed) const {
    const auto& k = shared.k[ring.k.stage].halves[0];
    hopper::wgmma_begin();
    if constexpr (!kPackedKeys)
      return {hopper::Matrix(query.halves[0] + group_index() * 64 * kRowBytes, 8 * kRowBytes), hopper::Matrix(k, 8 * kRowBytes)};
    return {hopper::Matrix(query.halves[0] + group_index() * 64 * kRowBytes, 8 * kRowBytes),
            packed ? hopper::Matrix(k, KeyLayout::kGroupBytes, KeyLayout::kChunkBytes, hopper::Swizzle::none)
                   : hopper::Matrix(k, 8 * kRowBytes),
            packed ? 8 * KeyLayout::kChunkBytes : static_cast<int>(sizeof(Tile::halves[0])),
            packed ? 2 * KeyLayout::kChunkBytes : 32};
  }

  template <int kCount>
  __device__ static void start_scores(float (&s)[kCount], const Operands& from) {
    hopper::wgmma_begin();
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int keys = kPackedKeys ? half * from.half_bytes + step * from.step_bytes
                                     : half * static_cast<int>(sizeof(Tile::halves[0])) + step * 32;
        hopper::multiply_shared<is_f16<T>>(s, from.rows.at(half * sizeof(Query::halves[0]) + step * 32), from.keys.at(keys),
                                           half + step);
      }
    hopper::wgmma_commit();
  }

  template <typename Element, int kCount, bool kPacked>
  __device__ void multiply_values(State& state, const Weights& p, const hopper::Matrix& values) const {
    hopper::wgmma_begin();
#pragma unroll
    for (int step = 0; step < kCount / 16; ++step)
      hopper::multiply_registers<is_f16<Element>, !kPacked>(
          state.out, p + 4 * step, values.at(kPacked ? ValueLayout(a.page_size).step(step) : step * 16 * kRowBytes));
    hopper::wgmma_commit();
  }
  template <typename Element, bool kPacked, bool kWhole>
  __device__ void multiply_values(State& state, const Weights& p, const hopper::Matrix& values, bool half) const {
    if (kBeside && !kWhole && __reduce_or_sync(~0u, half) != 0)  // it is the same in all threads, and ptxas knows it by that
      multiply_values<Element, kKeys / 2, kPacked>(state, p, values);
    else
      multiply_values<Element, kKeys, kPacked>(state, p, values);
  }
  /// `half`: of the tile's first half alone. kWhole: that is never asked for.
  template <typename Element, bool kWhole = false>
  __device__ void start_values(State& state, const Weights& p, const Tile& v, bool half, bool packed) const {
    const ValueLayout layout(a.page_size);
    hopper::wgmma_begin();
    if (kPackedValues && packed)
      multiply_values<Element, kPackedValues, kWhole>(
          state, p, hopper::Matrix(v.halves[0], layout.stride(), 16, layout.swizzle_mode()), half);
    else
      multiply_values<Element, false, kWhole>(state, p, hopper::Matrix(v.halves[0], 8 * kRowBytes, sizeof(v.halves[0])), half);
  }

  /// What is not a key of the span is zeros in V, of its first `keys` rows: 0 times what lay there before could be NaN. All
  /// warpgroups write the same.
  __device__ void clear_unseen(Tile& v, const KeyTileSpan& span, int keys) const {
    const int begin = span.begin - span.first, end = span.end - span.first;
    if (begin <= 0 && end >= keys) return;
    if (kPackedValues && !span.fresh)
      clear_packed(v, begin, end, keys);
    else
      clear_rows(v, begin, end, keys);
    hopper::fence_shared();
    hopper::sync_at(5 + group_index(), 128);
  }
  /// 8 tokens of a dim at a time: those that are not all seen, at the beginning of the tile and at its end.
  __device__ void clear_packed(Tile& v, int begin, int end, int keys) const {
    clear_eights(v, 0, min(max(begin + 7, 0), keys) / 8, begin, end);
    clear_eights(v, max(end, 0) / 8, keys / 8, begin, end);
  }
  __device__ void clear_eights(Tile& v, int from, int to, int begin, int end) const {
    const ValueLayout layout(a.page_size);
    for (int i = threadIdx.x % 128; i < (to - from) * kDim; i += 128) {
      const int first = (from + i / kDim) * 8;
      auto* const tokens = reinterpret_cast<uint4*>(v.halves[0] + layout.element(first, i % kDim));
      if (first + 8 <= begin || first >= end) {
        *tokens = uint4{};
        continue;
      }
      const auto kept = [&](int key) { return key >= begin && key < end ? 0xFFFFu : 0u; };
      const auto pair = [&](int key) { return kept(key) | kept(key + 1) << 16; };
      const uint4 is = *tokens;
      *tokens = {is.x & pair(first), is.y & pair(first + 2), is.z & pair(first + 4), is.w & pair(first + 6)};
    }
  }
  __device__ static void clear_rows(Tile& v, int begin, int end, int keys) {
    for (int i = threadIdx.x % 128; i < keys * 8; i += 128) {
      const int key = i / 8;
      if (key >= begin && key < end) continue;
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        *reinterpret_cast<uint4*>(v.halves[half] + key * kRowBytes + i % 8 * 16) = uint4{};
    }
  }

  /// k_scale, soft cap and ALiBi.
  template <int kCount>
  __device__ void cap_and_slope(float (&s)[kCount], const Work& w, const mma::Item& item, int first, float k_scale) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.first + row_in_group() + 8 * h;
      const float slope = a.alibi_slopes.at(item.kv_head * a.group + row % a.group, 0.0f);
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
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
  template <bool kPlain, int kCount>
  __device__ void finish_scores(float (&s)[kCount], const Work& w, const mma::Item& item, const KeyTileSpan& span,
                                float k_scale) const {
    const int first = span.first + column();
    if constexpr (!kPlain) cap_and_slope(s, w, item, first, k_scale);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const semantics::KeyRange seen = semantics::visible_range(w.row_end[h] - 1, a.window);
      const int begin = max(static_cast<int>(seen.begin), span.begin) - first, end = min(w.row_end[h], span.end) - first;
      const std::uint32_t hidden = ~columns_below(end) | columns_below(begin);
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i)
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
  template <int kCount>
  __device__ static void largest(float (&top)[2], const float (&s)[kCount]) {
    float of[2][4];
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i)
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
  static constexpr float kSlack = 8.0f, kMostSum = 32768.0f;
  static_assert(kShift == (is_f16<Weight> ? 7.0f : 0.0f));

  /// Moves the maxima of rows that have outgrown them (`first_only`: only if they had none); true if one of the warp's did.
  /// What was summed before is to be multiplied by `rescale`.
  template <int kCount>
  __device__ static bool move_maxima(Totals& state, const float (&s)[kCount], float factor, const bool (&first_only)[2],
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
  __device__ static bool any_empty(const Totals& state) {
    return __any_sync(~0u, state.max[0] == -INFINITY || state.max[1] == -INFINITY);
  }

  /// Logits to weights.
  template <int kCount>
  __device__ static void exponentiate(float (&s)[kCount], const Totals& state, float factor) {
    float shifted[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) shifted[h] = (state.max[h] == -INFINITY ? 0.0f : state.max[h]) - kShift;  // empty: all become 0
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = ptx::exp2_approx(fmaf(s[i], factor, -shifted[i / 2 % 2]));
    hopper::settle(s);
  }

  /// Sums of this thread's weights, begun here and not among the exponentials.
  template <int kCount>
  __device__ void add_up(float (&total)[2], const float (&s)[kCount]) const {
    const float zero = hopper::zero_from_here(&shared.zero);
    float sum[2][2] = {{zero, zero}, {zero, zero}};
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i / 2 % 2][i % 2] += s[i];
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

  template <typename Element, int kCount>
  __device__ static void pack_weights(Weights& p, const float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
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

  /// O += P V of tile `n`, whose weights are in `p`; of its first half alone where no row sees more (`half`).
  template <typename Element, Form kForm>
  __device__ void start_tile_values(State& state, const Weights& p, const PrefillJob& job, bool easy, bool half, const Ring& ring,
                                    int n) const {
    Tile& v = shared.v[ring.v.stage];
    hopper::wait(&shared.v_full[ring.v.stage], ring.v.parity);
    if (!easy) clear_unseen(v, key_tile<kKeys>(job, n), kBeside && half ? kKeys / 2 : kKeys);
    start_values<Element, kForm != kAny>(state, p, v, half, is_packed<kForm>(job, easy, n));
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
  template <bool kPlain, int kCount>
  __device__ bool weigh(float (&s)[kCount], Totals& state, const PrefillJob& job, const Work& w, int n, float (&rescale)[2],
                        bool& empty) const {
    float factor = kPlain ? w.factor : 1.0f;  // what finish_scores() leaves to be done
    const bool easy = kPlain && w.is_easy(n);
    bool first_only[2] = {true, true};
    if (!easy) {
      const KeyTileSpan span = key_tile<kKeys>(job, n);
      if (kPlain && span.fresh) factor = a.score.scale * mma::kLog2e;
      finish_scores<kPlain>(s, w, job.item, span, span.fresh ? 1.0f : job.k_scale);
#pragma unroll
      for (int h = 0; h < 2; ++h) first_only[h] = kPlain && sees_all(w, span, h);
    }
    bool moved = false;
    if (!easy || empty) {
      moved = move_maxima(state, s, factor, first_only, rescale);
      empty = any_empty(state);
      if (n == job.scaled_at) {
#pragma unroll
        for (int h = 0; h < 2; ++h) rescale[h] = moved ? rescale[h] * job.v_scale : job.v_scale;
        moved = true;
      }
    }
    exponentiate(s, state, factor);
    return moved;
  }

  __device__ void await_keys(const Ring& ring) const { hopper::wait(&shared.k_full[ring.k.stage], ring.k.parity); }

  /// Tile `n`, with nothing beside it.
  ///
  /// The wait for the next keys parts exponentials from sums, and keeps them before the wait for products: ptxas moves both over
  /// arithmetic, but not over a loop.
  template <bool kPlain, typename Element, Form kForm>
  __device__ __forceinline__ void begin_alone(State& state, Weights& p, bool& empty, const PrefillJob& job, const Work& w, int n,
                                              int end, const Query& query, Ring& ring) const {
    Scores s;
    float rescale[2];
    await_keys(ring);
    const Operands from = operands(query, ring, is_packed<kForm>(job, false, n));
    await_turn();
    start_scores(s, from);
    hand_on();
    hopper::wgmma_wait<0>();
    hopper::settle(s);
    free_keys(ring);
    if (weigh<kPlain>(s, state, job, w, n, rescale, empty)) rescale_out(state, rescale);
    if (n + 1 < end) await_keys(ring);
    sum_and_pack<Element>(p, s, state);
  }

  /// The job's first tile, kCount keys of it. Its scores are multiplied beside the last weights and values of the job before, if
  /// one is open; nothing comes of that product otherwise. `w` and `half` are of that one before, and of this one afterwards.
  template <int kCount>
  __device__ __forceinline__ Totals begin_beside(State& state, Weights& p, Work& w, bool& half, bool& empty,
                                                 const PrefillJob& job, const Query& query, Ring& ring,
                                                 const PrefillJob* open) const {
    float s[kCount / 2], rescale[2];
    await_keys(ring);
    const Operands from = operands(query, ring, is_packed<kAny>(job, false, 0));
    await_turn();
    start_scores(s, from);
    if (open != nullptr)
      start_tile_values<T, kAny>(state, p, *open, w.is_easy(open->tiles() - 1), half, ring, open->tiles() - 1);
    else
      start_values<T>(state, p, shared.v[ring.v.stage], half, false);
    hand_on();
    half = kCount < kKeys;
    w = work_of(job);
    hopper::wgmma_wait<1>();
    hopper::settle(s);
    free_keys(ring);
    Totals totals;
    empty = true;
    weigh<true>(s, totals, job, w, 0, rescale, empty);
    if (job.tiles() > 1) await_keys(ring);
    add_up(totals.sum, s);  // none is above kMostSum: maxima of a first tile are looked at
    hopper::wgmma_wait<0>();
    hopper::settle(state.out);
    if (open != nullptr) free_values(ring);
    pack_weights<T>(p, s);
    return totals;
  }

  /// Tiles [begin, end) and the values of the tile before. The products of a tile's weights and values are issued with the scores
  /// of the next tile. `last`: the end of the job's tiles of this type.
  template <bool kPlain, typename Element, Form kForm>
  __device__ __forceinline__ void fold_tiles(State& state, Weights& p, bool& empty, bool& half, const PrefillJob& job,
                                             const Work& w, int begin, int end, int last, const Query& query, Ring& ring) const {
    Scores s;
    float rescale[2];
#pragma unroll 1
    for (int n = begin; n < end; ++n) {
      const Operands from = operands(query, ring, is_packed<kForm>(job, w.is_easy(n), n));
      await_turn();
      start_scores(s, from);
      start_tile_values<Element, kForm>(state, p, job, w.is_easy(n - 1), half, ring, n - 1);
      hand_on();
      half = false;
      hopper::wgmma_wait<kPlain ? 1 : 0>();  // soft caps and slopes need the registers of p
      hopper::settle(s);
      free_keys(ring);
      const bool moved = weigh<kPlain>(s, state, job, w, n, rescale, empty);
      if (n + 1 < last) await_keys(ring);
      hopper::wgmma_wait<0>();
      hopper::settle(state.out);
      free_values(ring);
      if (moved) rescale_out(state, rescale);
      sum_and_pack<Element>(p, s, state);
    }
  }

  /// Tiles of keys: jobs of at least so many cached ones fold them in a loop of their own. Chosen from two runs on an H100
  /// (docs/lab/2026-11-25-packed.md): jobs of 65 to 80 tiles took 3 to 9 % less time with the loop, jobs of ten tiles 5 % more.
  /// A wrong number costs time and no bit.
  static constexpr int kLongJob = 24;
  /// Folds all tiles but the first of a job whose tiles are of one type. A loop for cached tiles of a packed cache begins where
  /// neither the scores' tile nor the values' tile can be one of rows, and no tile is half seen any more.
  template <bool kPlain>
  __device__ __forceinline__ void fold_forms(State& state, Weights& p, bool& empty, bool& half, const PrefillJob& job,
                                             const Work& w, const Query& query, Ring& ring) const {
    const int tiles = job.tiles();
    if constexpr (!kPlain || kAny != Form::either)
      return fold_tiles<kPlain, T, kAny>(state, p, empty, half, job, w, 1, tiles, tiles, query, ring);
    const bool rows_last = job.fresh_tiles > 0 && job.first_fresh > 0;
    const bool apart = job.cached_tiles >= kLongJob && !rows_last;
    const int cached = apart ? max(job.first_cached, 1) + 1 : tiles;
    fold_tiles<kPlain, T, kAny>(state, p, empty, half, job, w, 1, cached, tiles, query, ring);
    fold_tiles<kPlain, T, Form::packed>(state, p, empty, half, job, w, cached, tiles, tiles, query, ring);
  }

  /// The last tile's weights and values, with nothing beside them.
  template <typename Element, Form kForm>
  __device__ void end_tiles(State& state, const Weights& p, const PrefillJob& job, const Work& w, bool half, int n,
                            Ring& ring) const {
    start_tile_values<Element, kForm>(state, p, job, w.is_easy(n), half, ring, n);
    hopper::wgmma_wait<0>();
    hopper::settle(state.out);
    free_values(ring);
  }

  /// Tiles [begin, end), all of a type.
  template <bool kPlain, typename Element, Form kForm>
  __device__ __forceinline__ void fold_alone(State& state, const PrefillJob& job, const Work& w, int begin, int end,
                                             const Query& query, Ring& ring) const {
    if (begin >= end) return;
    Weights p;
    bool empty = true, half = false;
    begin_alone<kPlain, Element, kForm>(state, p, empty, job, w, begin, end, query, ring);
    fold_tiles<kPlain, Element, kForm>(state, p, empty, half, job, w, begin + 1, end, end, query, ring);
    end_tiles<Element, kForm>(state, p, job, w, half, end - 1, ring);
  }
  template <bool kPlain>
  __device__ __forceinline__ void fold_job(State& state, const PrefillJob& job, const Work& w, const Query& query,
                                           Ring& ring) const {
    const int border = kCodes ? job.first_fresh : job.tiles();
    fold_alone<kPlain, Weight, kAny>(state, job, w, 0, border, query, ring);
    if constexpr (kCodes) fold_alone<kPlain, T, kAny>(state, job, w, border, job.tiles(), query, ring);
  }

  /// The warpgroup's rows of an e4m3fn query to where tensor copies put 16-bit ones, as f16. Rows that do not exist become zeros.
  __device__ void convert_query(Query& query, const PrefillJob& job, const Rows& rows) const {
    constexpr int kChunks = kDim / 16, kTurns = 64 * kChunks / 128;  // chunks of 16 codes
    uint4 codes[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int at = static_cast<int>(threadIdx.x) % 128 + i * 128, row = at / kChunks;
      const bool exists = rows.first + row < rows.end;
      const auto place = this->place_of(job, rows.first - job.item.slice.row_begin + (exists ? row : 0));
      const std::int64_t from = a.query.strides.row(0, place.head, place.token) + at % kChunks * 16;
      codes[i] = exists ? *reinterpret_cast<const uint4*>(static_cast<const unsigned char*>(a.query.data) + from) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int at = static_cast<int>(threadIdx.x) % 128 + i * 128, row = at / kChunks, chunk = at % kChunks * 2;
      unsigned char* const to = query.halves[chunk / 8] + (group_index() * 64 + row) * kRowBytes;
      PrefillConvert<T, kDim, kCache>::template convert_chunk<mma::F16, true>(to, (chunk % 8 ^ row % 8) * 16, codes[i]);
    }
    hopper::fence_shared();
    hopper::sync_at(5 + group_index(), 128);
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

  /// One job after the other.
  __device__ __forceinline__ void work_alone() const {
    Ring ring;
    JobRing jobs;
    for (;; jobs.advance()) {
      hopper::wait(&shared.job_full[jobs.stage], jobs.parity);
      const PrefillJob& job = shared.jobs[jobs.stage];
      if (job.cached_tiles == kNoMoreJobs) return;
      const Rows rows = rows_of(job.item.slice);
      Query& query = shared.query[jobs.stage % Memory::kQueries];
      if constexpr (kCodes && is_f16<T>)
        if (a.query.dtype == DType::fp8_e4m3fn && rows.first < rows.end) convert_query(query, job, rows);
      State state;
      if (rows.first >= rows.end)
        skip_tiles(job, ring);
      else if (job.plain)
        fold_job<true>(state, job, work_of(job), query, ring);
      else
        fold_job<false>(state, job, work_of(job), query, ring);
      if (this->close(state, jobs.stage)) this->give_back_written(jobs.stage);
    }
  }

  /// No row of the warpgroup sees more than the first half of the job's first tile.
  __device__ bool sees_half(const PrefillJob& job, const Rows& rows) const {
    const KeyTileSpan span = key_tile<kKeys>(job, 0);
    const int seen_end = job.item.lengths.context_len + query_row(job, rows.end - 1 - job.item.slice.row_begin) + 1;
    return min(span.end, seen_end) - span.first <= kKeys / 2;
  }

  /// Each job is begun before the one before it is closed, in the slot `open`.
  __device__ __forceinline__ void work_beside() const {
    constexpr int kNone = -1;
    Ring ring;
    JobRing jobs;
    State state;
    Weights p = {};
    Work w = {};
    int open = kNone, written = kNone;  // slots: the latter's rows are being read
    bool half = false;                  // of the tile whose weights are in p, only half is seen
    bool pending = false;               // those weights are of the open job, and not multiplied yet
    for (;; jobs.advance()) {
      if (written != kNone) this->give_back_written(written);
      hopper::wait(&shared.job_full[jobs.stage], jobs.parity);
      const PrefillJob& job = shared.jobs[jobs.stage];
      const Query& query = shared.query[jobs.stage];
      const bool none = job.cached_tiles == kNoMoreJobs;
      const Rows rows = rows_of(job.item.slice);
      const bool mine = !none && rows.first < rows.end && job.tiles() > 0, plain = mine && job.plain;
      const PrefillJob* const before = pending ? &shared.jobs[open] : nullptr;
      Totals totals;
      bool empty = true;
      if (plain)
        totals = sees_half(job, rows) ? begin_beside<kKeys / 2>(state, p, w, half, empty, job, query, ring, before)
                                      : begin_beside<kKeys>(state, p, w, half, empty, job, query, ring, before);
      else if (pending)
        end_tiles<T, kAny>(state, p, *before, w, half, before->tiles() - 1, ring);
      written = open != kNone && this->close(state, open) ? open : kNone;
      if (none) return;
      state = State{totals};
      open = jobs.stage, pending = mine;
      if (plain) {
        fold_forms<true>(state, p, empty, half, job, w, query, ring);
      } else if (mine) {
        half = false;
        w = work_of(job);
        begin_alone<false, T, kAny>(state, p, empty, job, w, 0, job.tiles(), query, ring);
        fold_forms<false>(state, p, empty, half, job, w, query, ring);
      } else {
        skip_tiles(job, ring);
      }
    }
  }

  __device__ __forceinline__ void work() const {
    if (group_index() == kGroups - 1) hand_on();  // the first turn is the first warpgroup's
    if constexpr (kBeside)
      work_beside();
    else
      work_alone();
    hopper::await_writes();
  }
};

template <typename T, int kDim, CacheKind kCache>
__global__ void __launch_bounds__(PrefillMemory<kDim, kCache>::kThreads, 1)
    attend_prefill(const __grid_constant__ gpu::AttendArgs a, const __grid_constant__ PrefillMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Memory = PrefillMemory<kDim, kCache>;
  using Convert = PrefillConvert<T, kDim, kCache>;
  using Copy = std::conditional_t<Memory::kCodes, PrefillCodes<kDim, kCache>, PrefillCopy<kDim, kCache>>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  if (trails_nothing(a)) return end_turn(a);
  if (threadIdx.x == 0) {
    shared.zero = 0.0f;
    shared.group_inverse = (65536 + a.group - 1) / a.group;
    Memory::init_barriers(shared);
    hopper::fence_barrier_init();
  }
  hopper::sync_cluster();
  if (!begin_turn(a)) return;
  // No request is for this list, which a plan without bounds has for whatever may come.
  if (a.work.turn == gpu::Turn::alone && *static_cast<const volatile std::int32_t*>(a.work.num_slices) == 0) return;
  const int rank = hopper::rank_in_cluster();
  if (Memory::kFour && threadIdx.x >= Memory::kConverters) {
    hopper::keep_registers<Memory::kConvertRegisters>();
    if constexpr (Memory::kFour) Convert{{a, maps, shared, rank}}.convert_all();
  } else if (threadIdx.x >= Memory::kWorkers) {
    hopper::keep_registers<Memory::kCopyRegisters>();
    if (!Memory::kFour && Memory::kCodes && threadIdx.x >= Memory::kConverters) {
      if constexpr (!Memory::kFour && Memory::kCodes) Convert{{a, maps, shared, rank}}.convert_all();
    } else {
      Copy{{a, maps, shared, rank}}.copy_all();
    }
  } else {
    hopper::take_registers<Memory::kWorkRegisters>();
    Prefill<T, kDim, kCache>{{a, maps, shared, rank}}.work();
  }
  end_turn(a);
  hopper::sync_cluster();  // the other block copies into this one's memory and arrives at its barriers
#endif
}

}  // namespace quire::cuda::sm90
