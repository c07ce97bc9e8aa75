// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Rows of a tile as rows of bf16 codes, padded with zeros to whole vectors of 32: in place where the cache holds
// them like that, through scratch where it does not. Every bf16 and fp8 code is a bf16; nothing is rounded.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/amx/tile_rows.h"
#include "backend/cpu/attend_args.h"
#include "backend/cpu/fp8_words.h"
#include "backend/cpu/planted.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kVectorDims = 32;  // bf16 elements of one vector

/// Whether rows of this source can be read in place.
inline bool bf16_in_place(const RowSource& s, std::int64_t head_dim) {
  return s.dtype == DType::bf16 && s.strides.dim == 1 && s.strides.x >= head_dim && head_dim % kVectorDims == 0;
}

/// Copies rows of head_dim elements as bf16 to rows of `dims`, a multiple of 32; the rest of a row is zeroed.
class RowStager {
 public:
  RowStager(const RowSource& source, std::int64_t head_dim, std::int64_t dims)
      : codes_(source.fp8_bf16 != nullptr ? source.fp8_bf16 : kNoCodes), source_(source), head_dim_(head_dim), dims_(dims) {
    contiguous_ = source.strides.dim == 1 && source.strides.x >= head_dim;
  }
  /// One row at `from`; null: a row of zeros.
  void stage(const std::uint8_t* from, std::uint16_t* to) const {
    if (from == nullptr) return QUIRE_PLANTED(masked_keys_multiplied) ? void() : clear(to, 0);
    const bool fp8 = source_.fp8_bf16 != nullptr;
    if (contiguous_ && !fp8) return stage_words(from, to);
    for (std::int64_t chunk = 0, d = 0; d < head_dim_; ++chunk)
      for (std::int64_t i = 0; i < source_.strides.x && d < head_dim_; ++i, ++d) {
        const std::int64_t at = chunk * source_.strides.chunk + i * source_.strides.dim;
        to[d] = fp8 ? source_.fp8_bf16[from[at]] : reinterpret_cast<const std::uint16_t*>(from)[at];
      }
    clear(to, head_dim_);
  }
  /// Whether stage_fp8 takes these rows.
  bool vector_fp8() const {
#ifdef __AVX512VBMI__
    return contiguous_ && source_.fp8_bf16 != nullptr;
#else
    return false;
#endif
  }
#ifdef __AVX512VBMI__
  /// rows[0 .. count) at `from`, none of them null, to rows of `dims`.
  void stage_fp8(const std::uint8_t* const* from, std::int64_t count, std::uint8_t* to) const {
    fp8_rows_as_bf16(codes_, from, count, head_dim_, to, 2 * dims_, 2 * dims_);
  }
#endif

 private:
  static constexpr std::uint16_t kNoCodes[256] = {};

  void clear(std::uint16_t* to, std::int64_t d) const {
    for (; d < dims_; ++d) to[d] = 0;
  }
  void stage_words(const std::uint8_t* from, std::uint16_t* to) const {
    for (std::int64_t d = 0; d < dims_; d += 32) {
      const std::int64_t left = head_dim_ - d;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
      _mm512_storeu_si512(to + d, _mm512_maskz_loadu_epi16(mask, from + 2 * d));
    }
  }

  Fp8Codes codes_;
  const RowSource& source_;
  std::int64_t head_dim_, dims_;
  bool contiguous_ = false;
};

}  // namespace
}  // namespace quire::cpu
