// SPDX-License-Identifier: Apache-2.0
// Stage: attend. One work item as the kernels see it: which rows, which keys each of them sees, where in scratch things lie.
// Knows nothing of vectors or tiles' arithmetic.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "semantics/softmax_state.h"
#include "semantics/visible_range.h"

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
  std::int64_t first_position, num_keys;  ///< of the request: where its first row stands, counted from its first key
  semantics::Reach reach;
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
    num_keys = req.context_len + req.query_len;
    reach = semantics::reach_of(req.causal, a.window, a.window_right);
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
    direct = num_rows <= a.direct_rows;
  }
  std::int64_t head(std::int64_t m) const { return item.kv_head * group + m % group; }
  std::int64_t token(std::int64_t m) const { return first_token + m / group; }
  std::int64_t q_pos(std::int64_t m) const { return first_position + item.row_begin + m / group; }
  /// ALiBi slope of row m's head, 0 without.
  float slope(std::int64_t m) const {
    if (args.alibi_slopes == nullptr) return 0.0f;
    return args.alibi_slopes[head(m) * args.alibi_stride];
  }
  /// Keys of [first, last) that row m sees, relative to tile_begin.
  TileKeys keys(std::int64_t m, std::int64_t tile_begin, std::int64_t first, std::int64_t last) const {
    const semantics::KeyRange seen = semantics::visible_range(reach, q_pos(m), num_keys);
    const std::int64_t begin = seen.begin > first ? seen.begin : first;
    const std::int64_t end = seen.end < last ? seen.end : last;
    return {begin - tile_begin, end - tile_begin};
  }
};

}  // namespace
}  // namespace quire::cpu
