// SPDX-License-Identifier: Apache-2.0
// Stage: attend, decode. Tiles of 16 score rows, shared by the waves of a block, which part the keys: each folds tiles of 16 of
// its own, so that none waits for another before the end. K and V of a tile pass through the same piece of shared memory, one
// after the other; K is fetched one tile ahead, V while the scores are made.
#pragma once

#include "backend/hip/matrix/fold_tile.h"
#include "backend/hip/matrix/items.h"
#include "backend/hip/matrix/staging.h"

namespace quire::hip::matrix {

template <class Gpu, class T, int kDim>
struct Short {
  static constexpr int kWaves = kShortWaves<Gpu, kDim>;
  static constexpr int kThreads = kWaves * Gpu::kWave;
  static constexpr int kKeyParts = kWaves / kDimParts<Gpu, kDim>;
  static constexpr int kStep = kKeyParts * kShortKeys;  ///< keys from one tile of a wave to its next
  static constexpr int kOut = kOutBlocks<Gpu, kDim>, kColumns = kOut * 16;
  using Sums = RowSums<Gpu, kOut>;
  using Keys = Staging<Gpu, T, kDim, kShortKeys, Gpu::kWave, kPieces<kDim>>;
  using Values = Staging<Gpu, T, kDim, kShortKeys, Gpu::kWave, kPieces<kDim> / kDimParts<Gpu, kDim>>;
  /// K of the next tile waits in registers while this one is folded, if it takes no more than 32.
  static constexpr bool kKeysAhead = Keys::kCount * Keys::kWords <= 32;
  static constexpr int kQueryElements = kQueryInShared<Gpu, kDim> ? kShortRows * kPitch<kDim> : 0;
  static constexpr int kTileElements = kShortKeys * kPitch<kDim>;  ///< elements of a tile of K or of V
  static constexpr int kSumsPitch = kDim + 4;
  static_assert(kShortRows * kSumsPitch * sizeof(float) <= kWaves * kTileElements * sizeof(std::uint16_t));

  struct Shared {
    std::uint16_t* query;   ///< [kShortRows][kPitch], if it stays here
    std::uint16_t* memory;  ///< [kWaves][kTileElements]; at the end the sums of all waves, [kShortRows][kSumsPitch] f32
    std::uint64_t* rows;    ///< [kWaves][2][kShortKeys]: where rows of K and of V begin
    SoftmaxState* states;   ///< [kKeyParts][kShortRows]
    Signals* signals;
    QUIRE_DEVICE explicit Shared(gpu::SharedArea& area)
        : query(kQueryElements > 0 ? area.take<std::uint16_t>(kQueryElements) : nullptr),
          memory(area.take<std::uint16_t>(kWaves * kTileElements)),
          rows(area.take<std::uint64_t>(kWaves * 2 * kShortKeys)),
          states(area.take<SoftmaxState>(kKeyParts * kShortRows)),
          signals(area.take<Signals>(1)) {}
    static constexpr int kBytes = gpu::piece_bytes<std::uint16_t>(kQueryElements) +
                                  gpu::piece_bytes<std::uint16_t>(kWaves * kTileElements) +
                                  gpu::piece_bytes<std::uint64_t>(kWaves * 2 * kShortKeys) +
                                  gpu::piece_bytes<SoftmaxState>(kKeyParts * kShortRows) + gpu::piece_bytes<Signals>(1);
  };

  const gpu::AttendArgs& a;
  const Shared& shared;
  const gpu::GenericItem& item;
  bool whole_rows, packed;
  int wave;
  int part;      ///< part of the output dims that the wave sums
  int key_part;  ///< residue of the tiles that the wave folds
  WaveRows rows;
  LaneRow row;

  QUIRE_DEVICE Short(const gpu::AttendArgs& args, const Shared& memory, const gpu::GenericItem& work, bool whole)
      : a(args),
        shared(memory),
        item(work),
        whole_rows(whole),
        packed(is_packed(args)),
        wave(wave_index<Gpu>()),
        part(wave % kDimParts<Gpu, kDim>),
        key_part(wave / kDimParts<Gpu, kDim>),
        rows(wave_rows(args, work, work.slice.row_begin)),
        row(lane_row_of(args, work, rows)) {}

  QUIRE_DEVICE std::uint16_t* keys() const { return shared.memory + wave * kTileElements; }
  QUIRE_DEVICE Quad* values() const { return reinterpret_cast<Quad*>(keys()); }
  QUIRE_DEVICE std::uint64_t* row_addresses() const { return shared.rows + wave * 2 * kShortKeys; }

  QUIRE_DEVICE void fetch_keys(Keys& tile, const Segment& segment, int first) const {
    tile.fetch_keys(row_addresses(), segment.coded, whole_rows, packed,
                    {a.cache_k.strides, a.key.strides, item.lengths.cached_len - first}, lane_index<Gpu>());
  }
  QUIRE_DEVICE void fetch_values(Values& tile, const Segment& segment, ValueForm form, int first) const {
    tile.fetch_values(
        row_addresses() + kShortKeys, segment.coded, form,
        {a.cache_v.strides, a.value.strides, item.lengths.cached_len - first, segment.begin - first, segment.end - first},
        lane_index<Gpu>(), part * (kPieces<kDim> / kDimParts<Gpu, kDim>));
  }

  /// The tile whose addresses are there and whose K, if kKeysAhead, has been fetched. `next`: addresses of the next one.
  template <class Query>
  QUIRE_DEVICE void fold_tile(Sums& sums, const Query& query, Keys& tile, const Segment& segment, int first,
                              const RowAddresses& next, bool careful) const {
    if constexpr (!kKeysAhead) fetch_keys(tile, segment, first);
    tile.convert(segment.type);
    tile.store_keys(keys(), lane_index<Gpu>());
    gpu::wave_barrier();  // K is visible
    Values staged;
    const ValueForm form = value_form(whole_rows, packed, first_fresh_key(item, segment, first, kShortKeys), kShortKeys);
    fetch_values(staged, segment, form, first);
    typename Gpu::Sums s[1];
    multiply_keys<Gpu, T, kDim>(s, query, keys());
    gpu::wave_order();  // the products were made: K and the addresses are used up
    staged.convert(segment.type);
    staged.store_values(values(), form, lane_index<Gpu>());
    publish(next);
    gpu::wave_barrier();  // V and the addresses of the next tile are visible
    if constexpr (kKeysAhead) fetch_keys(tile, segment, first + kStep);
    finish_scores<Gpu>(s, a, segment, rows, row, first);
    fold_weights<Gpu, T>(s, sums);
    if (careful) {
      add_non_finite<Gpu, T, kColumns>(sums, values(), visible_keys(row, segment, first, kShortKeys));
      gpu::wave_barrier();  // every row has added its infinities and NaN before they become zeros
      zero_non_finite<T>(values(), kShortKeys / 4 * kColumns, lane_index<Gpu>(), Gpu::kWave);
      gpu::wave_barrier();  // the values are finite
    }
    multiply_values<Gpu, T, kColumns>(s, sums, values());
    gpu::wave_order();  // values of the tile are read before the next tile's are written
  }

  QUIRE_DEVICE void publish(const RowAddresses& found) const {
    if (lane_index<Gpu>() >= kShortKeys) return;
    row_addresses()[lane_row()] = found.k;
    row_addresses()[kShortKeys + lane_row()] = found.v;
  }

  /// Which tile goes to which wave depends on its position alone. Addresses are looked up two tiles ahead.
  template <class Query>
  QUIRE_DEVICE void fold_segment(Sums& sums, const Query& query, const Segment& segment, bool careful) const {
    int begin = segment.begin / kStep * kStep + key_part * kShortKeys;
    if (begin + kShortKeys <= segment.begin) begin += kStep;
    Keys tile;
    RowAddresses found = look_up(a, item, segment, begin + lane_row());
    publish(found);
    gpu::wave_barrier();  // the first addresses are visible
    if constexpr (kKeysAhead) fetch_keys(tile, segment, begin);
    found = look_up(a, item, segment, begin + kStep + lane_row());
    QUIRE_NO_UNROLL
    for (int first = begin; first < segment.end; first += kStep) {
      const RowAddresses next = found;
      found = look_up(a, item, segment, first + 2 * kStep + lane_row());
      fold_tile(sums, query, tile, segment, first, next, careful);
    }
  }

  /// The waves' sums to one, in the order of their keys; returns the state of the lane's row.
  QUIRE_DEVICE SoftmaxState combine_waves(const Sums& sums) const {
    if (lane_group<Gpu>() == 0 && part == 0)
      shared.states[key_part * kShortRows + lane_row()] = natural_state<T>(sums.max, sums.sum);
    gpu::block_barrier();  // states of all waves are visible, and no wave reads a tile any more
    SoftmaxState state;
    QUIRE_NO_UNROLL
    for (int p = 0; p < kKeyParts; ++p) state = semantics::combine(state, shared.states[p * kShortRows + lane_row()]).state;
    const float weight = semantics::weight_in(shared.states[key_part * kShortRows + lane_row()].max, state.max);
    QUIRE_NO_UNROLL
    for (int p = 0; p < kKeyParts; ++p) {
      if (p == key_part) add_share(sums, weight, p == 0);
      gpu::block_barrier();  // the share is visible
    }
    return state;
  }
  QUIRE_DEVICE float* sums_of_row() const { return reinterpret_cast<float*>(shared.memory) + lane_row() * kSumsPitch; }
  QUIRE_DEVICE void add_share(const Sums& sums, float weight, bool first) const {
    const int group = lane_group<Gpu>();
    float* to = sums_of_row() + part * kOut;
    QUIRE_UNROLL
    for (int i = 0; i < Gpu::kSums; ++i) QUIRE_UNROLL
    for (int b = 0; b < kOut; ++b) {
      float& sum = to[Gpu::sum_row(group, i) * (kDim / kChunks) + b];
      sum = (first ? 0.0f : sum) + sums.acc[b].x[i] * weight;
    }
  }

  /// Each thread finishes pieces of the row of its lane.
  QUIRE_DEVICE void store_rows(const SoftmaxState& state) const {
    if (!row.exists) return;
    const bool whole = item.slice.num_parts == 1;
    const int first = gpu::thread_here() / kBlockRows;
    OutputRow out;
    if (whole) out = finish_row(a, row.token, row.head, state, first == 0);
    const float* sums = sums_of_row();
    QUIRE_NO_UNROLL
    for (int d = first * 4; d < kDim; d += kThreads / kBlockRows * 4) {
      const Floats<4> four = {{sums[d], sums[d + 1], sums[d + 2], sums[d + 3]}};
      if (whole) {
        store_output<T>(a, out, d, four, whole_rows);
      } else {
        keep_partial(a, item, lane_row(), d, four, state);
      }
    }
  }

  QUIRE_DEVICE void run() const {
    const auto query = load_query<Gpu, kDim>(a, row, kQueryElements > 0 ? shared.query : keys());
    Sums sums;
    fold_item(a, item, shared.signals, sums,
              [&](const Segment& segment, bool careful) { fold_segment(sums, query, segment, careful); });
    store_rows(combine_waves(sums));
  }
};

template <class Gpu, class T, int kDim>
QUIRE_DEVICE void attend_short(const gpu::AttendArgs& args, gpu::SharedArea area) {
  attend_items<Short<Gpu, T, kDim>, T, kDim>(args, area);
}

}  // namespace quire::hip::matrix
