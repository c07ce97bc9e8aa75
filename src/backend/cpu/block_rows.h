// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Rows of 4-bit codes and their scales, by the number of a row (BlockRows): where they lie, and their values.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"

namespace quire::cpu {
namespace {

/// The first byte of a row, and that of the scales of its blocks.
struct BlockRowBytes {
  const std::uint8_t *codes, *scales;
};
inline BlockRowBytes block_row_bytes(const BlockRows& rows, std::int64_t number) {
  const auto lowest = [](std::int64_t value, int bits) { return value & ((std::int64_t{1} << bits) - 1); };
  const std::int64_t head = lowest(number, rows.head_bits), token = lowest(number >> rows.head_bits, rows.token_bits);
  const std::int64_t page = number >> (rows.head_bits + rows.token_bits);
  return {static_cast<const std::uint8_t*>(rows.codes) + rows.strides.row(page, head, token) / 2,
          &rows.scales.code_at(page, token, head, 0)};
}

/// A row as f32: codes times the scales of their blocks, which is exact.
template <class V>
__attribute__((noinline)) void load_block_row(float* dst, const RowSource& src, std::int64_t number) {
  constexpr std::int64_t kStep = 16;  // a block of nvfp4, half a block of mxfp4
  const BlockRows& rows = *src.blocks;
  const std::int64_t block = semantics::elements_of_block(rows.scales.cached);
  BlockRowBytes at = block_row_bytes(rows, number);
  for (std::int64_t d = 0; d < src.dims; d += block, at.scales += rows.scales.block) {
    const typename V::Reg factor = V::set1(rows.scale_values[*at.scales]);
    for (std::int64_t i = d; i < d + block; i += kStep, at.codes += kStep / 2) {
      typename V::Reg values[kStep / V::kWidth];
      V::load_e2m1(at.codes, values);
      for (std::int64_t r = 0; r < kStep / V::kWidth; ++r) V::store(dst + i + r * V::kWidth, V::mul(values[r], factor));
    }
  }
}

}  // namespace
}  // namespace quire::cpu
