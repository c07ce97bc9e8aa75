// SPDX-License-Identifier: Apache-2.0
// attend_generic: what a block of threads holds in shared memory, and which rows and keys are in it.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/generic_args.h"
#include "backend/gpu/generic_sizes.h"
#include "backend/gpu/pages.h"
#include "backend/gpu/stage_rows.h"

namespace quire::gpu {

/// A score row of the item.
struct ScoreRow {
  std::int32_t token = 0, head = 0, q_pos = 0;
  float slope = 0.0f;
  std::int32_t first_key = 0, end_key = 0;  ///< the row sees keys [first_key, end_key), beside a prefix and a tree
  std::int32_t prefix_end = 0;              ///< the row sees keys [0, prefix_end) of a prefix
  std::int32_t begin = 0, end = 0;          ///< keys of the current tile that the row sees; neither decreases from row to row
  float correction = 1.0f;                  ///< rescale factor of sums from before the present tile
  float max = 0.0f, sum = 0.0f;             ///< softmax state at the end of the item
};

/// Keys that some row of an item sees.
struct ItemKeys {
  semantics::SeenKeysIn<std::int32_t> seen;
  std::int32_t tree_begin = 0;  ///< key of bit 0
};

struct GenericBlock {
  float* query;             ///< [kGenericTileRows][kDimPitch]: one block of dims
  float* staged;            ///< [kGenericTileKeys][kDimPitch]: one block of dims of K, then of V
  float* scores;            ///< [kGenericTileRows][kScorePitch]: dot products, then weights
  std::int64_t* query_at;   ///< element offsets of rows, of keys and of values
  std::int64_t* key_at;     ///< [kGenericTileKeys]
  std::int64_t* value_at;   ///< [kGenericTileKeys]
  float* key_scale;         ///< [kGenericTileKeys]: scales of tokens, 1 for tokens without
  float* value_scale;       ///< [kGenericTileKeys]
  ScoreRow* rows;           ///< [kGenericTileRows]
  std::int32_t* next_item;  ///< message of thread 0 to all threads: item to attend
  std::int32_t* is_last;    ///< message of thread 0: whether the item's part was the last of its tile
  ItemKeys* keys;           ///< message of thread 0: keys that rows of the item see

  QUIRE_DEVICE explicit GenericBlock(SharedArea& area)
      : query(area.take<float>(kGenericTileRows * kDimPitch)),
        staged(area.take<float>(kGenericTileKeys * kDimPitch)),
        scores(area.take<float>(kGenericTileRows * kScorePitch)),
        query_at(area.take<std::int64_t>(kGenericTileRows)),
        key_at(area.take<std::int64_t>(kGenericTileKeys)),
        value_at(area.take<std::int64_t>(kGenericTileKeys)),
        key_scale(area.take<float>(kGenericTileKeys)),
        value_scale(area.take<float>(kGenericTileKeys)),
        rows(area.take<ScoreRow>(kGenericTileRows)),
        next_item(area.take<std::int32_t>(1)),
        is_last(area.take<std::int32_t>(1)),
        keys(area.take<ItemKeys>(1)) {}
  static constexpr int kBytes =
      piece_bytes<float>((kGenericTileRows + kGenericTileKeys) * kDimPitch) + piece_bytes<float>(kGenericTileRows * kScorePitch) +
      piece_bytes<std::int64_t>(kGenericTileRows + 2 * kGenericTileKeys) + piece_bytes<float>(2 * kGenericTileKeys) +
      piece_bytes<ScoreRow>(kGenericTileRows) + 2 * piece_bytes<std::int32_t>(1) + piece_bytes<ItemKeys>(1);
};
static_assert(GenericBlock::kBytes <= kGenericSharedBytes);

/// A work item with what every thread needs of it in registers.
struct GenericItem {
  WorkSlice slice;
  Lengths lengths;
  std::int32_t kv_head = 0;
  std::int32_t num_rows = 0;
  std::int32_t first_visible =
      0;  ///< first key that a row sees; only for kernels whose rows are causal, at the end of their keys
};

/// Keys [begin, end) of the tile at `first`, relative to it, all of one region; those from `cached` on are this step's rows.
struct TileKeys {
  std::int32_t first = 0, begin = 0, end = 0, cached = 0;
  bool of_prefix = false, of_tree = false;
};

QUIRE_DEVICE GenericItem item_at(const AttendArgs& a, std::int32_t index) {
  GenericItem item;
  item.slice = a.work.slices[index / a.num_kv_heads];
  item.lengths = lengths_of(a, item.slice.req);
  item.kv_head = index % a.num_kv_heads;
  item.num_rows = item.slice.row_end - item.slice.row_begin;
  const std::int64_t first_pos = item.lengths.context_len + item.slice.row_begin / a.group;
  item.first_visible = static_cast<std::int32_t>(semantics::visible_range(first_pos, a.window).begin);
  return item;
}

/// Finds the keys that rows of an item see, on thread 0 alone. There are none in a cache without pages.
QUIRE_DEVICE void describe_keys(const AttendArgs& a, std::int32_t index, const GenericBlock& block) {
  const WorkSlice& slice = a.work.slices[index / a.num_kv_heads];
  const Lengths n = lengths_of(a, slice.req);
  const Sight sight = sight_of(a, slice.req, n);
  const std::int64_t first = sight.first + slice.row_begin / a.group, last = sight.first + (slice.row_end - 1) / a.group;
  semantics::SeenKeys seen = sight.mask.seen_by(first, last);
  if (a.num_pages == 0) seen = seen.from(n.cached_len);
  const auto narrow = [](const semantics::KeyRange& keys) {
    return semantics::KeyRangeIn<std::int32_t>{static_cast<std::int32_t>(keys.begin), static_cast<std::int32_t>(keys.end)};
  };
  *block.keys = {{narrow(seen.prefix), narrow(seen.middle), narrow(seen.tree)}, static_cast<std::int32_t>(sight.mask.tree_begin)};
}

/// Threads 0 to kGenericTileRows - 1 describe the item's rows.
QUIRE_DEVICE void describe_rows(const AttendArgs& a, const GenericItem& item, const GenericBlock& block) {
  const int m = thread_index();
  if (m >= item.num_rows) return;
  const std::int32_t row = item.slice.row_begin + m, query_row = row / a.group;
  ScoreRow& r = block.rows[m];
  r.token = item.lengths.first_token + query_row;
  r.head = item.kv_head * a.group + row % a.group;
  const Sight sight = sight_of(a, item.slice.req, item.lengths);
  const semantics::KeyRange seen = sight.mask.of_row(sight.first + query_row);
  r.prefix_end = 0;
  if (sight.mask.prefix_end > 0) {
    const std::int64_t end = sight.mask.order_end(sight.first + query_row);
    r.prefix_end = static_cast<std::int32_t>(end < sight.mask.prefix_end ? end : sight.mask.prefix_end);
  }
  r.q_pos = static_cast<std::int32_t>(sight.first) + query_row;
  r.first_key = static_cast<std::int32_t>(seen.begin);
  r.end_key = static_cast<std::int32_t>(seen.end);
  r.slope = a.alibi_slopes.at(r.head, 0.0f);
  block.query_at[m] = a.query.strides.row(0, r.head, r.token);
}

QUIRE_DEVICE std::int32_t clamped(std::int64_t value, std::int32_t low, std::int32_t high) {
  return value < low ? low : value > high ? high : static_cast<std::int32_t>(value);
}

/// Keys from `at`, which some row sees, to the end of its tile or its range.
QUIRE_DEVICE TileKeys tile_keys_at(const GenericItem& item, const GenericBlock& block, std::int32_t at) {
  TileKeys keys;
  keys.first = at / kGenericTileKeys * kGenericTileKeys;
  const auto& seen = block.keys->seen;
  keys.of_prefix = at < seen.prefix.end;
  keys.of_tree = at >= seen.middle.end && !keys.of_prefix;
  const std::int32_t range_end = seen.range_end(at);
  keys.begin = at - keys.first;
  keys.end = clamped((range_end < item.slice.key_end ? range_end : item.slice.key_end) - keys.first, 0, kGenericTileKeys);
  keys.cached = clamped(item.lengths.cached_len - keys.first, keys.begin, keys.end);
  return keys;
}

QUIRE_DEVICE float scale_at(const semantics::TokenScales& scales, std::int64_t page, std::int64_t offset, std::int64_t head) {
  return scales.present() ? scales.at(page, offset, head) : 1.0f;
}

/// Whether a row sees a key of a tree, whose position counts from the request's first key.
QUIRE_DEVICE bool sees_in_tree(const AttendArgs& a, const ItemKeys& keys, const ScoreRow& row, std::int32_t position) {
  const semantics::TreeBits bits{a.tree_bits.data + row.token * a.tree_bytes_of_row, a.tree_bits.stride};
  const std::int32_t bit = position - keys.tree_begin;
  return bit < a.most_tree_keys && bits.sees(bit);
}

/// Makes NaN of every row that sees key t of the tile, which has no page.
QUIRE_DEVICE void miss_key(const AttendArgs& a, const GenericItem& item, const TileKeys& keys, const GenericBlock& block, int t) {
  block.key_scale[t] = block.value_scale[t] = semantics::bits_to_float(0x7FC00000u);
  bool seen = !keys.of_tree;
  for (int m = 0; m < item.num_rows && !seen; ++m) seen = sees_in_tree(a, *block.keys, block.rows[m], keys.first + t);
  if (seen) note_missing_page(a);
}

/// Computes the offsets and scales of the tile's keys and values, and the keys that each row sees. Keys of an entry that is no
/// page have the place of page 0 and NaN scales: a row that sees one becomes NaN.
QUIRE_DEVICE void describe_tile(const AttendArgs& a, const GenericItem& item, const TileKeys& keys, const GenericBlock& block) {
  const int t = thread_index();
  if (t >= keys.begin && t < keys.end) {
    const std::int32_t position = keys.first + t;
    if (t < keys.cached) {
      const std::int64_t found = page_at(a, item.slice.req, position / a.page_size), page = found == kNoPage ? 0 : found;
      block.key_at[t] = a.cache_k.strides.row(page, item.kv_head, position % a.page_size);
      block.value_at[t] = a.cache_v.strides.row(page, item.kv_head, position % a.page_size);
      block.key_scale[t] = scale_at(a.k_token_scale, page, position % a.page_size, item.kv_head);
      block.value_scale[t] = scale_at(a.v_token_scale, page, position % a.page_size, item.kv_head);
      if (found == kNoPage) miss_key(a, item, keys, block, t);
    } else {
      const std::int32_t token = item.lengths.first_token + position - item.lengths.context_len;
      block.key_at[t] = a.key.strides.row(0, item.kv_head, token);
      block.value_at[t] = a.value.strides.row(0, item.kv_head, token);
      block.key_scale[t] = block.value_scale[t] = 1.0f;
    }
  }
  const int m = t - kGenericTileKeys;
  if (m < 0 || m >= kGenericTileRows) return;
  // Rows beyond the item see nothing, at the place where the last row stops seeing.
  const ScoreRow& last = block.rows[m < item.num_rows ? m : item.num_rows - 1];
  const std::int32_t seen_end = keys.of_tree ? keys.first + keys.end : keys.of_prefix ? last.prefix_end : last.end_key;
  const std::int32_t seen_begin = keys.of_tree || keys.of_prefix ? keys.first + keys.begin : last.first_key;
  const std::int32_t end = clamped(seen_end - keys.first, 0, keys.end);
  block.rows[m].end = end;
  block.rows[m].begin = m < item.num_rows ? clamped(seen_begin - keys.first, keys.begin, kGenericTileKeys) : end;
}

/// The keys of a tile, or its values: cached rows and this step's.
struct TileSide {
  const RowSource &cache, &fresh;
  int head_dim;
  const std::int64_t* at;  ///< element offsets of the tile's rows; pages of those with block scales
  float scale;             ///< scale of cached rows
  BlockRows GenericArgs::* blocks;
};

/// Dims [first_dim, first_dim + dims) of the tile's keys (or values) into block.staged.
QUIRE_DEVICE void stage_tile(const GenericArgs& a, const GenericItem& item, const TileSide& side, const TileKeys& keys,
                             const GenericBlock& block, int first_dim, int dims) {
  const StagedRows cached{side.cache, side.at,       keys.begin, keys.cached,  first_dim,
                          dims,       side.head_dim, side.scale, block.staged, kDimPitch};
  const GenericArgs& here = args_here(a);  // strides in registers all along spill others on gfx11 and gfx12
  if (const BlockRows& blocks = here.*side.blocks; blocks.scales.present())
    stage_block_rows(cached, blocks, {keys.first, here.page_size, item.kv_head});
  else
    stage_rows</*kRowTypes=*/false>(cached);
  stage_rows</*kRowTypes=*/true>(
      {side.fresh, side.at, keys.cached, keys.end, first_dim, dims, side.head_dim, 1.0f, block.staged, kDimPitch});
}

}  // namespace quire::gpu
