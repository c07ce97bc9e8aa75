// SPDX-License-Identifier: Apache-2.0
// append() of sides with codes of 4 bits: a kernel of its own, so that the kernel of other types (append.h) needs no registers
// for it. The same bits as on the CPU.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/append_dims.h"
#include "semantics/block_scale.h"

namespace quire::gpu {

/// Rows of keys or of values, their target and the scales of both levels.
struct FourBitRows {
  const RowSource& from;
  const RowTarget& to;
  const PerHead& scale;
  const semantics::BlockScales& block_scale;  ///< written
};

/// The code of the scale of the block that dims `first` lie in. Each thread of the block finds it for itself.
QUIRE_DEVICE std::uint8_t scale_of_codes(const FourBitRows& rows, const AppendDims& dims, float divisor) {
  const std::int32_t size = semantics::elements_of_block(rows.to.dtype), first = dims.first / size * size;
  semantics::BlockScale scale;
  QUIRE_NO_UNROLL
  for (std::int32_t d = first; d < first + size; d += kAppendDims) {
    AppendDims some{dims.token, dims.head, d, kAppendDims, {}};
    load_dims(some, rows.from);
    divide_dims(some, divisor);
    QUIRE_UNROLL
    for (int i = 0; i < kAppendDims; ++i) scale.add(some.value[i]);
  }
  return scale.code(rows.to.dtype);
}

/// Stores codes of 4 bits, two in a byte. `at`: the code of the cache where the row has its dim 0.
QUIRE_DEVICE void store_codes(const AppendDims& dims, const RowTarget& to, std::int64_t at, float scale) {
  static_assert(kAppendDims % 2 == 0);
  AppendWord<kAppendDims / 2> word;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; i += 2)
    word.bytes[i / 2] = static_cast<std::uint8_t>(semantics::encode_in_block(dims.value[i], scale) |
                                                  semantics::encode_in_block(dims.value[i + 1], scale) << 4);
  auto* const start = static_cast<std::uint8_t*>(to.data) + (at + dims.first) / 2;
  if (fits_word<kAppendDims / 2>(start)) {
    *reinterpret_cast<AppendWord<kAppendDims / 2>*>(start) = word;
    return;
  }
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims / 2; ++i) start[i] = word.bytes[i];
}

QUIRE_DEVICE void append_codes(AppendDims& dims, const AppendArgs& a, const FourBitRows& rows) {
  load_dims(dims, rows.from);
  const float divisor = rows.scale.at(dims.head, 1.0f);
  AppendSlot slot;
  if (!find_slot(a, dims.token, slot)) return;
  divide_dims(dims, divisor);
  const std::uint8_t code = scale_of_codes(rows, dims, divisor);
  const std::int32_t size = semantics::elements_of_block(rows.to.dtype);
  if (dims.first % size == 0) rows.block_scale.code_at(slot.page, slot.offset, dims.head, dims.first / size) = code;
  store_codes(dims, rows.to, rows.to.strides.row(slot.page, dims.head, slot.offset),
              semantics::block_scale_decode(rows.to.dtype, code));
}

/// Appends the sides of 4 bits, K, V or both; append() takes the others. Blocks, outcome and slots are those of append().
QUIRE_DEVICE void append_four_bits(const AppendArgs& a) {
  for_all_dims(a, [&](AppendDims& dims, bool is_key) {
    if (is_key && a.k_block_scale.present()) append_codes(dims, a, {a.key, a.cache_k, a.k_scale, a.k_block_scale});
    if (!is_key && a.v_block_scale.present()) append_codes(dims, a, {a.value, a.cache_v, a.v_scale, a.v_block_scale});
  });
}

}  // namespace quire::gpu
