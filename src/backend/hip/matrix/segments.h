// SPDX-License-Identifier: Apache-2.0
// The keys of an item by how they are stored: what the cache holds has its type and scales, this step's own rows are 16-bit and
// unscaled. Where both are the same there is one segment, so that a row folds the same tiles wherever cached_len lies.
#pragma once

#include "backend/gpu/generic_block.h"
#include "backend/gpu/pages.h"
#include "backend/hip/matrix/instructions.h"
#include "semantics/softmax_state.h"

namespace quire::hip::matrix {

using semantics::kLn2;
using semantics::kLog2e;

/// Stored as fp8.
QUIRE_DEVICE bool is_coded(DType type) { return type != DType::f16 && type != DType::bf16; }

/// Keys [begin, end), none of them left of what the item's rows see.
struct Segment {
  int begin = 0, end = 0;
  DType type = DType::none;  ///< type of K and V; rows of 16 bits may lie in the cache or in `key` and `value`
  bool coded = false;        ///< the type is an fp8 one
  float scale = 1.0f;        ///< softmax_scale * k_scale
  float v_scale = 1.0f;
};

/// Segment 0 or 1 of the item.
QUIRE_DEVICE Segment segment_of(const gpu::AttendArgs& a, const gpu::GenericItem& item, int index) {
  const bool coded = is_coded(a.cache_k.dtype);
  const bool apart = coded || a.k_scale.data != nullptr || a.v_scale.data != nullptr;
  const bool cached = index == 0;
  const int border = apart ? item.lengths.cached_len : item.slice.key_end;
  const int begin = item.slice.key_begin > item.first_visible ? item.slice.key_begin : item.first_visible;
  Segment s;
  s.begin = cached || begin > border ? begin : border;
  s.end = cached && border < item.slice.key_end ? border : item.slice.key_end;
  s.coded = cached && coded;
  s.type = s.coded ? a.cache_k.dtype : a.query.dtype;
  s.scale = a.score.scale * (cached ? a.k_scale.at(item.kv_head, 1.0f) : 1.0f);
  s.v_scale = cached ? a.v_scale.at(item.kv_head, 1.0f) : 1.0f;
  return s;
}

/// Keys of the tile at `first` from this one on are this step's; tile_keys if none is.
QUIRE_DEVICE int first_fresh_key(const gpu::GenericItem& item, const Segment& segment, int first, int tile_keys) {
  return item.lengths.cached_len < segment.end ? item.lengths.cached_len - first : tile_keys;
}

/// Where the rows of one key begin in memory; 0 = there is no such key, and its row is zeros.
struct RowAddresses {
  std::uint64_t k = 0, v = 0;
};

QUIRE_DEVICE std::uint64_t address_of(const gpu::RowSource& rows, std::int64_t element, int item_size) {
  return reinterpret_cast<std::uintptr_t>(rows.data) + static_cast<std::uint64_t>(element * item_size);
}

/// Looks up a position of the request. Positions outside the segment have no address, and their entries of the table are not
/// read.
QUIRE_DEVICE RowAddresses look_up(const gpu::AttendArgs& a, const gpu::GenericItem& item, const Segment& segment, int position) {
  if (position < segment.begin || position >= segment.end) return {};
  if (position >= item.lengths.cached_len) {
    const std::int64_t token = item.lengths.first_token + position - item.lengths.context_len;
    return {address_of(a.key, a.key.strides.row(0, item.kv_head, token), 2),
            address_of(a.value, a.value.strides.row(0, item.kv_head, token), 2)};
  }
  const std::int64_t page = gpu::seen_page_at(a, item.slice.req, position / a.page_size);
  const int slot = position % a.page_size, size = segment.coded ? 1 : 2;
  return {address_of(a.cache_k, a.cache_k.strides.row(page, item.kv_head, slot), size),
          address_of(a.cache_v, a.cache_v.strides.row(page, item.kv_head, slot), size)};
}

}  // namespace quire::hip::matrix
