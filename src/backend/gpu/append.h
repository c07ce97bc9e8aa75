// append(): this step's K/V rows into their slots, converted to the cache's type. Every layout, type and stride, any number of
// heads and dims. A thread moves kAppendDims of a row, where they are neighbours as one word. The same bits as on the CPU:
// conversion is semantics/dtype.h, division is exact to the last bit.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/launch_sizes.h"
#include "semantics/dtype.h"

namespace quire::gpu {

/// Sets outcome->broken if a slot is beyond the cache (Q-S01). Any number of blocks of kAppendThreads threads.
QUIRE_DEVICE void validate_slots(const AppendArgs& a) {
  bool broken = false;
  const std::int64_t step = static_cast<std::int64_t>(num_blocks()) * kAppendThreads;
  for (std::int64_t t = static_cast<std::int64_t>(block_index()) * kAppendThreads + thread_index(); t < a.num_tokens; t += step)
    broken |= a.slots[t] >= a.num_pages * a.page_size;
  if (broken) atomic_set(&a.outcome->broken, 1);
}

/// Of an element: itemsize(), for devices.
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
  std::int64_t token;
  std::int32_t head, first, count;
  float value[kAppendDims];
};

QUIRE_DEVICE void load_dims(AppendDims& dims, const RowSource& from) {
  const std::int64_t at = from.strides.row(0, dims.head, dims.token) + dims.first;
  const void* const start = static_cast<const std::uint16_t*>(from.data) + at;
  if (bytes_of(from.dtype) == 2 && from.strides.dim == 1 && dims.count == kAppendDims && fits_word<16>(start)) {
    const AppendWord<16> word = *static_cast<const AppendWord<16>*>(start);
    for (int i = 0; i < kAppendDims; ++i) dims.value[i] = semantics::load(word.bytes, from.dtype, i);
    return;
  }
  for (int i = 0; i < dims.count; ++i) dims.value[i] = from.load(dims.token, dims.head, dims.first + i);
}

/// To neighbouring elements from `start` on, if they make a whole word there.
template <int kBytes>
QUIRE_DEVICE bool store_word(const AppendDims& dims, void* start, DType dtype) {
  if (dims.count != kAppendDims || bytes_of(dtype) * kAppendDims != kBytes || !fits_word<kBytes>(start)) return false;
  AppendWord<kBytes> word;
  for (int i = 0; i < kAppendDims; ++i) semantics::store(word.bytes, dtype, i, dims.value[i]);
  *static_cast<AppendWord<kBytes>*>(start) = word;
  return true;
}

/// `at`: the element of the cache where the row would have its dim 0.
QUIRE_DEVICE void store_dims(const AppendDims& dims, const RowTarget& to, std::int64_t at) {
  const semantics::KvStrides& s = to.strides;
  if (s.dim == 1 && dims.first % static_cast<std::int32_t>(s.x) + kAppendDims <= s.x) {
    void* const start = static_cast<std::uint8_t*>(to.data) + (at + element_of(s, dims.first)) * bytes_of(to.dtype);
    if (store_word<16>(dims, start, to.dtype) || store_word<8>(dims, start, to.dtype)) return;
  }
  for (int i = 0; i < dims.count; ++i) semantics::store(to.data, to.dtype, at + element_of(s, dims.first + i), dims.value[i]);
}

QUIRE_DEVICE void append_dims(AppendDims& dims, const RowSource& from, const RowTarget& to, const PerHead& scale,
                              std::int64_t slot, std::int64_t page_size) {
  load_dims(dims, from);
  const float divisor = scale.at(dims.head, 1.0f);
  if (divisor != 1.0f)
    for (int i = 0; i < dims.count; ++i) dims.value[i] /= divisor;
  store_dims(dims, to, to.strides.row(slot / page_size, dims.head, slot % page_size));
}

/// Any number of blocks of kAppendThreads threads, after validate_slots() if there is an outcome: writes nothing if `broken` is
/// set. A slot outside the cache is never written, whether anybody asked or not.
QUIRE_DEVICE void append(const AppendArgs& a) {
  if (a.outcome != nullptr && a.outcome->broken != 0) return;
  const std::int64_t num_slots = a.num_pages * a.page_size, step = static_cast<std::int64_t>(num_blocks()) * kAppendThreads;
  const std::int32_t of_row = (a.head_dim + kAppendDims - 1) / kAppendDims, of_side = a.num_kv_heads * of_row;
  const std::int64_t pieces = append_pieces(a);
  for (std::int64_t i = static_cast<std::int64_t>(block_index()) * kAppendThreads + thread_index(); i < pieces; i += step) {
    const std::int64_t token = i / (2 * of_side);
    const auto of_token = static_cast<std::int32_t>(i - token * (2 * of_side)), piece = of_token % of_side;
    const std::int64_t slot = a.slots[token];
    if (slot < 0 || slot >= num_slots) continue;
    AppendDims dims{token, piece / of_row, piece % of_row * kAppendDims, 0, {}};
    dims.count = a.head_dim - dims.first < kAppendDims ? a.head_dim - dims.first : kAppendDims;
    if (of_token < of_side)
      append_dims(dims, a.key, a.cache_k, a.k_scale, slot, a.page_size);
    else
      append_dims(dims, a.value, a.cache_v, a.v_scale, slot, a.page_size);
  }
}

}  // namespace quire::gpu
