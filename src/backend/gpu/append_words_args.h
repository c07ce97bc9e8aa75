// SPDX-License-Identifier: Apache-2.0
// Arguments of append_words.h, and which calls of append() it takes: made on the host, so that a thread divides and multiplies
// little before it reads its row.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "backend/gpu/args.h"
#include "backend/gpu/launch_sizes.h"

namespace quire::gpu {

constexpr int kAppendWordThreads = 128;
constexpr int kAppendColumn = 8;  ///< tokens of a column of packed values

/// Division of numbers below 2^31 by one divisor in [1, 2^31): a multiplication and a shift (Granlund and Montgomery 1994,
/// "Division by invariant integers using multiplication", theorem 4.2 with N = 31).
struct Divisor {
  std::uint32_t divisor = 1, factor = 0x80000000u;
  std::int32_t shift = 31;
  QUIRE_HD std::uint32_t of(std::uint32_t n) const { return static_cast<std::uint32_t>(std::uint64_t{n} * factor >> shift); }
};
inline Divisor divisor_of(std::int64_t divisor) {
  const auto d = static_cast<std::uint64_t>(divisor);
  int bits = 0;
  while ((std::uint64_t{1} << bits) < d) ++bits;
  const std::uint64_t power = std::uint64_t{1} << (31 + bits);
  return {static_cast<std::uint32_t>(d), static_cast<std::uint32_t>((power + d - 1) / d), 31 + bits};
}

/// Rows of keys or of values and where they go. Strides are in bytes.
struct AppendSide {
  const std::uint8_t* rows = nullptr;
  std::uint8_t* cache = nullptr;
  std::int64_t row_token = 0, row_head = 0, row_piece = 0;
  std::int64_t page = 0, token = 0, head = 0, chunk = 0, piece = 0;
  PerHead scale;
  Divisor of_token, of_row, of_chunk;  ///< pieces of a token, of a row and of a chunk of its dims
};

struct AppendWords {
  AppendSide key, value;
  const std::uint8_t* slots = nullptr;
  std::int64_t slot_stride = 0;  ///< bytes
  bool wide_slots = false;       ///< i64
  std::int32_t num_tokens = 0;
  std::uint32_t num_slots = 0;  ///< number of slots, less than 2^31
  Divisor page_size;
  std::int32_t key_blocks = 0, value_blocks = 0;
  std::int32_t widest_run = 0;  ///< tokens that a word of packed values may hold; 0: values are words, too
  DType rows = DType::none, stored = DType::none;
};
inline std::int64_t append_word_blocks(const AppendWords& a) { return std::int64_t{a.key_blocks} + a.value_blocks; }

namespace append_detail {

/// Address and strides, in bytes, are multiples of `bytes`.
inline bool aligned(const void* at, std::initializer_list<std::int64_t> strides, std::int64_t bytes) {
  std::int64_t all = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(at));
  for (const std::int64_t stride : strides) all |= stride;
  return all % bytes == 0;
}

/// The side as words of kAppendDims dims; false if its tensors have none.
inline bool word_side(AppendSide& side, const RowSource& rows, const RowTarget& cache, std::int64_t stored_bytes,
                      std::int64_t heads, std::int64_t dim) {
  const semantics::KvStrides &from = rows.strides, &to = cache.strides;
  if (from.dim != 1 || to.dim != 1 || dim % kAppendDims != 0 || to.x % kAppendDims != 0) return false;
  side.row_piece = 2 * kAppendDims;
  side.piece = stored_bytes * kAppendDims;
  side.chunk = to.chunk * stored_bytes;
  side.of_row = divisor_of(dim / kAppendDims);
  side.of_token = divisor_of(heads * dim / kAppendDims);
  side.of_chunk = divisor_of(to.x / kAppendDims);
  return aligned(side.rows, {side.row_token, side.row_head}, side.row_piece) &&
         aligned(side.cache, {side.page, side.token, side.head, side.chunk}, side.piece);
}

/// The side as columns, one dim each; how many tokens of one a word may hold, or 0 if tokens are no neighbours.
inline std::int32_t column_side(AppendSide& side, const RowSource& rows, const RowTarget& cache, std::int64_t stored_bytes,
                                std::int64_t heads, std::int64_t dim, std::int64_t page_size) {
  if (cache.strides.token != 1) return 0;
  side.row_piece = 2 * rows.strides.dim;
  side.piece = stored_bytes * cache.strides.dim;
  side.of_row = divisor_of(dim);
  side.of_token = divisor_of(heads * dim);
  side.of_chunk = divisor_of(dim);
  std::int32_t run = kAppendColumn;
  while (run > 1 && (page_size % run != 0 || !aligned(side.cache, {side.page, side.head, side.piece}, run * stored_bytes)))
    run /= 2;
  return run;
}

inline AppendSide bare_side(const RowSource& rows, const RowTarget& cache, std::int64_t stored_bytes, const PerHead& scale) {
  AppendSide side;
  side.rows = static_cast<const std::uint8_t*>(rows.data);
  side.cache = static_cast<std::uint8_t*>(cache.data);
  side.row_token = 2 * rows.strides.token;
  side.row_head = 2 * rows.strides.head;
  side.page = stored_bytes * cache.strides.page;
  side.token = stored_bytes * cache.strides.token;
  side.head = stored_bytes * cache.strides.head;
  side.scale = scale;
  return side;
}

/// Blocks for `tokens` groups; 0 if their items have no number of 31 bits.
inline std::int32_t blocks_of(std::int64_t groups, const AppendSide& side) {
  const std::int64_t items = groups * side.of_token.divisor;
  return items > 0x7FFFFFFF - kAppendWordThreads
             ? 0
             : static_cast<std::int32_t>((items + kAppendWordThreads - 1) / kAppendWordThreads);
}

}  // namespace append_detail

/// Empty for what is left to append.h: f32 rows or caches, fnuz and i8 codes, another 16-bit type, scales of tokens or beside a
/// copy, dims that are no neighbours or no multiple of 8, addresses or strides that are no multiple of a word, an outcome, 2^31
/// slots or pieces.
inline std::optional<AppendWords> append_words_args(const AppendArgs& a) {
  using namespace append_detail;
  const DType rows = a.key.dtype, stored = a.cache_k.dtype;
  const bool is_copy = stored == rows && a.k_scale.data == nullptr && a.v_scale.data == nullptr;
  const bool is_code = stored == DType::fp8_e4m3fn || stored == DType::fp8_e5m2;
  if ((rows != DType::bf16 && rows != DType::f16) || a.value.dtype != rows || a.cache_v.dtype != stored || a.outcome != nullptr ||
      (!is_copy && !is_code) || a.k_token_scale.present() || a.v_token_scale.present() || a.num_tokens < 1 ||
      a.num_pages * a.page_size > 0x7FFFFFFF)
    return {};
  const std::int64_t bytes = is_copy ? 2 : 1, heads = a.num_kv_heads;
  AppendWords w;
  w.key = bare_side(a.key, a.cache_k, bytes, a.k_scale);
  w.value = bare_side(a.value, a.cache_v, bytes, a.v_scale);
  if (!word_side(w.key, a.key, a.cache_k, bytes, heads, a.head_dim)) return {};
  if (!word_side(w.value, a.value, a.cache_v, bytes, heads, a.v_head_dim)) {
    w.value = bare_side(a.value, a.cache_v, bytes, a.v_scale);
    w.widest_run = column_side(w.value, a.value, a.cache_v, bytes, heads, a.v_head_dim, a.page_size);
    if (w.widest_run == 0) return {};
  }
  w.key_blocks = blocks_of(a.num_tokens, w.key);
  const std::int32_t each = w.widest_run > 0 ? kAppendColumn : 1;
  w.value_blocks = blocks_of((std::int64_t{a.num_tokens} + each - 1) / each, w.value);
  if (w.key_blocks == 0 || w.value_blocks == 0 || append_word_blocks(w) > 0x7FFFFFFF) return {};
  const std::int64_t slot_bytes = a.slots.dtype == DType::i64 ? 8 : 4;
  w.slots = static_cast<const std::uint8_t*>(a.slots.data);
  w.slot_stride = slot_bytes * a.slots.stride;
  w.wide_slots = slot_bytes == 8;
  w.num_tokens = a.num_tokens;
  w.num_slots = static_cast<std::uint32_t>(a.num_pages * a.page_size);
  w.page_size = divisor_of(a.page_size);
  w.rows = rows;
  w.stored = stored;
  return w;
}

}  // namespace quire::gpu
