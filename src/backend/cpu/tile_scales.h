// SPDX-License-Identifier: Apache-2.0
// Stage: attend. The scales of a tile's cached tokens, where tokens have scales of their own.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/item_view.h"

namespace quire::cpu {
namespace {

/// Scales by key, relative to the tile: 1 for this step's rows, for keys beside those that were asked for, and for a side whose
/// tokens have none.
struct TileScales {
  bool given = false;
  float k[kMaxTileKv], v[kMaxTileKv];
  float of_key(std::int64_t j) const { return given ? k[j] : 1.0f; }
  float of_value(std::int64_t j) const { return given ? v[j] : 1.0f; }
};

/// Fills `scales` for positions [begin, end) of one tile; reads no other scale and no other entry of the table.
inline void find_scales(TileScales& scales, const AttendArgs& a, std::int64_t req, std::int64_t kv_head, std::int64_t begin,
                        std::int64_t end) {
  scales.given = a.k_token_scale.present() || a.v_token_scale.present();
  if (!scales.given) return;
  const std::int64_t tile_begin = begin / a.tile_kv * a.tile_kv, cached = a.reqs[req].cached_len;
  for (std::int64_t j = 0; j < kMaxTileKv; ++j) scales.k[j] = scales.v[j] = 1.0f;
  const semantics::PageRow pages = pages_of(a, req);
  semantics::for_each_page_run(pages, a.page_size, begin, end < cached ? end : cached,
                               [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                 const std::int64_t first = position - tile_begin;
                                 for (std::int64_t i = 0; i < count && a.k_token_scale.present(); ++i)
                                   scales.k[first + i] = a.k_token_scale.at(page, offset + i, kv_head);
                                 for (std::int64_t i = 0; i < count && a.v_token_scale.present(); ++i)
                                   scales.v[first + i] = a.v_token_scale.at(page, offset + i, kv_head);
                               });
}

/// The whole vectors that cover `keys`, times their scales.
template <class V>
void scale_by_key(float* row, TileKeys keys, const float* scales) {
  for (std::int64_t j = keys.begin / V::kWidth * V::kWidth; j < keys.end; j += V::kWidth)
    V::store(row + j, V::mul(V::load(row + j), V::load(scales + j)));
}

}  // namespace
}  // namespace quire::cpu
