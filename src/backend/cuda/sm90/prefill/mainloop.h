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
struct PingPong {
  __device__ static void await_turn() { hopper::sync_at(2 + Lane::group(), 256); }
  __device__ static void signal_next() { hopper::arrive_at(2 + (Lane::group() + 1) % kPrefillGroups, 256); }
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
  template <typename Element, Form kForm>
  __device__ void start_tile_values(State& state, const Weights& p, const Job& job, bool unmasked, bool half, const Rings& ring,
                                    int n) const {
    ValueTile& v = block.shared.v[ring.v.stage];
    hopper::wait(&block.shared.v_full[ring.v.stage], ring.v.parity);
    if (!unmasked) UnseenValues<Memory>{block}.clear(v, job, key_tile<kKeys>(job, n), kBeside && half ? kKeys / 2 : kKeys);
    product.template start_values<Element, kForm != Product::kAny>(state, p, v, half,
                                                                   Product::template is_packed<kForm>(job, unmasked, n));
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
    float factor = kPlain ? w.factor : 1.0f;  // what finish_scores() leaves to be done
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
  template <bool kPlain, typename Element, Form kForm>
  __device__ __forceinline__ void begin_alone(State& state, Weights& p, bool& empty, const Job& job, const Work& w, int n,
                                              int end, const Query& query, Rings& ring) const {
    Scores s;
    float rescale[2];
    await_keys(ring);
    const typename Product::Operands from = product.operands(query, ring, Product::template is_packed<kForm>(job, false, n));
    PingPong::await_turn();
    Product::start_scores(s, from);
    PingPong::signal_next();
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
    const typename Product::Operands from =
        product.operands(query, ring, Product::template is_packed<Product::kAny>(job, false, 0));
    PingPong::await_turn();
    Product::start_scores(s, from);
    if (open != nullptr)
      start_tile_values<T, Product::kAny>(state, p, *open, w.is_unmasked(open->tiles() - 1), half, ring, open->tiles() - 1);
    else
      product.template start_values<T>(state, p, block.shared.v[ring.v.stage], half, false);
    PingPong::signal_next();
    half = kCount < kKeys;
    w = scores.work_of(job);
    hopper::wgmma_wait<1>();
    hopper::settle(s);
    free_keys(ring);
    Totals totals;
    empty = true;
    weigh<true>(s, totals, job, w, 0, rescale, empty);
    if (job.tiles() > 1) await_keys(ring);
    Online::add_up(totals.sum, s, block.shared.zero);  // none is above kMostSum: maxima of a first tile are looked at
    hopper::wgmma_wait<0>();
    hopper::settle(state.out);
    if (open != nullptr) free_values(ring);
    Online::template pack_weights<T>(p, s);
    return totals;
  }

  /// Tiles [begin, end) and the values of the tile before. The products of a tile's weights and values are issued with the scores
  /// of the next tile. `last`: the end of the job's tiles of this type.
  template <bool kPlain, typename Element, Form kForm>
  __device__ __forceinline__ void fold_tiles(State& state, Weights& p, bool& empty, bool& half, const Job& job, const Work& w,
                                             int begin, int end, int last, const Query& query, Rings& ring) const {
    Scores s;
    float rescale[2];
#pragma unroll 1
    for (int n = begin; n < end; ++n) {
      const typename Product::Operands from =
          product.operands(query, ring, Product::template is_packed<kForm>(job, w.is_unmasked(n), n));
      PingPong::await_turn();
      Product::start_scores(s, from);
      start_tile_values<Element, kForm>(state, p, job, w.is_unmasked(n - 1), half, ring, n - 1);
      PingPong::signal_next();
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

  /// Jobs of at least so many cached tiles of keys fold them in a loop of their own. Chosen from two runs on an H100
  /// (docs/lab/2026-11-25-packed.md): jobs of 65 to 80 tiles took 3 to 9 % less time with the loop, jobs of ten tiles 5 % more.
  /// A wrong number costs time and no bit.
  static constexpr int kLongJob = 24;
  /// Folds all tiles but the first of a job whose tiles are of one type. A loop for cached tiles of a packed cache begins where
  /// neither the scores' tile nor the values' tile can be one of rows, and no tile is half seen any more.
  template <bool kPlain>
  __device__ __forceinline__ void fold_forms(State& state, Weights& p, bool& empty, bool& half, const Job& job, const Work& w,
                                             const Query& query, Rings& ring) const {
    const int tiles = job.tiles();
    if constexpr (!kPlain || Product::kAny != Form::either)
      return fold_tiles<kPlain, T, Product::kAny>(state, p, empty, half, job, w, 1, tiles, tiles, query, ring);
    const bool rows_last = job.keys.fresh_tiles > 0 && job.order.first_fresh > 0;
    const bool apart = job.keys.cached_tiles >= kLongJob && !rows_last;
    const int cached = apart ? max(job.order.first_cached, 1) + 1 : tiles;
    fold_tiles<kPlain, T, Product::kAny>(state, p, empty, half, job, w, 1, cached, tiles, query, ring);
    fold_tiles<kPlain, T, Form::packed>(state, p, empty, half, job, w, cached, tiles, tiles, query, ring);
  }

  /// The last tile's weights and values, with no other product beside them.
  template <typename Element, Form kForm>
  __device__ void end_tiles(State& state, const Weights& p, const Job& job, const Work& w, bool half, int n, Rings& ring) const {
    start_tile_values<Element, kForm>(state, p, job, w.is_unmasked(n), half, ring, n);
    hopper::wgmma_wait<0>();
    hopper::settle(state.out);
    free_values(ring);
  }

  /// Tiles [begin, end), all of a type.
  template <bool kPlain, typename Element, Form kForm>
  __device__ __forceinline__ void fold_alone(State& state, const Job& job, const Work& w, int begin, int end, const Query& query,
                                             Rings& ring) const {
    if (begin >= end) return;
    Weights p;
    bool empty = true, half = false;
    begin_alone<kPlain, Element, kForm>(state, p, empty, job, w, begin, end, query, ring);
    fold_tiles<kPlain, Element, kForm>(state, p, empty, half, job, w, begin + 1, end, end, query, ring);
    end_tiles<Element, kForm>(state, p, job, w, half, end - 1, ring);
  }
  template <bool kPlain>
  __device__ __forceinline__ void fold_job(State& state, const Job& job, const Work& w, const Query& query, Rings& ring) const {
    const int border = kCodes ? job.order.first_fresh : job.tiles();
    fold_alone<kPlain, Weight, Product::kAny>(state, job, w, 0, border, query, ring);
    if constexpr (kCodes) fold_alone<kPlain, T, Product::kAny>(state, job, w, border, job.tiles(), query, ring);
  }
};

}  // namespace quire::cuda::sm90::prefill
