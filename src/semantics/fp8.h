// SPDX-License-Identifier: Apache-2.0
// The four 8-bit floating-point formats: decode (exact) and encode (round to nearest even, saturating, NaN kept).
//
// Sources: OCP 8-bit Floating Point Specification (OFP8) rev. 1.0, tables 1-2, for e4m3fn and e5m2;
// Noune et al. 2022, arXiv:2206.02915, and the AMD MI300 ISA manual section "Data types" for the fnuz forms.
// All arithmetic here is exact, so that host and devices agree to the bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "semantics/qualifiers.h"

namespace quire::semantics {

QUIRE_HD float bits_to_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
QUIRE_HD std::uint32_t float_to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// sign:1, exponent: 7 - kMantissa, mantissa: kMantissa. kFnuz: code 0x80 is the only NaN and there is no -0.
template <int kMantissa, int kBias, bool kFnuz, int kMaxCode>
struct Fp8Format {
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kExponentBias = kBias;
  static constexpr bool kIsFnuz = kFnuz;
  static constexpr int kLargestFinite = kMaxCode;  ///< code of the largest finite magnitude
};
using E4m3fn = Fp8Format<3, 7, false, 0x7E>;    // 448
using E4m3fnuz = Fp8Format<3, 8, true, 0x7F>;   // 240
using E5m2 = Fp8Format<2, 15, false, 0x7B>;     // 57344
using E5m2fnuz = Fp8Format<2, 16, true, 0x7F>;  // 57344

/// 2^exponent for -126 <= exponent <= 127.
QUIRE_HD float exact_power_of_two(int exponent) { return bits_to_float(static_cast<std::uint32_t>(exponent + 127) << 23); }

template <typename Format>
QUIRE_HD float fp8_decode(std::uint8_t code) {
  constexpr int m_bits = Format::kMantissaBits;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const int magnitude = code & 0x7F;
  if (Format::kIsFnuz && code == 0x80u) return bits_to_float(0x7FC00000u);
  if (!Format::kIsFnuz && magnitude > Format::kLargestFinite) {
    const bool infinite = m_bits == 2 && magnitude == 0x7C;
    return bits_to_float(sign | (infinite ? 0x7F800000u : 0x7FC00000u));
  }
  const int exponent = magnitude >> m_bits;
  const std::uint32_t mantissa = static_cast<std::uint32_t>(magnitude) & ((1u << m_bits) - 1u);
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * exact_power_of_two(1 - Format::kExponentBias - m_bits);
    return bits_to_float(float_to_bits(value) | sign);
  }
  const std::uint32_t biased = static_cast<std::uint32_t>(exponent - Format::kExponentBias + 127);
  return bits_to_float(sign | biased << 23 | mantissa << (23 - m_bits));
}

/// Round to nearest even; magnitudes beyond the largest finite value, infinities included, become that value.
template <typename Format>
QUIRE_HD std::uint8_t fp8_encode(float value) {
  constexpr int m_bits = Format::kMantissaBits;
  const std::uint32_t bits = float_to_bits(value);
  const std::uint32_t magnitude_bits = bits & 0x7FFFFFFFu;
  const std::uint8_t sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
  if (magnitude_bits > 0x7F800000u) return Format::kIsFnuz ? std::uint8_t{0x80} : static_cast<std::uint8_t>(sign | 0x7Fu);

  int code;
  if (magnitude_bits < float_to_bits(exact_power_of_two(1 - Format::kExponentBias))) {
    const float scaled = bits_to_float(magnitude_bits) * exact_power_of_two(Format::kExponentBias + m_bits - 1);
    code = static_cast<int>(scaled);
    const float rest = scaled - static_cast<float>(code);
    if (rest > 0.5f || (rest == 0.5f && (code & 1) != 0)) ++code;
  } else {
    constexpr int shift = 23 - m_bits;
    const std::uint32_t odd = magnitude_bits >> shift & 1u;
    const std::uint32_t rounded = (magnitude_bits + ((1u << (shift - 1)) - 1u) + odd) >> shift;
    const std::int64_t wide =
        static_cast<std::int64_t>(rounded) - (static_cast<std::int64_t>(127 - Format::kExponentBias) << m_bits);
    code = wide > Format::kLargestFinite ? Format::kLargestFinite : static_cast<int>(wide);
  }
  if (Format::kIsFnuz && code == 0) return 0;
  return static_cast<std::uint8_t>(sign | code);
}

}  // namespace quire::semantics
