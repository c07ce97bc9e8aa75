// SPDX-License-Identifier: Apache-2.0
// The CPU attention kernel, once: one work item = one KV head of one request, a tile of query rows, a range of keys.
//
// Algorithm (FlashAttention-2 order, Dao 2023, arXiv:2307.08691): for each segment of split_keys keys, for each tile of tile_kv
// keys: convert K and V to f32, S = Q K^T, score, mask, running softmax, acc = acc * correction + P V; then fold the segment.
// Every row's arithmetic depends on its own query, its own keys and their absolute positions only; rows and threads share
// tiles but never partial sums. That makes results batch-invariant and independent of how work is cut.
// `V` is the instruction set: simd_scalar.h, simd_avx2.h, simd_avx512.h. No std templates in here: an out-of-line copy of one
// compiled for AVX-512 could serve the whole program.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/attend_direct.h"
#include "backend/cpu/attend_tile.h"
#include "backend/cpu/finish_row.h"
#include "backend/cpu/fold_rows.h"
#include "backend/cpu/item_view.h"
#include "backend/cpu/tile_path.h"

namespace quire::cpu {
namespace {

/// One segment from scratch: acc and states hold its keys [begin, end) afterwards.
template <class V>
void absorb_segment(const ItemView& v, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = 0; i < v.num_rows * v.v_stride; ++i) v.acc[i] = V::Faults::at_start(v.acc[i]);
  for (std::int64_t m = 0; m < v.num_rows; ++m) v.states[m] = V::Faults::at_start(v.states[m]);
  if (v.direct) return absorb_directly<V>(v, begin, end);
  begin = v.seen.next(begin);
  if (begin >= end) return;
  Tile tiles[2];
  int current = 0;
  find_tile<V>(tiles[0], v, begin, v.stop(begin, end));
  for (std::int64_t at = begin; at < end; current ^= 1) {
    const std::int64_t stop = v.seen.next(tiles[current].end), limit = stop < end ? end : v.item.key_end;
    Tile* next = stop < limit ? &tiles[current ^ 1] : nullptr;
    if (next != nullptr) find_tile<V>(*next, v, stop, v.stop(stop, limit));
    absorb_tile<V>(v, tiles[current], next);
    at = stop;
  }
}

// ---- entry points ---------------------------------------------------------------------------------------------------------

template <class V>
void load_queries(const ItemView& v) {
  for (std::int64_t m = 0; m < v.num_rows; ++m) {
    load_key<V>(v.query + m * v.stride, /*temp=*/v.v_panel, v.args.query, v.args.query.strides.row(0, v.head(m), v.token(m)),
                v.args,
                /*scale=*/1.0f);
  }
}

/// KernelEntry::attend.
template <class V>
std::int64_t attend_item(const AttendArgs& args, const WorkItem& item, float* scratch) {
  const ItemView v(args, item, scratch);
  load_queries<V>(v);
  if (item.partial >= 0) {
    absorb_segment<V>(v, item.key_begin, item.key_end);
    store_partials<V>(v);
    return 0;
  }
  for (std::int64_t i = 0; i < v.num_rows * v.v_stride; ++i) v.total[i] = 0.0f;
  for (std::int64_t m = 0; m < v.num_rows; ++m) v.totals[m] = SoftmaxState{};
  const std::int64_t split = args.split_keys;
  for (std::int64_t at = item.key_begin; at < item.key_end;) {
    if (args.interrupt != nullptr && args.interrupt->ended()) return 0;
    const std::int64_t next = (at / split + 1) * split;
    const std::int64_t stop = next < item.key_end ? next : item.key_end;
    absorb_segment<V>(v, at, stop);
    for (std::int64_t m = 0; m < v.num_rows; ++m)
      fold_row<V>(v.total + m * v.v_stride, v.totals[m], v.acc + m * v.v_stride, v.states[m], v.v_stride);
    at = stop;
  }
  for (std::int64_t m = 0; m < v.num_rows; ++m) finish_row<V>(args, v.token(m), v.head(m), v.total + m * v.v_stride, v.totals[m]);
  return v.num_rows;
}

}  // namespace
}  // namespace quire::cpu
