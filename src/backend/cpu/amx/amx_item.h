// SPDX-License-Identifier: Apache-2.0
// Stage: attend. A work item of cpu_amx with the places of its operands in scratch, and its queries.
#pragma once

#include <cstdint>

#include "backend/cpu/amx/panels.h"
#include "backend/cpu/amx/weights.h"
#include "backend/cpu/attend_args.h"
#include "backend/cpu/elements.h"
#include "backend/cpu/item_view.h"

namespace quire::cpu {
namespace {

/// A work item with the places of its operands in scratch (plan_detail::AmxScratch).
struct AmxItem {
  ItemView view;
  const AttendArgs& args;
  std::int64_t dims, num_rows, acc_rows;
  bool few, stacked;
  bool careful = false;  ///< stacked: elements of V that are not finite are kept out of the products
  std::uint8_t *query, *query_panel, *k_staged, *v_staged, *k_panel, *v_panel;
  float *acc, *total, *scores, *key_scores, *k_factors, *v_factors, *row;
  std::uint32_t* weights;
  SoftmaxState *states, *totals;  ///< [padded rows] each: rows that pad a block have a state, which nobody reads
  RowStager stage_k, stage_v, stage_key, stage_value;
  bool k_in_place, v_in_place, fresh_k_in_place, fresh_v_in_place;
  float k_scale, v_scale;
  TileRows tiles[2];
  RowPrefetch prefetch;
  std::int64_t prefetch_bytes;  ///< bytes of a row; 0: rows do not lie in one piece
  std::int64_t
      prefetch_places;  ///< calls of prefetch.step() while a tile is worked on; stacked: for its scores, and for its sums
  const TileRows* next = nullptr;  ///< the tile after the current one

  AmxItem(const AttendArgs& a, const WorkItem& w, float* scratch)
      : view(a, w, scratch),
        args(a),
        dims(a.stride),
        num_rows(view.num_rows),
        few(num_rows <= kTileRows),
        stacked(num_rows <= a.direct_rows && kParts * num_rows <= kTileRows),
        stage_k(a.cache_k, a.head_dim, dims),
        stage_v(a.cache_v, a.head_dim, dims),
        stage_key(a.key, a.head_dim, dims),
        stage_value(a.value, a.head_dim, dims) {
    const plan_detail::AmxScratch& at = a.amx_scratch;
    auto* bytes = reinterpret_cast<std::uint8_t*>(scratch);
    acc_rows = stacked ? kParts * num_rows : num_rows;
    query = bytes + at.query, query_panel = bytes + at.query_panel;
    k_staged = bytes + at.k_staged, v_staged = bytes + at.v_staged;
    k_panel = bytes + at.k_panel, v_panel = bytes + at.v_panel;
    acc = reinterpret_cast<float*>(bytes + at.acc), total = reinterpret_cast<float*>(bytes + at.total);
    scores = reinterpret_cast<float*>(bytes + at.scores), key_scores = reinterpret_cast<float*>(bytes + at.key_scores);
    k_factors = reinterpret_cast<float*>(bytes + at.factors), v_factors = k_factors + kTileKeys;
    row = reinterpret_cast<float*>(bytes + at.row);
    weights = reinterpret_cast<std::uint32_t*>(bytes + at.weights);
    states = reinterpret_cast<SoftmaxState*>(bytes + at.states), totals = states + plan_detail::amx_padded_rows(num_rows);
    k_in_place = bf16_in_place(a.cache_k, a.head_dim), v_in_place = bf16_in_place(a.cache_v, a.head_dim);
    fresh_k_in_place = bf16_in_place(a.key, a.head_dim), fresh_v_in_place = bf16_in_place(a.value, a.head_dim);
    k_scale = a.k_scale != nullptr ? a.k_scale[w.kv_head * a.k_scale_stride] : 1.0f;
    v_scale = a.v_scale != nullptr ? a.v_scale[w.kv_head * a.v_scale_stride] : 1.0f;
    // Other layouts than whole rows are not worth asking for line by line.
    const auto whole = [&](const RowSource& s) { return s.strides.dim == 1 && s.strides.x >= a.head_dim; };
    prefetch_bytes = whole(a.cache_k) && whole(a.cache_v) ? a.head_dim * itemsize(a.cache_k.dtype) : 0;
    const std::int64_t operands = kTileKeys / kTileRows * (dims / kVectorDims);
    prefetch_places = stacked ? operands : 2 * operands + (few ? (1 + kParts) * operands : kTileKeys / kTileRows);
  }
  std::int64_t kv_head() const { return view.item.kv_head; }
};

/// Queries as rows of bf16, [padded rows][dims], zero where there is none; packed as well if they are few.
inline void load_amx_queries(const AmxItem& v) {
  const AttendArgs& a = v.args;
  const RowStager stager(a.query, a.query.dims, v.dims);
  for (std::int64_t m = 0; m < plan_detail::amx_padded_rows(v.num_rows); ++m) {
    const std::uint8_t* from = nullptr;
    if (m < v.num_rows)
      from = static_cast<const std::uint8_t*>(a.query.data) + 2 * a.query.strides.row(0, v.view.head(m), v.view.token(m));
    stager.stage(from, reinterpret_cast<std::uint16_t*>(v.query + 2 * m * v.dims));
  }
  if (!v.few) return;
  const std::uint8_t* rows[kTileRows];
  for (std::int64_t m = 0; m < kTileRows; ++m) rows[m] = v.query + 2 * m * v.dims;
  pack_columns(rows, v.dims, v.query_panel);
}

}  // namespace
}  // namespace quire::cpu
