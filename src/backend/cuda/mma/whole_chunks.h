// SPDX-License-Identifier: Apache-2.0
// Whether rows can be copied 16 bytes at a time, and written 4.
#pragma once

#include <cstdint>

#include "backend/gpu/args.h"
#include "quire/tensor.hpp"

namespace quire::cuda::mma {

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

/// Two neighbouring dims of an output row are one aligned word.
inline bool has_output_pairs(const gpu::AttendArgs& a) {
  const semantics::KvStrides& s = a.output_strides;
  return s.dim == 1 && s.x >= a.head_dim && s.head % 2 == 0 && s.token % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(a.output) % (2 * itemsize(a.output_dtype)) == 0;
}

}  // namespace quire::cuda::mma
