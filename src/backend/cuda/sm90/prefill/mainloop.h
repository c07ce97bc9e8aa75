// SPDX-License-Identifier: Apache-2.0
// The tiles of a prefill job into the running softmax of a warpgroup.
//
// Products overlap with softmax twice (FlashAttention-3, Shah et al. 2024, arXiv:2407.08608). Inside a warpgroup, O += P V of one
// tile runs while the softmax of the next tile is computed. Between warpgroups, ping-pong scheduling: one multiplies while the
// other computes exponentials. A job is begun beside the last product of the job before.
#pragma once

#include "backend/cuda/sm90/prefill/masked_scores.h"
#include "backend/cuda/sm90/prefill/products.h"
#include "backend/cuda/sm90/prefill/softmax.h"
#include "backend/cuda/sm90/prefill/unseen_values.h"

namespace quire::cuda::sm90::prefill {

/// Ping-pong scheduling: warpgroups take turns at issuing products. Each takes a turn for every tile, and signals the next.
template <int kGroups>
struct PingPong {
  __device__ static void await_turn() { hopper::sync_at(kTurnBarrier + Lane::group(), 256); }
  __device__ static void signal_next() { hopper::arrive_at(kTurnBarrier + (Lane::group() + 1) % kGroups, 256); }
};

/// T: type of query, output and this step's rows.
template <typename T, typename Memory>
struct Mainloop {
  using Online = Softmax<T, Memory>;
  using State = typename Online::State;
  using Totals = typename Online::Totals;
  using Scores = typename Online::Scores;
  using Weights = typename Online::Weights;
  using Weight = typename Online::Weight;
  using Product = Products<T, Memory>;
  using Turns = PingPong<Memory::kGroups>;
  using Job = typename Memory::Job;
  using Query = typename Memory::Query;
  using ValueTile = typename Memory::ValueTile;
  using Rings = typename Memory::TileRings;
  static constexpr int kKeys = Memory::kKeys;
  static constexpr bool kCodes = Memory::kCodes, kBeside = Memory::kBeside;

  const Block<Memory> block;

  const Product product{block};
  const std::conditional_t<Memory::kMasks, MaskedScoring<Memory>, Scoring<Memory>> scores{block};

  /// Frees a tile in both blocks of the pair, because both copy into its memory; codes are converted by each block for itself.
  /// kOwn: only this block copies into it.
  template <bool kOwn>
  __device__ static void free_tile(hopper::Barrier& barrier) {
    if constexpr (kCodes || kOwn)
      free_in_block(barrier);
    else
      free_in_pair(barrier);
  }

  /// O += P V of tile `n`, whose weights are in `p`; of its first half alone where no row sees more (`half`).
  template <typename Element>
  __device__ void start_tile_values(State& state, const Weights& p, const Job& job, bool unmasked, bool half, const Rings& ring,
                                    int n) const {
    ValueTile& v = block.shared.v[ring.v.stage];
    hopper::wait(&block.shared.v_full[ring.v.stage], ring.v.parity);
    if (!unmasked) UnseenValues<Memory>{block}.clear(v, job, key_tile<kKeys>(job, n), kBeside && half ? kKeys / 2 : kKeys);
    product.template start_values<Element>(state, p, v, half, Product::is_packed(job, unmasked, n));
  }
  __device__ void free_values(Rings& ring) const {
    free_tile<Memory::kSplitsValues>(block.shared.v_free[ring.v.stage]);
    ring.v.advance();
  }
  __device__ void free_keys(Rings& ring) const {
    free_tile<false>(block.shared.k_free[ring.k.stage]);
    ring.k.advance();
  }

  /// Scores of tile `n` to weights relative to the rows' maxima; true if what was summed before is to be multiplied by `rescale`.
  /// `empty`: a row of the warp has no maximum yet.
  template <bool kPlain, int kCount>
  __device__ bool weigh(float (&s)[kCount], Totals& state, const Job& job, const Work& w, int n, float (&rescale)[2],
                        bool& empty) const {
    float factor = kPlain ? w.factor : 1.0f;  // finish_scores() has scaled the scores unless kPlain
    const bool unmasked = kPlain && w.is_unmasked(n);
    bool first_only[2] = {true, true};
    if (!unmasked) {
      const KeyTileSpan span = key_tile<kKeys>(job, n);
      if (kPlain && span.fresh) factor = block.a.score.scale * tile::kLog2e;
      scores.template finish_scores<kPlain>(s, w, job, span, span.fresh ? 1.0f : job.k_scale);
#pragma unroll
      for (int h = 0; h < 2; ++h) first_only[h] = kPlain && scores.sees_all(w, span, h);
    }
    bool moved = false;
    if (!unmasked || empty) {
      moved = Online::move_maxima(state, s, factor, first_only, rescale);
      empty = Online::any_empty(state);
      if (n == job.scaled_at) {
#pragma unroll
        for (int h = 0; h < 2; ++h) rescale[h] = moved ? rescale[h] * job.v_scale : job.v_scale;
        moved = true;
      }
    }
    Online::exponentiate(s, state, factor);
    return moved;
  }

  __device__ void await_keys(const Rings& ring) const { hopper::wait(&block.shared.k_full[ring.k.stage], ring.k.parity); }

  /// Tile `n`, with no other product beside it.
  ///
  /// The wait for the next keys parts exponentials from sums, and keeps them before the wait for products: ptxas moves both over
  /// arithmetic, but not over a loop.
  template <bool kPlain, typename Element>
  __device__ __forceinline__ void begin_alone(State& state, Weights& p, bool& empty, const Job& job, const Work& w, int n,
                                              int end, const Query& query, Rings& ring) const {
    Scores s;
    float rescale[2];
    await_keys(ring);
    const typename Product::Operands from = product.operands(query, ring, Product::is_packed(job, false, n));
    Turns::await_turn();
    Product::start_scores(s, from);
    Turns::signal_next();
    hopper::wgmma_wait<0>();
    hopper::settle(s);
    free_keys(ring);
    if (weigh<kPlain>(s, state, job, w, n, rescale, empty)) Online::rescale_out(state, rescale);
    if (n + 1 < end) await_keys(ring);
    Online::template sum_and_pack<Element>(p, s, state, block.shared.zero);
  }

  /// The job's first tile, kCount keys of it. Its scores are multiplied beside the last weights and values of the job before, if
  /// that job is open; otherwise the product is not used. `w` and `half` are of the job before, and of this job afterwards.
  template <int kCount>
  __device__ __forceinline__ Totals begin_beside(State& state, Weights& p, Work& w, bool& half, bool& empty, const Job& job,
                                                 const Query& query, Rings& ring, const Job* open) const {
    float s[kCount / 2], rescale[2];
    await_keys(ring);
    const typename Product::Operands from = product.operands(query, ring, Product::is_packed(job, false, 0));
    Turns::await_turn();
    Product::start_scores(s, from);
    if (open != nullptr)
      start_tile_values<T>(state, p, *open, w.is_unmasked(open->tiles() - 1), half, ring, open->tiles() - 1);
    else
      product.template start_values<T>(state, p, block.shared.v[ring.v.stage], half, false);
    Turns::signal_next();
    half = kCount < kKeys;
    w = scores.work_of(job);
    hopper::wgmma_wait<1>();
    hopper::settle(s);
    free_keys(ring);
    Totals totals;
    empty = true;
    weigh<true>(s, totals, job, w, 0, rescale, empty);
    if (job.tiles() > 1) await_keys(ring);
    Online::add_up(totals.sum, s, block.shared.zero);  // sums stay below kMostSum: a first tile always sets maxima
    hopper::wgmma_wait<0>();
    hopper::settle(state.out);
    if (open != nullptr) free_values(ring);
    Online::template pack_weights<T>(p, s);
    return totals;
  }

  /// Tiles [begin, end) and the values of the tile before. The products of a tile's weights and values are issued with the scores
  /// of the next tile. `last`: the end of the job's tiles of this type.
  template <bool kPlain, typename Element>
  __device__ __forceinline__ void fold_any(State& state, Weights& p, bool& empty, bool& half, const Job& job, const Work& w,
                                           int begin, int end, int last, const Query& query, Rings& ring) const {
    Scores s;
    float rescale[2];
#pragma unroll 1
    for (int n = begin; n < end; ++n) {
      const typename Product::Operands from = product.operands(query, ring, Product::is_packed(job, w.is_unmasked(n), n));
      Turns::await_turn();
      Product::start_scores(s, from);
      start_tile_values<Element>(state, p, job, w.is_unmasked(n - 1), half, ring, n - 1);
      Turns::signal_next();
      half = false;
      hopper::wgmma_wait<kPlain ? 1 : 0>();  // soft caps and slopes need the registers of p
      hopper::settle(s);
      free_keys(ring);
      const bool moved = weigh<kPlain>(s, state, job, w, n, rescale, empty);
      if (n + 1 < last) await_keys(ring);
      hopper::wgmma_wait<0>();
      hopper::settle(state.out);
      free_values(ring);
      if (moved) Online::rescale_out(state, rescale);
      Online::template sum_and_pack<Element>(p, s, state, block.shared.zero);
    }
  }

  /// Tiles [begin, end) that every row of the warpgroup sees, after another such tile, where every row has a maximum. The loop
  /// holds nothing that other tiles need: instructions that are jumped over cost a fetch each time (NVIDIA H100,
  /// 2026-11-26). Such tiles are cached, so a packed cache's are packed.
  template <typename Element>
  __device__ __forceinline__ void fold_unmasked(State& state, Weights& p, const Work& w, int begin, int end, int last,
                                                const Query& query, Rings& ring) const {
    constexpr bool kWhole = true;
    Scores s;
#pragma unroll 1
    for (int n = begin; n < end; ++n) {
      const typename Product::Operands from = product.operands(query, ring, Memory::kPacked);
      Turns::await_turn();
      Product::start_scores(s, from);
      hopper::wait(&block.shared.v_full[ring.v.stage], ring.v.parity);
      product.template start_values<Element, kWhole>(state, p, block.shared.v[ring.v.stage], false, Memory::kPacked);
      Turns::signal_next();
      hopper::wgmma_wait<1>();
      hopper::settle(s);
      free_keys(ring);
      Online::exponentiate(s, state, w.factor);
      if (n + 1 < last) await_keys(ring);
      hopper::wgmma_wait<0>();
      hopper::settle(state.out);
      free_values(ring);
      Online::template sum_and_pack<Element>(p, s, state, block.shared.zero);
    }
  }

  /// Tiles [begin, last): those with masks, those without, and what is left behind them. kCached: tiles are from the cache, so
  /// some may have no masks. All warps of the warpgroup are in the same loop, because wgmma is an instruction of all of them.
  template <bool kPlain, typename Element, bool kCached>
  __device__ __forceinline__ void fold_tiles(State& state, Weights& p, bool& empty, bool& half, const Job& job, const Work& w,
                                             int begin, int last, const Query& query, Rings& ring) const {
    if constexpr (!kPlain || !kCached)
      return fold_any<kPlain, Element>(state, p, empty, half, job, w, begin, last, last, query, ring);
    int n = begin;
#pragma unroll 1
    for (bool first = true;; first = false) {
      const int from = max(w.unmasked_begin + 1, begin), to = min(w.unmasked_end, last);
      const bool apart = first && from < to;
      fold_any<kPlain, Element>(state, p, empty, half, job, w, n, apart ? from : last, last, query, ring);
      if (!apart) return;
      n = from;
      if (!hopper::all_at(kGroupBarrier + Lane::group(), 128, !empty)) continue;
      fold_unmasked<Element>(state, p, w, from, to, last, query, ring);
      n = to;
    }
  }

  /// The last tile's weights and values, with no other product beside them.
  template <typename Element>
  __device__ void end_tiles(State& state, const Weights& p, const Job& job, const Work& w, bool half, int n, Rings& ring) const {
    start_tile_values<Element>(state, p, job, w.is_unmasked(n), half, ring, n);
    hopper::wgmma_wait<0>();
    hopper::settle(state.out);
    free_values(ring);
  }

  /// Tiles [begin, end), all of a type.
  template <bool kPlain, typename Element, bool kCached>
  __device__ __forceinline__ void fold_alone(State& state, const Job& job, const Work& w, int begin, int end, const Query& query,
                                             Rings& ring) const {
    if (begin >= end) return;
    Weights p;
    bool empty = true, half = false;
    begin_alone<kPlain, Element>(state, p, empty, job, w, begin, end, query, ring);
    fold_tiles<kPlain, Element, kCached>(state, p, empty, half, job, w, begin + 1, end, query, ring);
    end_tiles<Element>(state, p, job, w, half, end - 1, ring);
  }
  template <bool kPlain>
  __device__ __forceinline__ void fold_job(State& state, const Job& job, const Work& w, const Query& query, Rings& ring) const {
    const int border = kCodes ? job.order.first_fresh : job.tiles();
    fold_alone<kPlain, Weight, true>(state, job, w, 0, border, query, ring);
    if constexpr (kCodes) fold_alone<kPlain, T, false>(state, job, w, border, job.tiles(), query, ring);
  }
};

}  // namespace quire::cuda::sm90::prefill
