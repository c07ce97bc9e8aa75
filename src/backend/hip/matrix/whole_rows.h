// SPDX-License-Identifier: Apache-2.0
// Tells if rows, or pieces of packed caches, can be read and written sixteen bytes at a time. Others are read by elements.
#pragma once

#include "backend/hip/matrix/segments.h"

namespace quire::hip::matrix {

/// Every row is head_dim neighbouring elements that begin at a multiple of 16 bytes.
QUIRE_DEVICE bool has_whole_rows(const void* data, int item_size, const semantics::KvStrides& s, int head_dim) {
  if (data == nullptr) return true;
  const std::int64_t steps = (s.page | s.head | s.token) * item_size;
  return s.dim == 1 && s.x >= head_dim && ((steps | static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data))) & 15) == 0;
}

/// The cache is packed: K [.., head_dim / x, page_size, x] with x of 16 bytes, V [.., head_dim, page_size].
QUIRE_DEVICE bool is_packed(const gpu::AttendArgs& a) { return a.cache_k.strides.x < a.head_dim; }

/// 16 bytes of a token's keys, and 8 tokens of a dim's values, lie at multiples of their length and in one page.
QUIRE_DEVICE bool has_packed_pieces(const gpu::AttendArgs& a, int item_size) {
  constexpr int kTokens = 8;
  const semantics::KvStrides &k = a.cache_k.strides, &v = a.cache_v.strides;
  const std::int64_t key_steps = (k.page | k.head | k.token | k.chunk) * item_size, value_steps = v.page | v.head | v.dim;
  const auto k_at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(a.cache_k.data)),
             v_at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(a.cache_v.data));
  return k.x * item_size == 16 && k.dim == 1 && v.token == 1 && v.x >= a.head_dim && a.page_size % kTokens == 0 &&
         ((key_steps | k_at) & 15) == 0 && value_steps % kTokens == 0 && v_at % (kTokens * item_size) == 0;
}

/// True if this holds for all rows of a call, and for all pieces of a packed cache.
QUIRE_DEVICE bool has_whole_rows(const gpu::AttendArgs& a) {
  const int cache_size = is_coded(a.cache_k.dtype) ? 1 : 2;
  const bool whole_cache = is_packed(a) ? has_packed_pieces(a, cache_size)
                                        : has_whole_rows(a.cache_k.data, cache_size, a.cache_k.strides, a.head_dim) &&
                                              has_whole_rows(a.cache_v.data, cache_size, a.cache_v.strides, a.head_dim);
  return whole_cache && has_whole_rows(a.query.data, 2, a.query.strides, a.head_dim) &&
         has_whole_rows(a.key.data, 2, a.key.strides, a.head_dim) &&
         has_whole_rows(a.value.data, 2, a.value.strides, a.head_dim) &&
         has_whole_rows(a.output, 2, a.output_strides, a.head_dim);
}

/// Walks over the elements of a row from dim d on, whatever its strides: byte offsets from the row's begin.
class ElementWalk {
 public:
  QUIRE_DEVICE ElementWalk(const semantics::KvStrides& s, int d, int item_size)
      : x_(static_cast<int>(s.x)),
        in_chunk_(d % x_),
        step_(s.dim * item_size),
        chunk_step_((s.chunk - (s.x - 1) * s.dim) * item_size),
        offset_((d / x_ * s.chunk + in_chunk_ * s.dim) * item_size) {}
  QUIRE_DEVICE std::int64_t offset() const { return offset_; }
  QUIRE_DEVICE void next() {
    const bool ends = ++in_chunk_ == x_;
    offset_ += ends ? chunk_step_ : step_;
    if (ends) in_chunk_ = 0;
  }

 private:
  int x_, in_chunk_;
  std::int64_t step_, chunk_step_, offset_;
};

}  // namespace quire::hip::matrix
