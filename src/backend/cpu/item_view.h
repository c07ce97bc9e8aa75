// SPDX-License-Identifier: Apache-2.0
// Stage: attend. One work item as the kernels see it: which rows, which keys each of them sees, where in scratch things lie.
// Knows nothing of vectors or tiles' arithmetic.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "semantics/mask.h"
#include "semantics/softmax_state.h"

namespace quire::cpu {
namespace {

using semantics::SoftmaxState;

constexpr std::int64_t kMaxTileKv = 128;  // plan.tile_kv never exceeds it

/// Half-open range of key indices within a tile.
struct TileKeys {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool empty() const { return begin >= end; }
  bool operator==(const TileKeys& o) const { return begin == o.begin && end == o.end; }
};

/// A work item with its pointers: score row m is query row m / group of the item and head m % group of the KV head's group.
struct ItemView {
  const AttendArgs& args;
  const WorkItem& item;
  std::int64_t group, stride, v_stride, tile_kv, num_rows, first_token;
  std::int64_t first_position;  ///< position of the request's first row, counted from its first key
  semantics::Mask mask;
  semantics::SeenKeys seen;  ///< keys that some row of the item sees
  float *query, *acc, *total, *staging, *k_panel, *v_panel, *scores;
  SoftmaxState *states, *totals;
  bool direct;  ///< attend_direct.h instead of tiles in scratch

  ItemView(const AttendArgs& a, const WorkItem& w, float* scratch) : args(a), item(w) {
    const plan_detail::ThreadScratch& at = a.scratch;
    group = a.group;
    stride = a.stride;
    v_stride = a.v_stride;
    tile_kv = a.tile_kv;
    num_rows = (w.row_end - w.row_begin) * group;
    const Request& req = a.reqs[w.req];
    first_position = req.context_len + req.shift;
    mask.reach = semantics::reach_of(req.causal, a.window, a.window_right);
    mask.num_keys = req.context_len + req.query_len;
    mask.key_begin = req.key_begin;
    mask.set_chunk(a.chunk);
    mask.set_regions(req.prefix_len, req.tree_len);
    mask.spans_beyond_window = a.spans_beyond_window;
    if (req.num_spans > 0) mask.spans = spans_of(a.spans, w.req);
    seen = mask.seen_by(first_position + w.row_begin, first_position + w.row_end - 1);
    if (a.num_pages == 0) seen = seen.from(req.cached_len);
    first_token = a.query_start_loc[w.req] + w.row_begin;
    query = scratch + at.query;
    acc = scratch + at.acc;
    total = scratch + at.total;
    staging = scratch + at.staging;
    k_panel = scratch + at.k_panel;
    v_panel = scratch + at.v_panel;
    scores = scratch + at.scores;
    states = reinterpret_cast<SoftmaxState*>(scratch + at.states);
    totals = states + num_rows;
    direct = num_rows <= a.direct_rows && !mask.has_tree();
  }
  static semantics::SpanList spans_of(const Tensor& t, std::int64_t req) {
    const auto* base = static_cast<const std::uint8_t*>(t.data);
    return {base + req * t.stride[0] * itemsize(t.dtype), t.shape[1], t.stride[1], t.stride[2], t.dtype};
  }
  std::int64_t head(std::int64_t m) const { return item.kv_head * group + m % group; }
  std::int64_t token(std::int64_t m) const { return first_token + m / group; }
  std::int64_t q_pos(std::int64_t m) const { return first_position + item.row_begin + m / group; }
  /// ALiBi slope of row m's head, 0 without.
  float slope(std::int64_t m) const {
    if (args.alibi_slopes == nullptr) return 0.0f;
    return args.alibi_slopes[head(m) * args.alibi_stride];
  }
  /// Keys of [first, last) that row m sees, relative to tile_begin. No region of the mask ends between them. In a tree, all keys:
  /// tree_bits() says which of them the row sees.
  TileKeys keys(std::int64_t m, std::int64_t tile_begin, std::int64_t first, std::int64_t last) const {
    const semantics::KeyRange of_row = mask.seen(q_pos(m), first, last);
    return {of_row.begin - tile_begin, of_row.end - tile_begin};
  }
  semantics::TreeBits tree_bits(std::int64_t m) const {
    return {args.tree_bits.data + token(m) * args.tree_stride, args.tree_bits.stride};
  }
  /// Whether `key` is of a tree and row m does not see it.
  bool tree_hides(std::int64_t m, std::int64_t key) const {
    return key >= mask.tree_begin && !tree_bits(m).sees(key - mask.tree_begin);
  }
  /// The end of the part of a tile that begins at the seen key `at`: the tile's, a range's or that of the keys, whatever comes
  /// first.
  std::int64_t stop(std::int64_t at, std::int64_t limit) const {
    const std::int64_t tile_end = (at / tile_kv + 1) * tile_kv, range_end = seen.range_end(at);
    const std::int64_t end = tile_end < range_end ? tile_end : range_end;
    return end < limit ? end : limit;
  }
};

/// Keys of a tree that lie within the range of a row and that the row does not see.
struct HiddenKeys {
  const ItemView& view;
  std::int64_t row, tile_begin;
  bool of_tree;

  bool operator[](std::int64_t j) const { return view.tree_hides(row, tile_begin + j); }
};

}  // namespace
}  // namespace quire::cpu
