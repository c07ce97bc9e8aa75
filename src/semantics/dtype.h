// SPDX-License-Identifier: Apache-2.0
// Reading and writing one element of any floating type, or i8, as f32. Decoding is exact; encoding rounds to nearest even.
//
// f16 and bf16 stores follow IEEE 754 (overflow gives infinity); fp8 stores saturate (see fp8.h), and i8 stores do. NaN stays NaN
// in every type but i8.
#pragma once

#include <cstdint>

#include "quire/tensor.hpp"
#include "semantics/fp8.h"
#include "semantics/qualifiers.h"

namespace quire::semantics {

QUIRE_HD float bf16_decode(std::uint16_t code) { return bits_to_float(static_cast<std::uint32_t>(code) << 16); }

QUIRE_HD std::uint16_t bf16_encode(float value) {
  const std::uint32_t bits = float_to_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

QUIRE_HD float f16_decode(std::uint16_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000u) << 16;
  const std::uint32_t exponent = code >> 10 & 0x1Fu;
  const std::uint32_t mantissa = code & 0x3FFu;
  if (exponent == 0x1Fu) return bits_to_float(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {
    return bits_to_float(float_to_bits(static_cast<float>(mantissa) * exact_power_of_two(-24)) | sign);
  }
  return bits_to_float(sign | (exponent + 112u) << 23 | mantissa << 13);
}

QUIRE_HD std::uint16_t f16_encode(float value) {
  const std::uint32_t bits = float_to_bits(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65520 and up round to infinity
  if (magnitude < 0x38800000u) {                                                    // numbers below 2^-14 are subnormal in f16
    const float scaled = bits_to_float(magnitude) * exact_power_of_two(24);
    std::uint32_t code = static_cast<std::uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(code);
    if (rest > 0.5f || (rest == 0.5f && (code & 1u) != 0)) ++code;
    return static_cast<std::uint16_t>(sign | code);
  }
  const std::uint32_t rounded = (magnitude + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  return static_cast<std::uint16_t>(sign | (rounded - (112u << 10)));
}

/// The nearest integer in [-127, 127], ties to even; 0 for NaN, which i8 has no code for. -128 is read, and never written.
QUIRE_HD std::int8_t i8_encode(float value) {
  constexpr float kIntegers = 12582912.0f;  // 1.5 * 2^23: sums with it are rounded to whole numbers
  if (value != value) return 0;
  const float clamped = value < -127.0f ? -127.0f : value > 127.0f ? 127.0f : value;
  return static_cast<std::int8_t>(static_cast<std::int32_t>(float_to_bits(clamped + kIntegers) - float_to_bits(kIntegers)));
}

/// The largest magnitude of an element: floating, or i8.
QUIRE_HD float largest_finite(DType dtype) {
  switch (dtype) {
    case DType::f16: return 65504.0f;
    case DType::fp8_e4m3fn: return 448.0f;
    case DType::fp8_e4m3fnuz: return 240.0f;
    case DType::fp8_e5m2:
    case DType::fp8_e5m2fnuz: return 57344.0f;
    case DType::i8: return 128.0f;
    default: return 3.40282347e38f;
  }
}

/// Element `index` of `data`, which holds elements of type `dtype`: floating, or i8.
QUIRE_HD float load(const void* data, DType dtype, std::int64_t index) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  const auto* words = static_cast<const std::uint16_t*>(data);
  switch (dtype) {
    case DType::f32: return static_cast<const float*>(data)[index];
    case DType::f16: return f16_decode(words[index]);
    case DType::bf16: return bf16_decode(words[index]);
    case DType::fp8_e4m3fn: return fp8_decode<E4m3fn>(bytes[index]);
    case DType::fp8_e4m3fnuz: return fp8_decode<E4m3fnuz>(bytes[index]);
    case DType::fp8_e5m2: return fp8_decode<E5m2>(bytes[index]);
    case DType::fp8_e5m2fnuz: return fp8_decode<E5m2fnuz>(bytes[index]);
    case DType::i8: return static_cast<float>(static_cast<const std::int8_t*>(data)[index]);
    default: return bits_to_float(0x7FC00000u);
  }
}

QUIRE_HD void store(void* data, DType dtype, std::int64_t index, float value) {
  auto* bytes = static_cast<std::uint8_t*>(data);
  auto* words = static_cast<std::uint16_t*>(data);
  switch (dtype) {
    case DType::f32: static_cast<float*>(data)[index] = value; break;
    case DType::f16: words[index] = f16_encode(value); break;
    case DType::bf16: words[index] = bf16_encode(value); break;
    case DType::fp8_e4m3fn: bytes[index] = fp8_encode<E4m3fn>(value); break;
    case DType::fp8_e4m3fnuz: bytes[index] = fp8_encode<E4m3fnuz>(value); break;
    case DType::fp8_e5m2: bytes[index] = fp8_encode<E5m2>(value); break;
    case DType::fp8_e5m2fnuz: bytes[index] = fp8_encode<E5m2fnuz>(value); break;
    case DType::i8: bytes[index] = static_cast<std::uint8_t>(i8_encode(value)); break;
    default: break;
  }
}

/// Element `index` of an int32 or int64 index array.
QUIRE_HD std::int64_t load_index(const void* data, DType dtype, std::int64_t index) {
  return dtype == DType::i64 ? static_cast<const std::int64_t*>(data)[index]
                             : static_cast<std::int64_t>(static_cast<const std::int32_t*>(data)[index]);
}

}  // namespace quire::semantics
