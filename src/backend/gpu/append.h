// SPDX-License-Identifier: Apache-2.0
// append(): this step's K/V rows into their slots, converted to the cache's type. Every layout, type and stride, any number of
// heads and dims. A thread moves kAppendDims of a row, where they are neighbours as one word. The same bits as on the CPU:
// conversion is semantics/dtype.h, division is exact to the last bit.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/append_dims.h"
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

/// Bits of dims as the cache stores them.
struct AppendBits {
  std::uint32_t of_dim[kAppendDims];
};
template <typename Encode>
QUIRE_DEVICE AppendBits encode_dims(const AppendDims& dims, Encode&& encode) {
  AppendBits bits;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i) bits.of_dim[i] = encode(dims.value[i]);
  return bits;
}
QUIRE_DEVICE AppendBits encode_dims(const AppendDims& dims, DType dtype) {
  using namespace semantics;
  switch (dtype) {
    case DType::bf16: return encode_dims(dims, [](float x) { return bf16_encode(x); });
    case DType::f16: return encode_dims(dims, [](float x) { return f16_encode(x); });
    case DType::fp8_e4m3fn: return encode_dims(dims, [](float x) { return fp8_encode<E4m3fn>(x); });
    case DType::fp8_e4m3fnuz: return encode_dims(dims, [](float x) { return fp8_encode<E4m3fnuz>(x); });
    case DType::fp8_e5m2: return encode_dims(dims, [](float x) { return fp8_encode<E5m2>(x); });
    case DType::fp8_e5m2fnuz: return encode_dims(dims, [](float x) { return fp8_encode<E5m2fnuz>(x); });
    case DType::i8: return encode_dims(dims, [](float x) { return static_cast<std::uint8_t>(i8_encode(x)); });
    default: return encode_dims(dims, [](float x) { return float_to_bits(x); });  // f32
  }
}

/// Elements of kBytes / kAppendDims bytes each to one word.
template <int kBytes>
QUIRE_DEVICE void store_word(const AppendBits& bits, void* start) {
  constexpr int kEach = kBytes / kAppendDims;
  AppendWord<kBytes> word;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i) {
    word.bytes[kEach * i] = static_cast<std::uint8_t>(bits.of_dim[i]);
    if constexpr (kEach == 2) word.bytes[kEach * i + 1] = static_cast<std::uint8_t>(bits.of_dim[i] >> 8);
  }
  *static_cast<AppendWord<kBytes>*>(start) = word;
}

/// Stores all dims as one word; false if they do not fill an aligned word.
QUIRE_DEVICE bool store_word(const AppendBits& bits, const AppendDims& dims, void* start, int bytes) {
  if (dims.count != kAppendDims || bytes == 4) return false;
  if (bytes == 2 ? !fits_word<16>(start) : !fits_word<8>(start)) return false;
  if (bytes == 2)
    store_word<16>(bits, start);
  else
    store_word<8>(bits, start);
  return true;
}

QUIRE_DEVICE void store_element(std::uint32_t bits, void* at, int bytes) {
  if (bytes == 4)
    *static_cast<std::uint32_t*>(at) = bits;
  else if (bytes == 2)
    *static_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(bits);
  else
    *static_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(bits);
}

/// `at`: the element of the cache where the row would have its dim 0.
QUIRE_DEVICE void store_dims(const AppendDims& dims, const RowTarget& to, std::int64_t at) {
  const semantics::KvStrides& s = to.strides;
  const int bytes = bytes_of(to.dtype);
  const AppendBits bits = encode_dims(dims, to.dtype);
  auto* const row = static_cast<std::uint8_t*>(to.data) + at * bytes;
  if (s.dim == 1 && dims.first % static_cast<std::int32_t>(s.x) + kAppendDims <= s.x)
    if (store_word(bits, dims, row + element_of(s, dims.first) * bytes, bytes)) return;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i)
    if (i < dims.count) store_element(bits.of_dim[i], row + element_of(s, dims.first + i) * bytes, bytes);
}

/// Rows of keys or of values, their target and the scales that they are divided by.
struct AppendRows {
  const RowSource& from;
  const RowTarget& to;
  const PerHead& scale;
  const semantics::TokenScales& token_scale;  ///< replacement of `scale`; append() writes it
  std::int32_t dims;
};

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

/// The row is on its way before its slot is known: each is a round trip to memory.
QUIRE_DEVICE void append_dims(AppendDims& dims, const AppendArgs& a, const AppendRows& rows) {
  load_dims(dims, rows.from);
  const bool of_token = rows.token_scale.present();
  const float divisor = of_token ? scale_of_row(rows, dims.token, dims.head) : rows.scale.at(dims.head, 1.0f);
  AppendSlot slot;
  if (!find_slot(a, dims.token, slot)) return;
  divide_dims(dims, divisor);
  if (of_token && dims.first == 0) rows.token_scale.at(slot.page, slot.offset, dims.head) = divisor;
  store_dims(dims, rows.to, rows.to.strides.row(slot.page, dims.head, slot.offset));
}

/// Appends rows, but for sides of 4 bits (append_four_bits.h). Any number of blocks of kAppendThreads threads, after
/// validate_slots() if there is an outcome: writes nothing if `broken` is set. A slot outside the cache is never written, with or
/// without an outcome.
QUIRE_DEVICE void append(const AppendArgs& a) {
  for_all_dims(a, [&](AppendDims& dims, bool is_key) {
    if (a.cache_k.dtype == DType::fp8_ds_mla) return append_latent_dims(dims, a, is_key);
    if (is_key) {
      if (!a.k_block_scale.present()) append_dims(dims, a, {a.key, a.cache_k, a.k_scale, a.k_token_scale, a.head_dim});
    } else if (!a.v_block_scale.present()) {
      append_dims(dims, a, {a.value, a.cache_v, a.v_scale, a.v_token_scale, a.v_head_dim});
    }
  });
}

}  // namespace quire::gpu
