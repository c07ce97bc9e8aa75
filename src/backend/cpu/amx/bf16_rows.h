// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Rows of a tile as rows of bf16 codes, padded with zeros to whole vectors of 32: in place where the cache holds
// them like that, through scratch where it does not. Every bf16 and fp8 code is a bf16; nothing is rounded.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/amx/tile_rows.h"
#include "backend/cpu/attend_args.h"
#include "backend/cpu/fp8_words.h"
#include "backend/cpu/packed_rows.h"
#include "backend/cpu/simd_avx512.h"

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
    constexpr std::int64_t kPieceBytes = 16, kTurnedDims = 64;
    const std::int64_t size = itemsize(source.dtype);
    pieces_ =
        source.strides.dim == 1 && source.strides.x * size == kPieceBytes && head_dim == dims && head_dim % kTurnedDims == 0;
    tokens_ = source.strides.token == 1 && source.strides.dim != 1 && source.strides.x >= head_dim && head_dim == dims &&
              head_dim % kTurnedDims == 0;
  }
  /// One row at `from`; null: a row of zeros.
  void stage(const std::uint8_t* from, std::uint16_t* to) const {
    if (from == nullptr) return clear(to, 0);
    const bool fp8 = source_.fp8_bf16 != nullptr;
    if (contiguous_ && !fp8) return stage_words(from, to);
    if (pieces_ && !fp8) return stage_pieces(from, to);
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
  /// Turns sixteen rows of a packed cache, V [.., head_dim, page_size], into rows of `dims`. False if the rows are not two runs
  /// of eight neighbouring tokens.
  bool stage_tokens(const std::uint8_t* const* from, std::uint16_t* to) const {
    const std::int64_t size = itemsize(source_.dtype);
    if (!tokens_ || !is_run(from, size) || !is_run(from + 8, size)) return false;
    const std::int64_t gap = (from[8] - from[0]) / size;
    if (source_.fp8_bf16 == nullptr) {
      for (std::int64_t d = 0; d < head_dim_; d += 16)
        Avx512Simd::transpose_words(reinterpret_cast<const std::uint16_t*>(from[0]) + d * source_.strides.dim, gap,
                                    source_.strides.dim, to + d, dims_);
      return true;
    }
#ifdef __AVX512VBMI__
    alignas(64) std::uint8_t codes[kTurnedTokens * 64];
    const std::uint8_t* rows[kTurnedTokens];
    for (std::int64_t r = 0; r < kTurnedTokens; ++r) rows[r] = codes + r * 64;
    for (std::int64_t d = 0; d < head_dim_; d += 64) {
      Avx512Simd::transpose_codes(from[0] + d * source_.strides.dim, gap, source_.strides.dim, codes, 64);
      fp8_rows_as_bf16(codes_, rows, kTurnedTokens, 64, reinterpret_cast<std::uint8_t*>(to + d), 128, 2 * dims_);
    }
    return true;
#else
    return false;
#endif
  }
  /// True if stage_code_pieces() takes these rows.
  bool vector_code_pieces() const {
#ifdef __AVX512VBMI__
    return pieces_ && source_.fp8_bf16 != nullptr;
#else
    return false;
#endif
  }
#ifdef __AVX512VBMI__
  /// Makes rows of `dims` of `count` fp8 keys of a packed cache, K [.., head_dim / 16, page_size, 16]. No row is null.
  void stage_code_pieces(const std::uint8_t* const* from, std::int64_t count, std::uint16_t* to) const {
    const std::int64_t step = source_.strides.chunk;
    alignas(64) std::uint8_t codes[64];
    const std::uint8_t* const rows[1] = {codes};
    for (std::int64_t r = 0; r < count; ++r)
      for (std::int64_t d = 0; d < head_dim_; d += 64) {
        for (std::int64_t piece = 0; piece < 4; ++piece)
          __builtin_memcpy(codes + 16 * piece, from[r] + (d / 16 + piece) * step, 16);
        fp8_rows_as_bf16(codes_, rows, 1, 64, reinterpret_cast<std::uint8_t*>(to + r * dims_ + d), 128, 128);
      }
  }
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

  static bool is_run(const std::uint8_t* const* rows, std::int64_t size) {
    for (std::int64_t i = 0; i < 8; ++i)
      if (rows[i] == nullptr || rows[i] != rows[0] + i * size) return false;
    return true;
  }
  void stage_pieces(const std::uint8_t* from, std::uint16_t* to) const {
    const std::int64_t step = 2 * source_.strides.chunk;
    for (std::int64_t d = 0; d < head_dim_; d += 8, from += step)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + d), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  Fp8Codes codes_;
  const RowSource& source_;
  std::int64_t head_dim_, dims_;
  bool contiguous_ = false, pieces_ = false, tokens_ = false;
};

}  // namespace
}  // namespace quire::cpu
