// SPDX-License-Identifier: Apache-2.0
// append(): this step's K/V rows into their slots, converted to the cache's type. Every layout, type and stride, any number of
// heads and dims. A thread moves kAppendDims of a row, where they are neighbours as one word. The same bits as on the CPU:
// conversion is semantics/dtype.h, division is exact to the last bit.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/launch_sizes.h"
#include "semantics/block_scale.h"
#include "semantics/dtype.h"
#include "semantics/latent_row.h"
#include "semantics/token_scale.h"

namespace quire::gpu {

/// Sets outcome->broken if a slot is beyond the cache (Q-S01). Any number of blocks of kAppendThreads threads.
QUIRE_DEVICE void validate_slots(const AppendArgs& a) {
  bool broken = false;
  const std::int64_t step = static_cast<std::int64_t>(num_blocks()) * kAppendThreads;
  for (std::int64_t t = static_cast<std::int64_t>(block_index()) * kAppendThreads + thread_index(); t < a.num_tokens; t += step)
    broken |= a.slots[t] >= a.num_pages * a.page_size;
  if (broken) atomic_set(&a.outcome->broken, 1);
}

/// The bytes of an element: itemsize(), as a device can call it.
QUIRE_DEVICE int bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : dtype == DType::f16 || dtype == DType::bf16 ? 2 : 1; }

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

template <typename Decode>
QUIRE_DEVICE void decode_word(AppendDims& dims, const AppendWord<16>& word, Decode&& decode) {
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i)
    dims.value[i] = decode(static_cast<std::uint16_t>(word.bytes[2 * i] | word.bytes[2 * i + 1] << 8));
}

QUIRE_DEVICE void load_dims(AppendDims& dims, const RowSource& from) {
  const std::int64_t at = from.strides.row(0, dims.head, dims.token) + dims.first;
  const void* const start = static_cast<const std::uint16_t*>(from.data) + at;
  const bool is_word = from.strides.dim == 1 && dims.count == kAppendDims && fits_word<16>(start);
  if (is_word && from.dtype == DType::bf16)
    return decode_word(dims, *static_cast<const AppendWord<16>*>(start), [](auto code) { return semantics::bf16_decode(code); });
  if (is_word && from.dtype == DType::f16)
    return decode_word(dims, *static_cast<const AppendWord<16>*>(start), [](auto code) { return semantics::f16_decode(code); });
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i)
    if (i < dims.count) dims.value[i] = from.load(dims.token, dims.head, dims.first + i);
}

/// Codes of kBytes / kAppendDims bytes each to neighbouring elements from `start` on.
template <int kBytes, typename Encode>
QUIRE_DEVICE void encode_word(const AppendDims& dims, void* start, Encode&& encode) {
  constexpr int kEach = kBytes / kAppendDims;
  AppendWord<kBytes> word;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i) {
    const unsigned code = encode(dims.value[i]);
    word.bytes[kEach * i] = static_cast<std::uint8_t>(code);
    if constexpr (kEach == 2) word.bytes[kEach * i + 1] = static_cast<std::uint8_t>(code >> 8);
  }
  *static_cast<AppendWord<kBytes>*>(start) = word;
}

/// Stores all dims as one word; false if they do not fill an aligned word.
QUIRE_DEVICE bool store_word(const AppendDims& dims, void* start, DType dtype) {
  using namespace semantics;
  if (dims.count != kAppendDims || dtype == DType::f32) return false;
  if (bytes_of(dtype) == 2 ? !fits_word<16>(start) : !fits_word<8>(start)) return false;
  switch (dtype) {
    case DType::bf16: encode_word<16>(dims, start, [](float x) { return bf16_encode(x); }); return true;
    case DType::f16: encode_word<16>(dims, start, [](float x) { return f16_encode(x); }); return true;
    case DType::fp8_e4m3fn: encode_word<8>(dims, start, [](float x) { return fp8_encode<E4m3fn>(x); }); return true;
    case DType::fp8_e4m3fnuz: encode_word<8>(dims, start, [](float x) { return fp8_encode<E4m3fnuz>(x); }); return true;
    case DType::fp8_e5m2: encode_word<8>(dims, start, [](float x) { return fp8_encode<E5m2>(x); }); return true;
    case DType::fp8_e5m2fnuz: encode_word<8>(dims, start, [](float x) { return fp8_encode<E5m2fnuz>(x); }); return true;
    case DType::i8: encode_word<8>(dims, start, [](float x) { return static_cast<std::uint8_t>(i8_encode(x)); }); return true;
    default: return false;
  }
}

/// `at`: the element of the cache where the row would have its dim 0.
QUIRE_DEVICE void store_dims(const AppendDims& dims, const RowTarget& to, std::int64_t at) {
  const semantics::KvStrides& s = to.strides;
  if (s.dim == 1 && dims.first % static_cast<std::int32_t>(s.x) + kAppendDims <= s.x) {
    void* const start = static_cast<std::uint8_t*>(to.data) + (at + element_of(s, dims.first)) * bytes_of(to.dtype);
    if (store_word(dims, start, to.dtype)) return;
  }
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i)
    if (i < dims.count) semantics::store(to.data, to.dtype, at + element_of(s, dims.first + i), dims.value[i]);
}

/// Rows of keys or of values, their target and the scales that they are divided by.
struct AppendRows {
  const RowSource& from;
  const RowTarget& to;
  const PerHead& scale;
  const semantics::TokenScales& token_scale;  ///< instead of `scale`; written
  const semantics::BlockScales& block_scale;  ///< of 4-bit codes; written
  std::int32_t dims;                          ///< of a row
};

QUIRE_DEVICE void divide_dims(AppendDims& dims, float divisor) {
  if (divisor == 1.0f) return;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i) dims.value[i] /= divisor;
}

/// The scale of a whole row. Each thread of the row finds it for itself: no thread waits for another.
QUIRE_DEVICE float scale_of_row(const AppendRows& rows, std::int32_t token, std::int32_t head) {
  semantics::RowScale scale;
  QUIRE_NO_UNROLL
  for (std::int32_t first = 0; first < rows.dims; first += kAppendDims) {
    const std::int32_t left = rows.dims - first;
    AppendDims some{token, head, first, left < kAppendDims ? left : kAppendDims, {}};
    load_dims(some, rows.from);
    QUIRE_UNROLL
    for (int i = 0; i < kAppendDims; ++i)
      if (i < some.count) scale.add(some.value[i]);
  }
  return scale.of(rows.to.dtype);
}

/// The scale of the block that dims `first` of a latent row lie in. Each thread of the block finds it for itself.
QUIRE_DEVICE float scale_of_block(const RowSource& from, std::int32_t token, std::int32_t first) {
  constexpr auto kDims = static_cast<std::int32_t>(semantics::latent_row::kBlockDims);
  semantics::RowScale scale;
  QUIRE_NO_UNROLL
  for (std::int32_t d = first / kDims * kDims; d < first / kDims * kDims + kDims; d += kAppendDims) {
    AppendDims some{token, 0, d, kAppendDims, {}};
    load_dims(some, from);
    QUIRE_UNROLL
    for (int i = 0; i < kAppendDims; ++i) scale.add(some.value[i]);
  }
  return scale.of(DType::fp8_e4m3fn);
}

/// Dims of the latent part, or of the RoPE part, of a row of fp8_ds_mla.
QUIRE_DEVICE void append_latent_dims(AppendDims& dims, const AppendArgs& a, bool is_latent) {
  namespace latent = semantics::latent_row;
  const std::int64_t slot = a.slots[dims.token];
  if (slot < 0 || slot >= a.num_pages * a.page_size) return;
  load_dims(dims, is_latent ? a.key : a.value);
  auto* row = static_cast<std::uint8_t*>(a.cache_k.data) + a.cache_k.strides.row(slot / a.page_size, 0, slot % a.page_size);
  if (!is_latent) {
    QUIRE_UNROLL
    for (int i = 0; i < kAppendDims; ++i) latent::store_rope(row, dims.first + i, dims.value[i]);
    return;
  }
  const float scale = scale_of_block(a.key, dims.token, dims.first);
  if (dims.first % latent::kBlockDims == 0) latent::store_scale(row, dims.first / latent::kBlockDims, scale);
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i) latent::store_latent(row, dims.first + i, dims.value[i], scale);
}

/// The code of the scale of the block that dims `first` lie in. Each thread of the block finds it for itself.
QUIRE_DEVICE std::uint8_t scale_of_codes(const AppendRows& rows, const AppendDims& dims, float divisor) {
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

/// The row is on its way before its slot is known: each is a round trip to memory.
QUIRE_DEVICE void append_dims(AppendDims& dims, const AppendArgs& a, const AppendRows& rows) {
  load_dims(dims, rows.from);
  const bool of_token = rows.token_scale.present();
  const float divisor = of_token ? scale_of_row(rows, dims.token, dims.head) : rows.scale.at(dims.head, 1.0f);
  const std::int64_t slot = a.slots[dims.token], num_slots = a.num_pages * a.page_size;
  if (slot < 0 || slot >= num_slots) return;
  divide_dims(dims, divisor);
  const bool narrow = num_slots <= 0x7FFFFFFF;  // a division of 64 bits takes long
  const std::int64_t page =
      narrow ? static_cast<std::uint32_t>(slot) / static_cast<std::uint32_t>(a.page_size) : slot / a.page_size;
  const std::int64_t offset = slot - page * a.page_size;
  if (of_token && dims.first == 0) rows.token_scale.at(page, offset, dims.head) = divisor;
  const std::int64_t at = rows.to.strides.row(page, dims.head, offset);
  if (!rows.block_scale.present()) return store_dims(dims, rows.to, at);
  const std::uint8_t code = scale_of_codes(rows, dims, divisor);
  const std::int32_t size = semantics::elements_of_block(rows.to.dtype);
  if (dims.first % size == 0) rows.block_scale.code_at(page, offset, dims.head, dims.first / size) = code;
  store_codes(dims, rows.to, at, semantics::block_scale_decode(rows.to.dtype, code));
}

/// Appends rows. Any number of blocks of kAppendThreads threads, after validate_slots() if there is an outcome: writes nothing if
/// `broken` is set. A slot outside the cache is never written, with or without an outcome.
QUIRE_DEVICE void append(const AppendArgs& a) {
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
      if (a.cache_k.dtype == DType::fp8_ds_mla)
        append_latent_dims(dims, a, is_key);
      else if (is_key)
        append_dims(dims, a, {a.key, a.cache_k, a.k_scale, a.k_token_scale, a.k_block_scale, a.head_dim});
      else
        append_dims(dims, a, {a.value, a.cache_v, a.v_scale, a.v_token_scale, a.v_block_scale, a.v_head_dim});
    }
}

}  // namespace quire::gpu
