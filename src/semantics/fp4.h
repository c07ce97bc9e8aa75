// SPDX-License-Identifier: Apache-2.0
// Codes of 4 bits, two in a byte, and the values of block scales (decision 37): decoding is exact, encoding rounds to nearest
// even.
//
// Source: OCP Microscaling Formats (MX) Specification v1.0, table 5 (e2m1) and section 5.4.1 (e8m0).
#pragma once

#include <cstdint>

#include "quire/tensor.hpp"
#include "semantics/fp8.h"
#include "semantics/qualifiers.h"

namespace quire::semantics {

/// is_four_bit() and block_size(), as a device can call them.
QUIRE_HD bool has_blocks(DType dtype) { return dtype == DType::nvfp4 || dtype == DType::mxfp4; }
QUIRE_HD std::int32_t elements_of_block(DType dtype) { return dtype == DType::nvfp4 ? 16 : 32; }

/// e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign.
QUIRE_HD float e2m1_decode(std::uint32_t code) {
  const std::uint32_t exponent = code >> 1 & 3u, mantissa = code & 1u;
  // 0.5 has exponent 0 and no leading 1; the others are (2 + mantissa) * 2^(exponent - 2).
  const float magnitude =
      exponent == 0 ? 0.5f * static_cast<float>(mantissa) : bits_to_float((exponent + 126u) << 23 | mantissa << 22);
  return bits_to_float(float_to_bits(magnitude) | (code & 8u) << 28);
}

/// The nearest e2m1, ties to the code whose last bit is 0; +-6 beyond 6; +0 for NaN, which e2m1 has no code for.
QUIRE_HD std::uint32_t e2m1_encode(float value) {
  const std::uint32_t bits = float_to_bits(value), magnitude_bits = bits & 0x7FFFFFFFu;
  if (magnitude_bits > 0x7F800000u) return 0;
  const float m = bits_to_float(magnitude_bits);
  // Borders lie half-way between neighbours; one that belongs to the smaller code is passed by what is larger alone.
  const std::uint32_t code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
  return code | (bits >> 31) << 3;
}

/// e8m0: 2^(code - 127); 255 is NaN.
QUIRE_HD float e8m0_decode(std::uint8_t code) {
  if (code == 0xFF) return bits_to_float(0x7FC00000u);
  return bits_to_float(code == 0 ? 0x00400000u : static_cast<std::uint32_t>(code) << 23);  // 2^-127 is subnormal
}

/// The value of a block scale of nvfp4 or mxfp4.
QUIRE_HD float block_scale_decode(DType cached, std::uint8_t code) {
  return cached == DType::nvfp4 ? fp8_decode<E4m3fn>(code) : e8m0_decode(code);
}

/// Code `index` of a row: the even one of a byte lies in its low bits.
QUIRE_HD std::uint32_t load_code4(const void* data, std::int64_t index) {
  const std::uint32_t byte = static_cast<const std::uint8_t*>(data)[index >> 1];
  return (index & 1) != 0 ? byte >> 4 : byte & 15u;
}
QUIRE_HD void store_code4(void* data, std::int64_t index, std::uint32_t code) {
  std::uint8_t& byte = static_cast<std::uint8_t*>(data)[index >> 1];
  byte = static_cast<std::uint8_t>((index & 1) != 0 ? (byte & 0x0Fu) | code << 4 : (byte & 0xF0u) | code);
}

}  // namespace quire::semantics
