// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Rows that registers take as they lie in the cache, by type: no scratch, no scale.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"

namespace quire::cpu {
namespace {

/// kWidth elements as f32, by type.
template <class V, DType kType>
typename V::Reg load_elements(const std::uint8_t* row, std::int64_t d) {
  if constexpr (kType == DType::f16) return V::load_f16(reinterpret_cast<const std::uint16_t*>(row) + d);
  if constexpr (kType == DType::bf16) return V::load_bf16(reinterpret_cast<const std::uint16_t*>(row) + d);
  return V::load(reinterpret_cast<const float*>(row) + d);
}

/// A 16-bit row in pieces of 16 bytes, `step` bytes apart: K of the packed layout.
constexpr std::int64_t kPiece = 8;  // elements

/// load_elements() from such a row. f32 stands for pairs of bf16, and `d` counts pairs then.
template <class V, DType kType>
typename V::Reg load_elements_of_pieces(const std::uint8_t* row, std::int64_t d, std::int64_t step) {
  if constexpr (kType == DType::f32) {
    return V::load_pieces(row + d / (kPiece / 2) * step, step);
  } else if constexpr (V::kWidth <= kPiece) {
    return load_elements<V, kType>(row + d / kPiece * step, d % kPiece);
  } else if constexpr (kType == DType::f16) {
    return V::load_f16_pieces(row + d / kPiece * step, step);
  } else {
    return V::load_bf16_pieces(row + d / kPiece * step, step);
  }
}

/// Whether keys can be read in place as pieces: whole vectors of them.
inline bool readable_as_pieces(const RowSource& source) {
  return (source.dtype == DType::f16 || source.dtype == DType::bf16) && source.strides.dim == 1 && source.strides.x == kPiece &&
         source.dims > kPiece && source.dims == source.stride && source.dims % kPiece == 0;
}

/// Whether rows can be read in place: whole vectors side by side, of a type that a register takes.
inline bool readable_in_place(const RowSource& source) {
  const bool direct_type = source.dtype == DType::f32 || source.dtype == DType::f16 || source.dtype == DType::bf16;
  return direct_type && source.strides.dim == 1 && source.strides.x >= source.dims && source.dims == source.stride;
}

/// fp8 rows as rows of bf16 words, by whole vectors, where the dims of a row lie side by side. This one is of instruction sets
/// without the byte permutes that it takes (fp8_words.h): it takes none.
template <class V, bool kHere = V::kWidensFp8>
class Fp8Widener {
 public:
  explicit Fp8Widener(const RowSource&) {}
  static constexpr bool takes() { return false; }
  void operator()(const std::int64_t*, std::int64_t, void*, std::int64_t, std::int64_t) const {}
};

/// Calls visit(kType{}) with the type that the elements of `source` are loaded as.
template <DType kType>
struct TypeConstant {
  static constexpr DType kValue = kType;
};
template <class Visit>
inline __attribute__((always_inline)) void for_element_type(DType type, Visit&& visit) {
  if (type == DType::f32) return visit(TypeConstant<DType::f32>{});
  if (type == DType::f16) return visit(TypeConstant<DType::f16>{});
  visit(TypeConstant<DType::bf16>{});
}

/// dst[c][r] = src[r][c] for a kWidth x kWidth block.
template <class V>
void transpose_block(const float* src, std::int64_t src_stride, float* dst, std::int64_t dst_stride) {
  typename V::Reg block[V::kWidth];
  for (int i = 0; i < V::kWidth; ++i) block[i] = V::load(src + i * src_stride);
  V::transpose(block);
  for (int i = 0; i < V::kWidth; ++i) V::store(dst + i * dst_stride, block[i]);
}

}  // namespace
}  // namespace quire::cpu
