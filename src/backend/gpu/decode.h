// SPDX-License-Identifier: Apache-2.0
// Sixteen bytes of stored elements, decoded to f32: exactly what semantics/dtype.h says, by instructions where there are some.
#pragma once

#include "backend/gpu/runtime.h"

#include "semantics/dtype.h"
#include "semantics/fp4.h"

namespace quire::gpu {

struct alignas(16) Bytes16 {
  std::uint32_t word[4];
};

struct alignas(16) Float4 {
  float x, y, z, w;
};

template <DType kType>
constexpr int kItemSize = kType == DType::f32                           ? 4
                          : kType == DType::f16 || kType == DType::bf16 ? 2
                                                                        : 1;

/// 8 bits whose exponent becomes the lowest bits of an f32's: subnormals become subnormals, and the exact product is the value.
template <class Format>
QUIRE_DEVICE float decode_fp8(std::uint32_t code) {
  const std::uint32_t magnitude = code & 0x7Fu;
  const float scaled = semantics::bits_to_float(magnitude << (23 - Format::kMantissaBits));
  const float value = scaled * semantics::exact_power_of_two(127 - Format::kExponentBias);
  const bool nan = Format::kIsFnuz ? code == 0x80u : magnitude > static_cast<std::uint32_t>(Format::kLargestFinite);
  return semantics::bits_to_float(nan ? 0x7FC00000u : semantics::float_to_bits(value) | (code & 0x80u) << 24);
}

/// e2m1: as of 8 bits, the bits become the lowest of an exponent and the highest of a mantissa.
QUIRE_DEVICE float decode_e2m1(std::uint32_t code) {
  const float magnitude = semantics::bits_to_float((code & 7u) << 22) * semantics::exact_power_of_two(126);
  return semantics::bits_to_float(semantics::float_to_bits(magnitude) | (code & 8u) << 28);
}

/// The element with these bits.
template <DType kType>
QUIRE_DEVICE float decode(std::uint32_t code) {
  if constexpr (kType == DType::f32) return semantics::bits_to_float(code);
  if constexpr (kType == DType::f16) return f16_decode(static_cast<std::uint16_t>(code));
  if constexpr (kType == DType::bf16) return semantics::bits_to_float(code << 16);
  // e5m2 is the upper byte of an f16, infinities and NaN included.
  if constexpr (kType == DType::fp8_e5m2) return f16_decode(static_cast<std::uint16_t>(code << 8));
  if constexpr (kType == DType::fp8_e4m3fn) return decode_fp8<semantics::E4m3fn>(code);
  if constexpr (kType == DType::fp8_e4m3fnuz) return decode_fp8<semantics::E4m3fnuz>(code);
  if constexpr (kType == DType::i8) return static_cast<float>(static_cast<std::int8_t>(code));
  if constexpr (kType == DType::fp8_e5m2fnuz) return decode_fp8<semantics::E5m2fnuz>(code);
}

/// The scale of a block of codes of 4 bits: semantics::block_scale_decode().
QUIRE_DEVICE float decode_block_scale(DType cached, std::uint8_t code) {
  return cached == DType::nvfp4 ? decode<DType::fp8_e4m3fn>(code) : semantics::e8m0_decode(code);
}

/// Element i of sixteen bytes.
template <DType kType>
QUIRE_DEVICE float decode(const Bytes16& bytes, int i) {
  constexpr int per_word = 4 / kItemSize<kType>;
  const std::uint32_t word = bytes.word[i / per_word] >> (i % per_word * (32 / per_word));
  return decode<kType>(per_word == 4 ? word & 0xFFu : per_word == 2 ? word & 0xFFFFu : word);
}

}  // namespace quire::gpu
