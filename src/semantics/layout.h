// SPDX-License-Identifier: Apache-2.0
// Where an element of the cache lives: one address formula for the three layouts and for plain [tokens, heads, dim] rows.
#pragma once

#include <cstdint>

#include "quire/cache.hpp"
#include "semantics/qualifiers.h"

namespace quire::semantics {

/// Element (page, head, token, d) is at page*page + head*head + token*token + (d / x)*chunk + (d % x)*dim, all in elements.
struct KvStrides {
  std::int64_t page = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;
  std::int64_t chunk = 0;
  std::int64_t dim = 1;
  std::int64_t x = 1;  ///< dims per chunk; head_dim where the layout has no chunks

  QUIRE_HD std::int64_t row(std::int64_t page_id, std::int64_t head_id, std::int64_t token_id) const {
    return page_id * page + head_id * head + token_id * token;
  }
  QUIRE_HD std::int64_t element(std::int64_t d) const { return d / x * chunk + d % x * dim; }
};

/// Rows of bytes with two codes each, which lie side by side (Q-M55): element d is code d of the row (block_scale.h).
inline KvStrides in_codes(const KvStrides& bytes) { return {2 * bytes.page, 2 * bytes.head, 2 * bytes.token, 0, 1, 2 * bytes.x}; }

inline KvStrides k_strides(const KVCache& cache) {
  if (is_four_bit(cache.k.dtype)) {
    KVCache bytes = cache;
    bytes.k.dtype = DType::u8;
    return in_codes(k_strides(bytes));
  }
  const auto& s = cache.k.stride;
  const auto& n = cache.k.shape;
  switch (cache.layout) {
    case CacheLayout::nhd: return {s[0], s[2], s[1], 0, s[3], n[3]};
    case CacheLayout::hnd: return {s[0], s[1], s[2], 0, s[3], n[3]};
    case CacheLayout::packed: return {s[0], s[1], s[3], s[2], s[4], n[4]};
  }
  return {};
}

inline KvStrides v_strides(const KVCache& cache) {
  if (is_four_bit(cache.v.dtype)) {
    KVCache bytes = cache;
    bytes.v.dtype = DType::u8;
    return in_codes(v_strides(bytes));
  }
  const auto& s = cache.v.stride;
  const auto& n = cache.v.shape;
  switch (cache.layout) {
    case CacheLayout::nhd: return {s[0], s[2], s[1], 0, s[3], n[3]};
    case CacheLayout::hnd: return {s[0], s[1], s[2], 0, s[3], n[3]};
    case CacheLayout::packed: return {s[0], s[1], s[3], 0, s[2], n[2]};
  }
  return {};
}

}  // namespace quire::semantics
