// SPDX-License-Identifier: Apache-2.0
// Whether rows can be copied and written 16 bytes at a time, or written 4.
#pragma once

#include <cstdint>

#include "backend/gpu/args.h"
#include "quire/tensor.hpp"

namespace quire::cuda::tile {

/// True if every row is head_dim neighbouring elements that begin at a multiple of 16 bytes.
inline bool has_whole_chunks(const gpu::RowSource& rows, std::int64_t head_dim) {
  if (rows.data == nullptr) return true;
  const std::int64_t n = 16 / itemsize(rows.dtype);  // elements a chunk
  const semantics::KvStrides& s = rows.strides;
  const bool strides_fit = s.dim == 1 && s.x >= head_dim && s.page % n == 0 && s.head % n == 0 && s.token % n == 0;
  return strides_fit && reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0;
}

inline bool has_whole_chunks(const gpu::AttendArgs& a) {
  for (const gpu::RowSource* rows : {&a.query, &a.cache_k, &a.cache_v, &a.key, &a.value})
    if (!has_whole_chunks(*rows, a.head_dim)) return false;
  return true;
}

/// Caches as packed_source.h reads them: 16 bytes of a token's keys, and 8 tokens of a dim's values, each at a multiple of its
/// length and in one page; all other rows in whole chunks.
inline bool has_packed_pieces(const gpu::AttendArgs& a) {
  for (const gpu::RowSource* rows : {&a.query, &a.key, &a.value})
    if (!has_whole_chunks(*rows, a.head_dim)) return false;
  constexpr std::int64_t kTokens = 8;
  const semantics::KvStrides &k = a.cache_k.strides, &v = a.cache_v.strides;
  const std::int64_t x = 16 / itemsize(a.cache_k.dtype), value_bytes = kTokens * itemsize(a.cache_v.dtype);
  const bool keys = k.x == x && k.dim == 1 && k.chunk % x == 0 && k.token % x == 0 && k.head % x == 0 && k.page % x == 0 &&
                    reinterpret_cast<std::uintptr_t>(a.cache_k.data) % 16 == 0;
  const bool values = v.token == 1 && v.x >= a.head_dim && v.dim % kTokens == 0 && v.head % kTokens == 0 &&
                      v.page % kTokens == 0 &&
                      reinterpret_cast<std::uintptr_t>(a.cache_v.data) % static_cast<std::uintptr_t>(value_bytes) == 0;
  return a.page_size % kTokens == 0 && keys && values;
}

/// Output rows are of the query's type, and runs of 16-byte chunks that begin at multiples of their size.
inline bool has_output_chunks(const gpu::AttendArgs& a) {
  return a.output_dtype == a.query.dtype && has_whole_chunks({a.output, a.output_dtype, a.output_strides}, a.v_head_dim);
}

/// Two neighbouring dims of an output row are one aligned word.
inline bool has_output_pairs(const gpu::AttendArgs& a) {
  const semantics::KvStrides& s = a.output_strides;
  return s.dim == 1 && s.x >= a.v_head_dim && s.head % 2 == 0 && s.token % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(a.output) % (2 * itemsize(a.output_dtype)) == 0;
}

}  // namespace quire::cuda::tile
