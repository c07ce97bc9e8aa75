// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Rows of a packed cache become rows of dims in scratch, in their own type, and the direct path reads the scratch
// like any other layout. Values, whose dims lie apart, are turned sixteen tokens at a time. Pieces of 16 codes of an fp8 key are
// put side by side.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/attend_tile.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kTurnedTokens = 16;  // transpose_words(), transpose_codes(): two runs of eight

/// True if tokens of a dim lie side by side: V of the packed layout.
inline bool has_tokens_side_by_side(const RowSource& source) {
  return source.strides.token == 1 && source.strides.dim != 1 && source.strides.x >= source.dims && source.dims == source.stride;
}

/// True if such rows are turned before conversion: rows of 16-bit elements here, rows of fp8 codes below.
template <class V>
bool are_turned_words(const RowSource& source) {
  return V::kTransposesWords && (source.dtype == DType::f16 || source.dtype == DType::bf16) && source.dims % V::kWidth == 0 &&
         has_tokens_side_by_side(source);
}
template <class V>
bool are_turned_codes(const RowSource& source) {
  return V::kTransposedCodes > 0 && source.fp8_table != nullptr && source.dims % V::kTransposedCodes == 0 &&
         has_tokens_side_by_side(source);
}

/// Writes `count` rows to dst, source.dims elements apart. Sixteen rows in two runs of eight neighbours are turned by
/// transpose(from, gap, to), kDims dims a call. Others are copied one element at a time.
template <std::int64_t kDims, class Element, class Transpose>
void turn_rows(Element* dst, const RowSource& source, const std::int64_t* offsets, std::int64_t count, Transpose&& transpose) {
  constexpr std::int64_t kHalf = kTurnedTokens / 2;
  const auto* from = static_cast<const Element*>(source.data);
  if (count == kTurnedTokens && are_consecutive(offsets, kHalf) && are_consecutive(offsets + kHalf, kHalf)) {
    for (std::int64_t d = 0; d < source.dims; d += kDims)
      transpose(from + offsets[0] + d * source.strides.dim, offsets[kHalf] - offsets[0], dst + d);
    return;
  }
  for (std::int64_t r = 0; r < count; ++r)
    for (std::int64_t d = 0; d < source.dims; ++d) dst[r * source.dims + d] = from[offsets[r] + d * source.strides.dim];
}

template <class V>
void turn_words(std::uint16_t* dst, const RowSource& source, const std::int64_t* offsets, std::int64_t count) {
  if constexpr (V::kTransposesWords)
    turn_rows<V::kWidth>(dst, source, offsets, count, [&](const std::uint16_t* from, std::int64_t gap, std::uint16_t* to) {
      V::transpose_words(from, gap, source.strides.dim, to, source.dims);
    });
}
template <class V>
void turn_codes(std::uint8_t* dst, const RowSource& source, const std::int64_t* offsets, std::int64_t count) {
  if constexpr (V::kTransposedCodes > 0)
    turn_rows<V::kTransposedCodes>(dst, source, offsets, count,
                                   [&](const std::uint8_t* from, std::int64_t gap, std::uint8_t* to) {
                                     V::transpose_codes(from, gap, source.strides.dim, to, source.dims);
                                   });
}

/// True if keys are fp8 codes in pieces of 16.
inline bool are_code_pieces(const RowSource& source) {
  return source.fp8_table != nullptr && source.strides.dim == 1 && source.strides.x == 16 && source.dims > 16 &&
         source.dims % 16 == 0;
}
/// Puts the pieces of `count` such rows side by side, source.dims codes a row.
inline void join_code_pieces(std::uint8_t* dst, const RowSource& source, const std::int64_t* offsets, std::int64_t count) {
  const auto* codes = static_cast<const std::uint8_t*>(source.data);
  for (std::int64_t r = 0; r < count; ++r) {
    const std::uint8_t* from = codes + offsets[r];
    for (std::int64_t d = 0; d < source.dims; d += 16, from += source.strides.chunk)
      __builtin_memcpy(dst + r * source.dims + d, from, 16);
  }
}

/// Describes the codes at `data`, which are rows of dims now.
inline RowSource joined_rows(const RowSource& source, const void* data) {
  RowSource rows = source;
  rows.data = data;
  rows.strides = {};
  rows.strides.x = rows.strides.token = source.dims;
  return rows;
}
/// Holds the offsets at which rows at `data` begin.
struct JoinedOffsets {
  std::int64_t at[kTurnedTokens];
  explicit JoinedOffsets(const RowSource& source) {
    for (std::int64_t r = 0; r < kTurnedTokens; ++r) at[r] = r * source.dims;
  }
};

}  // namespace
}  // namespace quire::cpu
