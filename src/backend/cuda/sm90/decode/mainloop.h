// SPDX-License-Identifier: Apache-2.0
// One tile of decode into the running softmax of a warpgroup: scores, weights, values.
//
// Weights enter the second product in two 16-bit parts as in cuda_mma. A row gets its bits from its own logits, from the
// positions of the tiles and from the warpgroup that takes them: other rows change no bit.
#pragma once

#include "backend/cuda/sm90/decode/partial_tile.h"
#include "backend/cuda/sm90/decode/softmax.h"
#include "backend/cuda/sm90/decode/warpgroup.h"

namespace quire::cuda::sm90::decode {

/// Facts of a piece that every tile needs, in registers: a thread would wait for a read from shared memory.
template <typename Memory>
struct Facts {
  using Tiles = typename Memory::Tiles;
  static constexpr int kColumns = Softmax<Memory>::kColumns;

  int full_begin, full_end;
  bool plain;
  float base2;
  float units[Tiles::kScalesQuery ? kColumns : 1];  ///< value of 1 in the query's row of a column
  __device__ bool is_full(int first) const { return first >= full_begin && first + kTileKeys <= full_end; }
};

template <typename Memory>
__device__ inline Facts<Memory> facts_of(const Warpgroup<Memory>& group, const Job& job) {
  Facts<Memory> facts{job.full_begin, job.full_end, job.logits.plain, job.logits.base2, {}};
  if constexpr (Memory::Tiles::kScalesQuery) {
#pragma unroll
    for (int q = 0; q < Facts<Memory>::kColumns; ++q)
      facts.units[q] = group.query_units(job)[Lane<typename Memory::Tiles>().column(q)];
  }
  return facts;
}

template <typename Memory>
struct Mainloop {
  using Shared = typename Memory::Shared;
  using Ring = typename Memory::Ring;
  using Tiles = typename Memory::Tiles;
  using Tile = typename Tiles::Tile;
  using Weight = typename Tiles::Weight;
  using Me = Lane<Tiles>;
  using Online = Softmax<Memory>;
  using State = typename Online::State;
  using Scores = typename Online::Scores;
  static constexpr int kHalves = Memory::kHalves, kRows = Memory::kRows, kGroups = Memory::kGroups;
  static constexpr int kColumns = Online::kColumns;
  static constexpr int kQueryBytes = Memory::kQueryBytes, kWeightBytes = Memory::kWeightBytes;

  const gpu::AttendArgs& a;
  Shared& shared;
  const Warpgroup<Memory>& group;

  /// Scores of two heads' keys with all rows; each row keeps those with its own head.
  __device__ void multiply_scores_of_heads(Scores& s, const Job& job, const typename Tiles::Keys& keys, const Tile& k) const {
    static_assert(kHalves == 1);
    const std::uint64_t rows = hopper::matrix<hopper::Swizzle::bytes128>(group.query_rows(job), 8 * kQueryBytes);
    Scores second;
    hopper::wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Tiles::multiply_keys(s, keys, k, hopper::advanced(rows, step * 32), 0, step);
      Tiles::multiply_keys(second, keys, k, hopper::advanced(rows, step * 32), 1, step);
    }
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i)
      if (Online::is_second_head(Online::column_of(i), a.group / 2)) s[i] = second[i];
  }

  __device__ void multiply_scores(Scores& s, const Job& job, const typename Tiles::Keys& keys, const Tile& k) const {
    if constexpr (Memory::kHeads > 1) return multiply_scores_of_heads(s, job, keys, k);
    const Byte* const query = group.query_rows(job);
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
    const std::uint64_t weights = hopper::matrix<kSwizzle>(shared.weights[group.index][turn], 8 * kWeightBytes);
#pragma unroll
    for (int half = 0; half < Online::kSums; ++half)
#pragma unroll
      for (int step = 0; step < kTileKeys / 16; ++step)
        Tiles::multiply_values(state.out[half], values, v, hopper::advanced(weights, step * 16 * kWeightBytes), half, step,
                               a.page_size);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>();
  }

  /// Soft cap and ALiBi: dot products to base-2 logits.
  __device__ void cap_and_slope(Scores& s, const Job& job, int first) const {
    const Me me;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const float slope = a.alibi_slopes.at(job.item.kv_head * a.group + group.row_of(job, me.column(q)) % a.group, 0.0f);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = q / 2 * 4 + j * 2 + q % 2;
        const auto distance = static_cast<float>(first + me.key(i) - group.q_pos(job, me.column(q)));
        s[i] = tile::rounded_product(
            semantics::score<tile::ShortTanh>(s[i], {job.logits.scale, job.logits.soft_cap}, slope, distance), tile::kLog2e);
      }
    }
  }

  /// -inf for keys that a row does not see or a tile does not hold.
  __device__ void mask(Scores& s, const Job& job, int first) const {
    const Me me;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const semantics::KeyRange seen = group.keys_of_column(job, me.column(q));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = q / 2 * 4 + j * 2 + q % 2, position = first + me.key(i);
        if (position < seen.begin || position >= seen.end || position >= job.end_in_tiles) s[i] = -INFINITY;
      }
    }
  }

  __device__ void finish_scores(Scores& s, const Job& job, const Facts<Memory>& facts, int first) const {
    if constexpr (Tiles::kScalesQuery) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) s[i] *= facts.units[Online::column_of(i)];
    }
    if (facts.plain) [[likely]] {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) s[i] = tile::rounded_product(s[i], facts.base2);
    } else {
      cap_and_slope(s, job, first);
    }
    if (!facts.is_full(first)) [[unlikely]]
      mask(s, job, first);
  }

  /// Makes the largest logit of the tile the maximum of columns whose maximum it exceeds by more than kHeadroom.
  __device__ void raise_maxima(State& state, const Scores& s) const {
    const Me me;
    auto& of_warp = shared.maxima[group.index];
    float top[kColumns];
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      top[q] = fmaxf(s[q / 2 * 4 + q % 2], s[q / 2 * 4 + q % 2 + 2]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) top[q] = fmaxf(top[q], __shfl_xor_sync(~0u, top[q], mask));
      if (me.lane() < 4) of_warp[me.warp()][me.column(q)] = top[q];
    }
    group.sync();
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) top[q] = fmaxf(top[q], of_warp[i][me.column(q)]);
      if (top[q] > Online::limit_of(state.max[q])) Online::rescale(state, q, top[q]);
    }
  }

  /// Weights of the tile's logits in two parts to shared memory; their sums over this thread's keys.
  __device__ void put_weights(float (&sums)[kColumns], const State& state, const Scores& s, int turn) const {
    const Me me(/*anew=*/kRows > 8);
#pragma unroll
    for (int i = 0; i < kRows / 2; i += 2) {
      const std::uint32_t at = Tiles::weight_row(static_cast<std::uint32_t>(me.key(i)));
      const std::uint32_t swizzle = at * kWeightBytes / 128 % (kWeightBytes / 16), chunk = i / 4;
      const int q = Online::column_of(i);
      const float x = Online::weight_of(state, s[i], q), y = Online::weight_of(state, s[i + 1], q + 1);
      sums[q] = i % 4 == 0 ? x : sums[q] + x, sums[q + 1] = i % 4 == 0 ? y : sums[q + 1] + y;
      const std::uint32_t high = Weight::pack(x, y);
      const float2 kept = Weight::unpack(high);
      const std::uint32_t low = Weight::pack(x - kept.x, y - kept.y);
      Byte* const row = shared.weights[group.index][turn] + at * kWeightBytes + me.thread % 4 * 4;
      *reinterpret_cast<std::uint32_t*>(row + (chunk ^ swizzle) * 16) = high;
      *reinterpret_cast<std::uint32_t*>(row + ((chunk + kRows / 8) ^ swizzle) * 16) = low;
    }
  }

  /// Waits until a stage holds the tile at hand. A wait names a phase of a barrier by its parity only, so the phase of two rounds
  /// ago would pass for the phase of this round. A warpgroup that used the stage itself in the last round cannot be so far ahead.
  /// If another warpgroup used it, this warpgroup waits first until that one has freed the stage.
  __device__ static void wait_for(hopper::Barrier& full, hopper::Barrier& free, const Ring& ring) {
    if (Memory::kStages % kGroups != 0) hopper::wait(&free, ring.parity() ^ 1);
    hopper::wait(&full, ring.parity());
  }

  /// Folds one tile into the state; `turn` alternates between the tiles of this warpgroup.
  ///
  /// Weights refer to the largest logit of an earlier tile as long as no logit exceeds it by more than kHeadroom. The barrier at
  /// which the four warps see each other's weights then also says that no maximum has to be agreed upon.
  __device__ void fold_tile(State& state, const Job& job, const Facts<Memory>& facts, int tile, const Ring& ring,
                            int turn) const {
    const PartialTile<Memory> partial{a, shared, group};
    const int first = tile * kTileKeys;
    const bool full = facts.is_full(first);
    const int stage = hopper::uniform(ring.stage());
    turn = hopper::uniform(turn);
    Tile& k = shared.k[stage];
    Tile& v = shared.v[stage];
    wait_for(shared.k_full[stage], shared.k_free[stage], ring);
    // This step's keys take places in the tile. (A function for the condition costs the narrow tiles eight instructions.)
    if (Tiles::kHoldUncachedRows && !full && job.uncached_in_tiles && first + kTileKeys > job.item.lengths.cached_len &&
        job.item.lengths.cached_len < job.span.any_end) [[unlikely]]
      partial.put_uncached_keys(job, k, first);
    Scores s;
    {
      typename Tiles::Keys keys;
      Tiles::load_keys(keys, k, partial.is_e4m3());
      if (Tiles::kInRegisters) Memory::free_stage(shared.k_free[stage], job.by_rows);
      multiply_scores(s, job, keys, k);
      if (!Tiles::kInRegisters) Memory::free_stage(shared.k_free[stage], job.by_rows);
    }
    finish_scores(s, job, facts, first);
    float sums[kColumns];
    put_weights(sums, state, s, turn);
    bool above = false;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) above |= s[i] > Online::limit_of(state.max[Online::column_of(i)]);
    if (!full) [[unlikely]] {  // values that are added one by one are added to sums that refer to the new maximum
      if (group.any(above)) raise_maxima(state, s), put_weights(sums, state, s, turn);
      above = false;
      wait_for(shared.v_full[stage], shared.v_free[stage], ring);
      partial.prepare_values(state, job, v, first);
    }
    typename Tiles::Values values;
    if constexpr (Tiles::kInRegisters) {  // converted while other warps still write weights
      wait_for(shared.v_full[stage], shared.v_free[stage], ring);
      Tiles::load_values(values, v, partial.is_e4m3(), a.page_size);
      Memory::free_stage(shared.v_free[stage], job.by_rows);
    }
    hopper::fence_shared();
    if (group.any(above)) {
      raise_maxima(state, s);
      put_weights(sums, state, s, turn);
      hopper::fence_shared();
      group.sync();  // weights of all warps are visible
    }
#pragma unroll
    for (int q = 0; q < kColumns; ++q) state.sum[q] += sums[q];
    if constexpr (!Tiles::kInRegisters) wait_for(shared.v_full[stage], shared.v_free[stage], ring);
    multiply_values(state, values, v, turn);
    if (!Tiles::kInRegisters) Memory::free_stage(shared.v_free[stage], job.by_rows);
  }
};

}  // namespace quire::cuda::sm90::decode
