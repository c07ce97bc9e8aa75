// SPDX-License-Identifier: Apache-2.0
// One tile of decode.h folded into the running softmax of a warpgroup: scores, weights, what not all rows see, values.
//
// Weights enter the second product in two 16-bit parts as in cuda_mma. What no row sees is zero in it. Infinities and NaN that
// some rows see and others do not are kept out of it and added in f32, so that 0 x NaN cannot reach a row that does not see the
// NaN.
//
// What a row gets is a matter of its own logits, the tiles' positions and which warpgroup has them: other rows change no bit.
#pragma once

#include "backend/cuda/mma/fold_tile.h"
#include "backend/cuda/sm90/decode_memory.h"

namespace quire::cuda::sm90 {

/// What a warpgroup does with tiles. T: of query, output and this step's rows.
template <typename T, typename Memory>
struct DecodeTiles {
  using Shared = typename Memory::Shared;
  using Ring = typename Memory::Ring;
  using Tiles = typename Memory::Tiles;
  using Tile = typename Tiles::Tile;
  using Weight = typename Tiles::Weight;
  static constexpr int kDim = Memory::kDim, kHalves = Memory::kHalves, kRows = Memory::kRows, kGroups = Memory::kGroups;
  static constexpr int kColumns = kRows / 4;  ///< of a thread
  static constexpr int kQueryBytes = Memory::kQueryBytes, kWeightBytes = Memory::kWeightBytes;
  /// e4m3fn queries are taken, too: they become f16.
  static constexpr bool kTakesCodes = Tiles::kElementBytes == 1 && T::kDType == DType::f16;
  static constexpr int kEveryone = 8;  ///< barrier of all warpgroups; 1, 2, ... are of one each
  /// How far logits may exceed what weights refer to, in base 2: f16 weights are 2^14 times as large and end at 2^16.
  static constexpr float kHeadroom = Weight::kDType == DType::f16 ? 1.0f : 8.0f;

  const gpu::AttendArgs& a;
  Shared& shared;
  const int group = kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / 128;

  /// Of this warpgroup.
  __device__ void sync_group() const { hopper::sync_at(1 + group, 128); }

  /// Where this thread is. Made anew by each function: what follows from it would else be computed before the loop over tiles,
  /// and leave it no registers. (What narrow tiles always need, they have registers for.)
  struct Place {
    std::uint32_t thread;  ///< unsigned, so that dividing it by a power of two is one instruction
    __device__ explicit Place(bool anew = true) : thread(threadIdx.x) {
      if (anew) hopper::compute_here(thread);
    }
    __device__ int lane() const { return static_cast<int>(thread % 32); }
    __device__ int warp() const { return static_cast<int>(thread / 32 % 4); }
    /// Column (score row) q; the thread's keys are 16 warp + lane / 4 + {0, 8}.
    __device__ int column(int q) const { return q / 2 * 8 + static_cast<int>(thread % 4 * 2) + q % 2; }
    __device__ int matrix_row() const { return static_cast<int>(thread / 32 % 4 * 16 + thread % 32 / 4); }
    /// Of element i of Scores.
    __device__ int key(int i) const { return matrix_row() + i % 4 / 2 * 8; }
    __device__ int dim(int half, int j) const { return Tiles::dim_of(half, j, lane(), warp()); }
  };

  struct State {
    float out[kHalves][kRows];           ///< [64 dims x 2 kRows columns] each: high parts, then low parts
    float max[kColumns], sum[kColumns];  ///< base 2, what weights refer to, see fold_tile(); the sum over this thread's keys
  };
  /// What every tile of a piece needs of the job, in registers: what it read from shared memory, it would wait for.
  struct Facts {
    int whole_begin, whole_end;
    bool plain;
    float base2;
    float units[Tiles::kScalesQuery ? kColumns : 1];  ///< what 1 in the query's row of a column stands for
    __device__ bool is_whole(int first) const { return first >= whole_begin && first + kTileKeys <= whole_end; }
  };
  __device__ Facts facts_of(const DecodeJob& w) const {
    Facts facts{w.whole_begin, w.whole_end, w.logits.plain, w.logits.base2, {}};
    if constexpr (Tiles::kScalesQuery) {
#pragma unroll
      for (int q = 0; q < kColumns; ++q) facts.units[q] = query_units(w)[Place().column(q)];
    }
    return facts;
  }

  /// Scores [64 keys x kRows]: this thread's, element i of column column_of(i).
  using Scores = float[kRows / 2];
  __device__ static constexpr int column_of(int i) { return i / 4 * 2 + i % 2; }

  /// This warpgroup's score rows.
  __device__ int first_row(const DecodeJob& w) const {
    if constexpr (!Memory::kSlices) return 0;
    return w.item.slice.row_begin + (Memory::kByRows && w.by_rows ? group * kRows : 0);
  }
  __device__ int num_rows(const DecodeJob& w) const { return min(w.item.slice.row_end - first_row(w), kRows); }
  /// The score row of a column, and its position; of the last row where there is none. Kept in no register, as they
  /// are asked for where the tile is not whole or the score not plain.
  __device__ int row_of(const DecodeJob& w, int column) const { return min(first_row(w) + column, w.item.slice.row_end - 1); }
  __device__ int q_pos(const DecodeJob& w, int column) const { return w.item.lengths.context_len + row_of(w, column) / a.group; }
  __device__ semantics::KeyRange keys_of_column(const DecodeJob& w, int column) const {
    return semantics::visible_range(q_pos(w, column), a.window);
  }

  /// Of a score row; most are of a request's first query row, and divisions take long.
  __device__ int query_row(int score_row) const { return score_row < a.group ? 0 : score_row / a.group; }

  __device__ bool is_e4m3() const { return a.cache_k.dtype == DType::fp8_e4m3fn; }

  __device__ const std::uint16_t* fresh_row(const gpu::RowSource& rows, const DecodeJob& w, int position) const {
    const std::int64_t token = w.item.lengths.first_token + position - w.item.lengths.context_len;
    return static_cast<const std::uint16_t*>(rows.data) + rows.strides.row(0, w.item.kv_head, token);
  }

  __device__ void sync_workers() const { hopper::sync_at(kEveryone, Memory::kWorkers); }
  /// All threads that use the tile at hand.
  __device__ void sync_users(const DecodeJob& w) const {
    if (Memory::kByRows && w.by_rows)
      sync_workers();
    else
      sync_group();
  }
  /// Waits for them; true if `mine` is in one.
  __device__ bool any_of(const DecodeJob& w, bool mine) const {
    if (Memory::kByRows && w.by_rows) return !hopper::all_at(kEveryone, Memory::kWorkers, !mine);
    return any_of_group(mine);
  }

  /// Of this warpgroup's rows, kRows * kQueryBytes for each 64 dims.
  __device__ Byte* query_rows(const DecodeJob& w) const {
    if constexpr (Memory::kByRows)
      if (w.by_rows && group > 0) return shared.found[group - 1].query[0];
    return shared.query[0];
  }

  /// What 1 in these rows stands for, where they are scaled.
  __device__ float* query_units(const DecodeJob& w) const { return shared.query_units[Memory::kByRows && w.by_rows ? group : 0]; }

  /// Rows of the query to shared memory, zeros where there is no row, by all warpgroups together, or each its own; past
  /// registers, as they are asked for while keys are on their way.
  __device__ void load_query(const DecodeJob& w) const {
    constexpr int kChunks = kDim / 8;
    const bool own = Memory::kByRows && w.by_rows;
    const int first = first_row(w), rows = num_rows(w), threads = own ? 128 : Memory::kWorkers;
    sync_workers();  // the last one is used up, and so is what warpgroups told each other
    Byte* const to = query_rows(w);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % threads; i < kRows * kChunks; i += threads) {
      const int row = i / kChunks, chunk = i % kChunks, from = first + (row < rows ? row : 0);
      const int query_row = this->query_row(from);
      const std::int64_t token = w.item.lengths.first_token + query_row;
      const std::int64_t at = a.query.strides.row(0, w.item.kv_head * a.group + from - query_row * a.group, token) + chunk * 8;
      const auto* dims = static_cast<const std::uint16_t*>(a.query.data) + at;
      Byte* const row_to = to + (chunk / 8 * kRows + row) * kQueryBytes;
      if constexpr (kTakesCodes) {
        if (a.query.dtype == DType::fp8_e4m3fn) {
          Tiles::put_codes(row_to, row % 8, chunk % 8, static_cast<const Byte*>(a.query.data) + at, row < rows);
          continue;
        }
      }
      if constexpr (Tiles::kScalesQuery) {
        const float unit = Tiles::put_query(row_to, row % 8, chunk % 8, dims, row < rows);
        if (chunk == 0) query_units(w)[row] = unit;
      } else {
        Tiles::copy_query(row_to, row % 8, chunk % 8, dims, row < rows);
      }
    }
    ptx::commit_copies();
    ptx::wait_copies<0>();
    hopper::fence_shared();
    sync_workers();
  }

  /// Overwrites the rows of a tile outside positions [begin, end): what is not in the cache, or must not enter a product as it
  /// is. `source(position)`: the row instead, null for zeros (which are the same in every type). Warpgroups that use the same
  /// tile write the same into it.
  template <bool kValues, typename Source>
  __device__ void patch(const DecodeJob& w, Tile& tile, int first, int begin, int end, Source&& source) const {
    constexpr int kChunks = kDim * Tiles::kElementBytes / 16;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 128; i < kTileKeys * kChunks; i += 128) {
      const int key = i / kChunks, chunk = i % kChunks, position = first + key;
      if (position >= begin && position < end) continue;
      const std::uint16_t* from = source(position);
      const uint4 dims = from != nullptr ? *reinterpret_cast<const uint4*>(from + chunk * 8) : uint4{};
      if constexpr (kValues)
        Tiles::put_values(tile, key, chunk, dims, a.page_size);
      else
        Tiles::put_keys(tile, key, chunk, dims);
    }
    hopper::fence_shared();
    sync_users(w);
  }

  __device__ void multiply_scores(Scores& s, const DecodeJob& w, const typename Tiles::Keys& keys, const Tile& k) const {
    const Byte* const query = query_rows(w);
    hopper::wgmma_begin();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const std::uint64_t rows = hopper::matrix<hopper::Swizzle::bytes128>(query + half * (kRows * kQueryBytes), 8 * kQueryBytes);
#pragma unroll
      for (int step = 0; step < 4; ++step) Tiles::multiply_keys(s, keys, k, hopper::advanced(rows, step * 32), half, step);
    }
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>();
  }

  __device__ void multiply_values(State& state, const typename Tiles::Values& values, const Tile& v, int turn) const {
    constexpr hopper::Swizzle kSwizzle = kRows == 8    ? hopper::Swizzle::bytes32
                                         : kRows == 16 ? hopper::Swizzle::bytes64
                                                       : hopper::Swizzle::bytes128;
    hopper::wgmma_begin();
    const std::uint64_t weights = hopper::matrix<kSwizzle>(shared.weights[group][turn], 8 * kWeightBytes);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int step = 0; step < kTileKeys / 16; ++step)
        Tiles::multiply_values(state.out[half], values, v, hopper::advanced(weights, step * 16 * kWeightBytes), half, step,
                               a.page_size);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>();
  }

  /// Soft cap and ALiBi: dot products to base-2 logits.
  __device__ void cap_and_slope(Scores& s, const DecodeJob& w, int first) const {
    const Place me;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const float slope = a.alibi_slopes.at(w.item.kv_head * a.group + row_of(w, me.column(q)) % a.group, 0.0f);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = q / 2 * 4 + j * 2 + q % 2;
        const auto distance = static_cast<float>(first + me.key(i) - q_pos(w, me.column(q)));
        s[i] = mma::kLog2e * semantics::score<mma::ShortTanh>(s[i], {w.logits.scale, w.logits.soft_cap}, slope, distance);
      }
    }
  }

  /// -inf for keys that a row does not see or a tile does not hold.
  __device__ void mask(Scores& s, const DecodeJob& w, int first) const {
    const Place me;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const semantics::KeyRange seen = keys_of_column(w, me.column(q));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = q / 2 * 4 + j * 2 + q % 2, position = first + me.key(i);
        if (position < seen.begin || position >= seen.end || position >= w.end_in_tiles) s[i] = -INFINITY;
      }
    }
  }

  __device__ void finish_scores(Scores& s, const DecodeJob& w, const Facts& facts, int first) const {
    if constexpr (Tiles::kScalesQuery) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) s[i] *= facts.units[column_of(i)];
    }
    if (facts.plain) [[likely]] {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) s[i] *= facts.base2;
    } else {
      cap_and_slope(s, w, first);
    }
    if (!facts.is_whole(first)) [[unlikely]]
      mask(s, w, first);
  }

  /// Nothing was seen yet where the maximum is -inf: every weight is 0 then.
  __device__ static float base_of(float max) { return max == -INFINITY ? 0.0f : max; }

  /// Makes `top` what weights of column q refer to.
  __device__ static void refer_to(State& state, int q, float top) {
    const float rescale = ptx::exp2_approx(state.max[q] - base_of(top));
    state.sum[q] *= rescale;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = q / 2 * 4 + q % 2; i < kRows; i += kRows / 2) {
        state.out[half][i] *= rescale;
        state.out[half][i + 2] *= rescale;
      }
    state.max[q] = top;
  }

  /// Makes the largest of the tile's logits what weights refer to, in columns where it is more than kHeadroom above what they
  /// referred to.
  __device__ void raise_maxima(State& state, const Scores& s) const {
    const Place me;
    auto& of_warp = shared.maxima[group];
    float top[kColumns];
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      top[q] = fmaxf(s[q / 2 * 4 + q % 2], s[q / 2 * 4 + q % 2 + 2]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) top[q] = fmaxf(top[q], __shfl_xor_sync(~0u, top[q], mask));
      if (me.lane() < 4) of_warp[me.warp()][me.column(q)] = top[q];
    }
    sync_group();
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) top[q] = fmaxf(top[q], of_warp[i][me.column(q)]);
      if (top[q] > state.max[q] + kHeadroom) refer_to(state, q, top[q]);
    }
  }

  /// The weight of a logit of column q, times 2^kWeightShift.
  __device__ static float weight_of(const State& state, float logit, int q) {
    return ptx::exp2_approx(logit - (base_of(state.max[q]) - Weight::kWeightShift));
  }

  /// Weights of the tile's logits in two parts to shared memory; their sums over this thread's keys.
  __device__ void put_weights(float (&sums)[kColumns], const State& state, const Scores& s, int turn) const {
    const Place me(/*anew=*/kRows > 8);
#pragma unroll
    for (int i = 0; i < kRows / 2; i += 2) {
      const std::uint32_t at = Tiles::weight_row(static_cast<std::uint32_t>(me.key(i)));
      const std::uint32_t swizzle = at * kWeightBytes / 128 % (kWeightBytes / 16), chunk = i / 4;
      const int q = column_of(i);
      const float x = weight_of(state, s[i], q), y = weight_of(state, s[i + 1], q + 1);
      sums[q] = i % 4 == 0 ? x : sums[q] + x, sums[q + 1] = i % 4 == 0 ? y : sums[q + 1] + y;
      const std::uint32_t high = Weight::pack(x, y);
      const float2 kept = Weight::unpack(high);
      const std::uint32_t low = Weight::pack(x - kept.x, y - kept.y);
      Byte* const row = shared.weights[group][turn] + at * kWeightBytes + me.thread % 4 * 4;
      *reinterpret_cast<std::uint32_t*>(row + (chunk ^ swizzle) * 16) = high;
      *reinterpret_cast<std::uint32_t*>(row + ((chunk + kRows / 8) ^ swizzle) * 16) = low;
    }
  }

  /// [kTileKeys][kRows] of f32 in the memory of weights that no product reads now.
  __device__ float (*exact_weights(int turn) const)[kRows] {
    static_assert(sizeof(shared.weights[0][0]) == sizeof(float[kTileKeys][kRows]));
    return reinterpret_cast<float(*)[kRows]>(shared.weights[group][turn]);
  }

  /// Adds weights[row] times value(dim) where the row sees the position; the value itself where there are no weights.
  template <typename Value>
  __device__ void add_value(State& state, const DecodeJob& w, int position, Value&& value, const float* weights) const {
    const Place me;
    float values[kHalves][2];
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int j = 0; j < 2; ++j) values[half][j] = value(me.dim(half, j));
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const semantics::KeyRange seen = keys_of_column(w, me.column(q));
      if (position < seen.begin || position >= seen.end) continue;
      const float weight = weights != nullptr ? weights[me.column(q)] : 1.0f;
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 2; ++j) state.out[half][q / 2 * 4 + j * 2 + q % 2] += weight * values[half][j];
    }
  }

  /// Infinities and NaN among the values of keys that some rows see and others do not: added to the rows that see them, and
  /// taken out of the tile. A weight is positive, so the value itself is what their product amounts to.
  __device__ void set_non_finite_apart(State& state, const DecodeJob& w, Tile& v, int first) const {
    constexpr int kChunks = kDim * Tiles::kElementBytes / 16;
    const int end = min(first + kTileKeys, min(w.span.any_end, w.end_in_tiles)) - first;
    const int begin = max(first, w.span.any_begin) - first;
    const auto is_for_all = [&](int key) { return first + key >= w.span.full_begin && first + key < w.span.full_end; };
    const auto values_of = [&](int i) { return Tiles::values_of(v, i / kChunks, i % kChunks, a.page_size); };
    bool found = false;
#pragma unroll 1
    for (int i = begin * kChunks + static_cast<int>(threadIdx.x) % 128; i < end * kChunks; i += 128) {
      if (is_for_all(i / kChunks)) continue;
      const uint4 is = values_of(i), left = Tiles::finite_of(is, is_e4m3());
      found |= is.x != left.x || is.y != left.y || is.z != left.z || is.w != left.w;
    }
    if (!any_of(w, found)) return;
#pragma unroll 1
    for (int key = begin; key < end; ++key) {
      if (is_for_all(key)) continue;
      const auto value = [&](int dim) {
        const float x = Tiles::value_at(v, key, dim, is_e4m3(), a.page_size);
        return isfinite(x) ? 0.0f : x;
      };
      add_value(state, w, first + key, value, nullptr);
    }
    sync_users(w);
#pragma unroll 1
    for (int i = begin * kChunks + static_cast<int>(threadIdx.x) % 128; i < end * kChunks; i += 128) {
      if (!is_for_all(i / kChunks))
        Tiles::put_values(v, i / kChunks, i % kChunks, Tiles::finite_of(values_of(i), is_e4m3()), a.page_size);
    }
    hopper::fence_shared();
    sync_users(w);
  }

  /// Values of a tile that is not whole: zeros where no row sees the key, this step's rows, and nothing that would spoil rows
  /// that do not see it. Products with weight 0 add 0: what a row gets does not depend on what others see.
  __device__ void prepare_values(State& state, const DecodeJob& w, Tile& v, int first) const {
    const int cached_end = min(w.span.any_end, w.item.lengths.cached_len);
    patch</*kValues=*/true>(w, v, first, w.span.any_begin, cached_end, [&](int position) -> const std::uint16_t* {
      const bool fresh = position >= w.item.lengths.cached_len && position < w.span.any_end && position >= w.span.any_begin;
      return w.fresh_in_tiles && fresh ? fresh_row(a.value, w, position) : nullptr;
    });
    if (w.span.any_begin != w.span.full_begin || w.span.any_end != w.span.full_end) set_non_finite_apart(state, w, v, first);
  }

  /// Waits until a stage holds the tile at hand. A wait names a phase of a barrier by its parity only, so the phase of two rounds
  /// ago would pass for the phase of this round. A warpgroup that used the stage itself in the last round cannot be so far ahead.
  /// If another warpgroup used it, this warpgroup waits first until that one has freed the stage.
  __device__ static void wait_for(hopper::Barrier& full, hopper::Barrier& free, const Ring& ring) {
    if (Memory::kStages % kGroups != 0) hopper::wait(&free, ring.parity() ^ 1);
    hopper::wait(&full, ring.parity());
  }

  /// One tile into the state; `turn` alternates between the tiles of this warpgroup.
  ///
  /// Weights refer to the largest logit of an earlier tile as long as no logit is more than kHeadroom above it: then one barrier
  /// of the four warps, which they need anyway to see each other's weights, says that no maximum has to be agreed upon.
  __device__ void fold_tile(State& state, const DecodeJob& w, const Facts& facts, int tile, const Ring& ring, int turn) const {
    const int first = tile * kTileKeys;
    const bool whole = facts.is_whole(first);
    const int stage = hopper::uniform(ring.stage());
    turn = hopper::uniform(turn);
    Tile& k = shared.k[stage];
    Tile& v = shared.v[stage];
    wait_for(shared.k_full[stage], shared.k_free[stage], ring);
    if (Tiles::kHoldFreshRows && !whole && w.fresh_in_tiles && first + kTileKeys > w.item.lengths.cached_len &&
        w.item.lengths.cached_len < w.span.any_end) [[unlikely]]
      patch</*kValues=*/false>(w, k, first, 0, w.item.lengths.cached_len,
                               [&](int position) { return position < w.span.any_end ? fresh_row(a.key, w, position) : nullptr; });
    Scores s;
    {
      typename Tiles::Keys keys;
      Tiles::load_keys(keys, k, is_e4m3());
      if (Tiles::kInRegisters) Memory::free_stage(shared.k_free[stage], w.by_rows);
      multiply_scores(s, w, keys, k);
      if (!Tiles::kInRegisters) Memory::free_stage(shared.k_free[stage], w.by_rows);
    }
    finish_scores(s, w, facts, first);
    float sums[kColumns];
    put_weights(sums, state, s, turn);
    bool above = false;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) above |= s[i] > state.max[column_of(i)] + kHeadroom;
    if (!whole) [[unlikely]] {  // values that are added by themselves are added to sums that refer to the maximum to be
      if (any_of_group(above)) raise_maxima(state, s), put_weights(sums, state, s, turn);
      above = false;
      wait_for(shared.v_full[stage], shared.v_free[stage], ring);
      prepare_values(state, w, v, first);
    }
    typename Tiles::Values values;
    if constexpr (Tiles::kInRegisters) {  // converted while other warps still write weights
      wait_for(shared.v_full[stage], shared.v_free[stage], ring);
      Tiles::load_values(values, v, is_e4m3(), a.page_size);
      Memory::free_stage(shared.v_free[stage], w.by_rows);
    }
    hopper::fence_shared();
    if (any_of_group(above)) {
      raise_maxima(state, s);
      put_weights(sums, state, s, turn);
      hopper::fence_shared();
      sync_group();  // all weights are there
    }
#pragma unroll
    for (int q = 0; q < kColumns; ++q) state.sum[q] += sums[q];
    if constexpr (!Tiles::kInRegisters) wait_for(shared.v_full[stage], shared.v_free[stage], ring);
    multiply_values(state, values, v, turn);
    if (!Tiles::kInRegisters) Memory::free_stage(shared.v_free[stage], w.by_rows);
  }
  /// Waits for the four warps; true if `mine` is in one thread.
  __device__ bool any_of_group(bool mine) const { return !hopper::all_at(1 + group, 128, !mine); }
};

}  // namespace quire::cuda::sm90
