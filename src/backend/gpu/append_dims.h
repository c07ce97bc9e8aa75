// SPDX-License-Identifier: Apache-2.0
// append(): what the kernels of append.h and append_four_bits.h share. A thread takes kAppendDims of a row, loads them, and finds
// the slot that they go to.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/launch_sizes.h"
#include "semantics/dtype.h"

namespace quire::gpu {

/// Neighbouring dims of a row on their way, as one word.
template <int kBytes>
struct alignas(kBytes) AppendWord {
  std::uint8_t bytes[kBytes];
};
template <int kBytes>
QUIRE_DEVICE bool fits_word(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kBytes == 0;
}

/// Dims [first, first + count) of one row, count at most kAppendDims.
struct AppendDims {
  std::int32_t token, head, first, count;
  float value[kAppendDims];
};

/// Dims of rows of f32, f16 or bf16 (Q-S06), which have no chunks. A word is copied as a whole before its first code is decoded:
/// nvcc 13.0 loses the address of bytes that are read later, between branches (tools/ptx_addresses.py).
QUIRE_DEVICE void load_dims(AppendDims& dims, const RowSource& from) {
  const std::int64_t step = from.strides.dim, at = from.strides.row(0, dims.head, dims.token) + dims.first * step;
  if (from.dtype == DType::f32) {
    const auto* const start = static_cast<const float*>(from.data) + at;
    QUIRE_UNROLL
    for (int i = 0; i < kAppendDims; ++i)
      if (i < dims.count) dims.value[i] = start[i * step];
    return;
  }
  const auto* const start = static_cast<const std::uint16_t*>(from.data) + at;
  std::uint16_t codes[kAppendDims] = {};
  if (step == 1 && dims.count == kAppendDims && fits_word<16>(start)) {
    const AppendWord<16> word = *reinterpret_cast<const AppendWord<16>*>(start);
    QUIRE_UNROLL
    for (int i = 0; i < kAppendDims; ++i) codes[i] = static_cast<std::uint16_t>(word.bytes[2 * i] | word.bytes[2 * i + 1] << 8);
  } else {
    QUIRE_UNROLL
    for (int i = 0; i < kAppendDims; ++i)
      if (i < dims.count) codes[i] = start[i * step];
  }
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i)
    dims.value[i] = from.dtype == DType::bf16 ? semantics::bf16_decode(codes[i]) : semantics::f16_decode(codes[i]);
}

QUIRE_DEVICE void divide_dims(AppendDims& dims, float divisor) {
  if (divisor == 1.0f) return;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i) dims.value[i] /= divisor;
}

/// The place of a slot in the cache.
struct AppendSlot {
  std::int64_t page = 0, offset = 0;
};

/// False if the token has no slot, or one outside the cache.
QUIRE_DEVICE bool find_slot(const AppendArgs& a, std::int32_t token, AppendSlot& found) {
  const std::int64_t slot = a.slots[token], num_slots = a.num_pages * a.page_size;
  if (slot < 0 || slot >= num_slots) return false;
  const bool narrow = num_slots <= 0x7FFFFFFF;  // a division of 64 bits takes long
  found.page = narrow ? static_cast<std::uint32_t>(slot) / static_cast<std::uint32_t>(a.page_size) : slot / a.page_size;
  found.offset = slot - found.page * a.page_size;
  return true;
}

/// Calls visit(dims, is_key) for dims of all rows, which the threads of all blocks share out. Calls nothing if the outcome
/// is broken.
template <typename Visit>
QUIRE_DEVICE void for_all_dims(const AppendArgs& a, Visit&& visit) {
  if (a.outcome != nullptr && a.outcome->broken != 0) return;
  const AppendPieces pieces = append_pieces(a);
  const std::int64_t step = static_cast<std::int64_t>(num_blocks()) * pieces.tokens_at_once;
  for (std::int64_t first = static_cast<std::int64_t>(block_index()) * pieces.tokens_at_once; first < a.num_tokens; first += step)
    for (std::int32_t i = thread_index(); i < pieces.tokens_at_once * pieces.of_token; i += kAppendThreads) {
      const std::int64_t token = first + i / pieces.of_token;
      if (token >= a.num_tokens) break;
      const std::int32_t of_token = i % pieces.of_token, of_side = pieces.of_token / 2, piece = of_token % of_side;
      AppendDims dims{static_cast<std::int32_t>(token), piece / pieces.of_row, piece % pieces.of_row * kAppendDims, 0, {}};
      const bool is_key = of_token < of_side;
      const std::int32_t left = (is_key ? a.head_dim : a.v_head_dim) - dims.first;
      if (left <= 0) continue;
      dims.count = left < kAppendDims ? left : kAppendDims;
      visit(dims, is_key);
    }
}

}  // namespace quire::gpu
