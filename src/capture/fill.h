// SPDX-License-Identifier: Apache-2.0
// Filling tensors with the values that must never be read: NaN, finite garbage, impossible page ids.
#pragma once

#include <algorithm>
#include <cstdint>

#include "quire/tensor.hpp"
#include "semantics/dtype.h"

namespace quire::capture {

/// Page id of unused table entries: in range for int32, but far outside any cache, so that a kernel which reads it is noticed.
inline constexpr std::int64_t kImpossiblePage = 2147480000;

inline void store_index(const Tensor& t, std::int64_t element, std::int64_t value) {
  if (t.dtype == DType::i64) {
    static_cast<std::int64_t*>(t.data)[element] = value;
  } else {
    static_cast<std::int32_t*>(t.data)[element] = static_cast<std::int32_t>(value);
  }
}

/// Fills a contiguous floating tensor.
inline void fill_value(const Tensor& t, float value) {
  const std::int64_t count = t.num_elements();
  if (count == 0) return;
  semantics::store(t.data, t.dtype, 0, value);
  switch (itemsize(t.dtype)) {
    case 1: std::fill_n(static_cast<std::uint8_t*>(t.data), count, *static_cast<const std::uint8_t*>(t.data)); break;
    case 2: std::fill_n(static_cast<std::uint16_t*>(t.data), count, *static_cast<const std::uint16_t*>(t.data)); break;
    default: std::fill_n(static_cast<std::uint32_t*>(t.data), count, *static_cast<const std::uint32_t*>(t.data)); break;
  }
}

/// The NaN that every floating format keeps.
inline float quiet_nan() { return semantics::bits_to_float(0x7FC00000u); }

/// Fills a contiguous tensor with what must not be read: NaN, or the largest code of a type that has no NaN.
inline void fill_unread(const Tensor& t) {
  if (t.dtype == DType::fp8_e8m0 || is_four_bit(t.dtype) || t.dtype == DType::fp8_ds_mla) {
    // NaN, or -6 in both codes; of rows of fp8_ds_mla, NaN in each of the three parts.
    std::fill_n(static_cast<std::uint8_t*>(t.data), t.num_elements(), std::uint8_t{0xFF});
    return;
  }
  if (t.dtype != DType::i8) return fill_value(t, quiet_nan());
  std::fill_n(static_cast<std::int8_t*>(t.data), t.num_elements(), std::int8_t{-128});
}

}  // namespace quire::capture
