// SPDX-License-Identifier: Apache-2.0
// Stage: attend, prefill. Tiles of 64 score rows: each wave owns 16 and all share tiles of keys in shared memory. While a
// tile is folded the next one is on its way into registers, and the table entries of the one after it are looked up.
#pragma once

#include "backend/hip/matrix/fold_tile.h"
#include "backend/hip/matrix/items.h"
#include "backend/hip/matrix/staging.h"

namespace quire::hip::matrix {

template <class Gpu, class T, int kDim>
struct Tall {
  static constexpr int kThreads = kTallWaves<Gpu, kDim> * Gpu::kWave;
  static constexpr int kKeys = kTallKeys<Gpu, kDim>;
  static constexpr int kHalf = kThreads / 2;  ///< threads that stage K; the others stage V
  using Tile = Staging<Gpu, T, kDim, kKeys, kHalf, kPieces<kDim>>;
  static constexpr int kOut = kOutBlocks<Gpu, kDim>;
  using Sums = RowSums<Gpu, kOut>;
  /// The query passes through the memory of the tile, or has its own to stay in.
  static constexpr int kQueryElements = kTallRows * kPitch<kDim>;
  static constexpr int kKeyElements = kKeys * kPitch<kDim>, kValueElements = kKeys * kDim;
  static constexpr int kTileElements = kKeyElements + kValueElements;
  static constexpr int kElements = kQueryInShared<Gpu, kDim>        ? kQueryElements + kTileElements
                                   : kQueryElements > kTileElements ? kQueryElements
                                                                    : kTileElements;

  struct Shared {
    std::uint16_t* memory;  ///< the tile: keys [kKeys][kPitch], values [kKeys / 4][kDim] quads; before it the query if that stays
    std::uint64_t* rows;    ///< [2][kKeys]: where rows of K and of V begin
    Signals* signals;
    QUIRE_DEVICE explicit Shared(gpu::SharedArea& area)
        : memory(area.take<std::uint16_t>(kElements)),
          rows(area.take<std::uint64_t>(2 * kKeys)),
          signals(area.take<Signals>(1)) {}
    static constexpr int kBytes =
        gpu::piece_bytes<std::uint16_t>(kElements) + gpu::piece_bytes<std::uint64_t>(2 * kKeys) + gpu::piece_bytes<Signals>(1);
  };

  const gpu::AttendArgs& a;
  const Shared& shared;
  const gpu::GenericItem& item;
  bool whole_rows, packed;
  int wave;
  int part;       ///< part of the output dims that the wave sums
  int row_block;  ///< row block of the tile that the wave folds
  WaveRows rows;
  LaneRow row;

  QUIRE_DEVICE Tall(const gpu::AttendArgs& args, const Shared& memory, const gpu::GenericItem& work, bool whole)
      : a(args),
        shared(memory),
        item(work),
        whole_rows(whole),
        packed(is_packed(args)),
        wave(wave_index<Gpu>()),
        part(wave % kDimParts<Gpu, kDim>),
        row_block(wave / kDimParts<Gpu, kDim>),
        rows(wave_rows(args, work, work.slice.row_begin + row_block * kBlockRows)),
        row(lane_row_of(args, work, rows)) {}

  QUIRE_DEVICE std::uint16_t* keys() const { return shared.memory + (kQueryInShared<Gpu, kDim> ? kQueryElements : 0); }
  /// First dim of register i of the sums.
  QUIRE_DEVICE int dim_of(int group, int i) const { return Gpu::sum_row(group, i) * (kDim / kChunks) + part * kOut; }
  QUIRE_DEVICE Quad* values() const { return reinterpret_cast<Quad*>(keys() + kKeyElements); }

  QUIRE_DEVICE void fetch_tile(Tile& tile, const Segment& segment, int first) const {
    const int thread = gpu::thread_here() % kHalf, first_fresh = item.lengths.cached_len - first;
    if (gpu::thread_here() < kHalf) {
      tile.fetch_keys(shared.rows, segment.coded, whole_rows, packed, {a.cache_k.strides, a.key.strides, first_fresh}, thread);
    } else {
      tile.fetch_values(shared.rows + kKeys, segment.coded, form_of_values(segment, first),
                        {a.cache_v.strides, a.value.strides, first_fresh, segment.begin - first, segment.end - first}, thread, 0);
    }
  }
  QUIRE_DEVICE ValueForm form_of_values(const Segment& segment, int first) const {
    return value_form(whole_rows, packed, first_fresh_key(item, segment, first, kKeys), kKeys);
  }
  QUIRE_DEVICE void store_tile(Tile& tile, const Segment& segment, int first) const {
    tile.convert(segment.type);
    if (gpu::thread_here() < kHalf) {
      tile.store_keys(keys(), gpu::thread_here());
    } else {
      tile.store_values(values(), form_of_values(segment, first), gpu::thread_here() - kHalf);
    }
  }

  template <class Query>
  QUIRE_DEVICE void fold_tile(Sums& sums, const Query& query, const Segment& segment, int first, bool careful) const {
    const bool seen = first < rows.any_end && first + kKeys > rows.any_begin;
    typename Gpu::Sums s[kKeys / kBlockKeys];
    if (seen) {
      multiply_keys<Gpu, T, kDim>(s, query, keys());
      finish_scores<Gpu>(s, a, segment, rows, row, first);
      fold_weights<Gpu, T>(s, sums);
    }
    if (careful) {
      add_non_finite<Gpu, T, kDim>(sums, values() + part * kOut * 16, visible_keys(row, segment, first, kKeys));
      gpu::block_barrier();  // every row has added its infinities and NaN before they become zeros
      zero_non_finite<T>(values(), kKeys / 4 * kDim, gpu::thread_here(), kThreads);
      gpu::block_barrier();  // the values are finite
    }
    if (seen) multiply_values<Gpu, T, kDim>(s, sums, values() + part * kOut * 16);
  }

  /// Three stages, one tile apart: addresses are looked up, rows are fetched, the tile is folded. The first two rounds have
  /// nothing to fold yet: positions before the segment have no rows.
  template <class Query>
  QUIRE_DEVICE void fold_segment(Sums& sums, const Query& query, const Segment& segment, bool careful) const {
    const int begin = segment.begin / kKeys * kKeys;
    Tile tile;
    RowAddresses found;
    QUIRE_NO_UNROLL
    for (int first = begin - 2 * kKeys; first < segment.end; first += kKeys) {
      gpu::block_barrier();  // the tile before is used up, and so are the addresses of this one
      if (first >= begin) store_tile(tile, segment, first);
      if (gpu::thread_here() < kKeys) {
        shared.rows[gpu::thread_here()] = found.k;
        shared.rows[kKeys + gpu::thread_here()] = found.v;
      }
      gpu::block_barrier();  // the tile and the addresses of the next are visible
      fetch_tile(tile, segment, first + kKeys);
      if (gpu::thread_here() < kKeys) found = look_up(a, item, segment, first + 2 * kKeys + gpu::thread_here());
      if (first >= begin) fold_tile(sums, query, segment, first, careful);
    }
  }

  QUIRE_DEVICE std::uint16_t* wave_memory() const { return shared.memory + row_block * kBlockRows * kPitch<kDim>; }

  /// The wave's rows, by way of shared memory: lanes hold parts of rows, and memory wants them side by side.
  QUIRE_DEVICE void store_rows(const Sums& sums, const SoftmaxState& state) const {
    using Dims = Words<kOut / 2>;
    const int group = lane_group<Gpu>();
    if (row.exists) {
      const float factor = finish_row(a, row.token, row.head, state, group == 0 && part == 0).factor;
      std::uint16_t* mine = wave_memory() + lane_row() * kPitch<kDim>;
      QUIRE_UNROLL
      for (int i = 0; i < Gpu::kSums; ++i) *reinterpret_cast<Dims*>(mine + dim_of(group, i)) = encode_dims<T>(sums, i, factor);
    }
    gpu::wave_barrier();  // the rows are visible
    const int d = lane_row() * (kDim / kChunks) + part * kOut;
    QUIRE_NO_UNROLL
    for (int r = group; r < rows.end - rows.first; r += Gpu::kWave / kBlockRows) {
      const int score_row = rows.first + r;
      const std::int64_t at =
          a.output_strides.row(0, item.kv_head * a.group + score_row % a.group, item.lengths.first_token + score_row / a.group);
      store_words(a, at, d, *reinterpret_cast<const Dims*>(wave_memory() + r * kPitch<kDim> + d), whole_rows);
    }
  }

  QUIRE_DEVICE void keep_rows(const Sums& sums, const SoftmaxState& state) const {
    if (!row.exists) return;
    const int group = lane_group<Gpu>(), r = row_block * kBlockRows + lane_row();
    QUIRE_UNROLL
    for (int i = 0; i < Gpu::kSums; ++i) {
      Floats<kOut> dims;
      QUIRE_UNROLL
      for (int b = 0; b < kOut; ++b) dims.x[b] = sums.acc[b].x[i];
      keep_partial(a, item, r, dim_of(group, i), dims, state);
    }
  }

  QUIRE_DEVICE void run() const {
    const auto query = load_query<Gpu, kDim>(a, row, wave_memory());
    Sums sums;
    fold_item(a, item, shared.signals, sums,
              [&](const Segment& segment, bool careful) { fold_segment(sums, query, segment, careful); });
    const SoftmaxState state = natural_state<T>(sums.max, sums.sum);
    if (item.slice.num_parts == 1) {
      store_rows(sums, state);
    } else {
      keep_rows(sums, state);
    }
  }
};

template <class Gpu, class T, int kDim>
QUIRE_DEVICE void attend_tall(const gpu::AttendArgs& args, gpu::SharedArea area) {
  attend_items<Tall<Gpu, T, kDim>, T, kDim>(args, area);
}

}  // namespace quire::hip::matrix
