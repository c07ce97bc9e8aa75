// SPDX-License-Identifier: Apache-2.0
// fp8 codes to 16-bit operands, exactly: every value of the four formats is an f16 and a bf16. (-0 may become +0.)
//
// By the device's instructions where they read the format: e4m3fn on gfx950 and gfx1201, the fnuz formats on gfx942, and there
// e4m3fn, too, which has twice the value of the same code of e4m3fnuz but for -0 and NaN. e5m2 is the upper byte of an f16
// anywhere. The rest by arithmetic, one body for all formats: unrolled, it is much of a kernel.
#pragma once

#include "backend/hip/matrix/element.h"
#include "backend/hip/matrix/instructions.h"

namespace quire::hip::matrix {

/// Codes 0 to 3 of a word in order.
using FourElements = Words<2>;

/// A format whose exponent becomes the lowest bits of an f32's: subnormals become subnormals, and the exact product with `unit`
/// is the value. NaN are the codes with (code & nan_mask) == nan_code.
struct Fp8Arithmetic {
  int shift = 0;
  float unit = 1.0f;
  std::uint32_t nan_mask = 0, nan_code = 0;
};

template <class Format>
QUIRE_DEVICE Fp8Arithmetic arithmetic_of() {
  return {23 - Format::kMantissaBits, semantics::exact_power_of_two(127 - Format::kExponentBias), Format::kIsFnuz ? 0xFFu : 0x7Fu,
          Format::kIsFnuz ? 0x80u : 0x7Fu};
}

/// Of all types but e5m2, which has infinities.
QUIRE_DEVICE Fp8Arithmetic arithmetic_of(DType type) {
  if (type == DType::fp8_e4m3fn) return arithmetic_of<semantics::E4m3fn>();
  return type == DType::fp8_e4m3fnuz ? arithmetic_of<semantics::E4m3fnuz>() : arithmetic_of<semantics::E5m2fnuz>();
}

template <class T>
QUIRE_DEVICE FourElements convert_by_arithmetic(std::uint32_t codes, const Fp8Arithmetic& format) {
  float value[4];
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t code = codes >> 8 * i & 0xFFu;
    const float magnitude = semantics::bits_to_float((code & 0x7Fu) << format.shift) * format.unit;
    const std::uint32_t bits = semantics::float_to_bits(magnitude) | (code & 0x80u) << 24;
    value[i] = semantics::bits_to_float((code & format.nan_mask) == format.nan_code ? 0x7FC00000u : bits);
  }
  return {T::pack_exact(value[0], value[1]), T::pack_exact(value[2], value[3])};
}

/// e5m2 is the upper byte of an f16.
template <class T>
QUIRE_DEVICE FourElements convert_e5m2(std::uint32_t codes) {
  const std::uint32_t low = (codes & 0xFFu) << 8 | (codes & 0xFF00u) << 16, high = (codes >> 8 & 0xFF00u) | (codes & 0xFF000000u);
  if constexpr (T::kDType == DType::f16) return {low, high};
  return {T::pack_exact(F16::decode(low & 0xFFFFu), F16::decode(low >> 16)),
          T::pack_exact(F16::decode(high & 0xFFFFu), F16::decode(high >> 16))};
}

/// Codes of e4m3fn as codes of e4m3fnuz with half the value. No sum of bytes carries into the next.
QUIRE_DEVICE std::uint32_t e4m3fn_as_fnuz(std::uint32_t codes) {
  const std::uint32_t magnitudes = codes & 0x7F7F7F7Fu;
  const std::uint32_t positive_zeros = codes & ((magnitudes + 0x7F7F7F7Fu) | 0x7F7F7F7Fu);  // 0x80 would be NaN
  const std::uint32_t nans = (magnitudes + 0x01010101u) & 0x80808080u;                      // 0x7F and 0xFF become 0x80
  return (positive_zeros & ~(nans - (nans >> 7))) | nans;
}

template <class T, class Gpu>
QUIRE_DEVICE FourElements convert_by_fp8_unit(std::uint32_t codes, float factor) {
  const Float2 low = fp8_pair<Gpu::kFp8, 0>(codes), high = fp8_pair<Gpu::kFp8, 1>(codes);
  return {T::pack_exact(factor * low.x, factor * low.y), T::pack_exact(factor * high.x, factor * high.y)};
}

template <class T, class Gpu>
QUIRE_DEVICE FourElements convert_by_bf8_unit(std::uint32_t codes) {
  const Float2 low = bf8_pair<Gpu::kFp8, 0>(codes), high = bf8_pair<Gpu::kFp8, 1>(codes);
  return {T::pack_exact(low.x, low.y), T::pack_exact(high.x, high.y)};
}

/// Chunks of 16-bit elements from the codes in the first half of their words.
template <int kWords, int kCount, class Convert>
QUIRE_DEVICE void convert_words(Words<kWords> (&chunks)[kCount], Convert&& convert) {
  QUIRE_UNROLL
  for (int c = 0; c < kCount; ++c) {
    const Words<kWords> raw = chunks[c];
    QUIRE_UNROLL
    for (int i = 0; i < kWords / 2; ++i) {
      const FourElements four = convert(raw.word[i]);
      chunks[c].word[2 * i] = four.word[0];
      chunks[c].word[2 * i + 1] = four.word[1];
    }
  }
}

/// The same, by type.
template <class T, class Gpu, int kWords, int kCount>
QUIRE_DEVICE void convert_codes(Words<kWords> (&chunks)[kCount], DType type) {
  if (type == DType::fp8_e5m2) return convert_words(chunks, [](std::uint32_t codes) { return convert_e5m2<T>(codes); });
  if constexpr (Gpu::kFp8 == Fp8Unit::ocp) {
    if (type == DType::fp8_e4m3fn)
      return convert_words(chunks, [](std::uint32_t codes) { return convert_by_fp8_unit<T, Gpu>(codes, 1.0f); });
  }
  if constexpr (Gpu::kFp8 == Fp8Unit::fnuz) {
    if (type == DType::fp8_e5m2fnuz)
      return convert_words(chunks, [](std::uint32_t codes) { return convert_by_bf8_unit<T, Gpu>(codes); });
    const bool ocp = type == DType::fp8_e4m3fn;
    const float factor = ocp ? 2.0f : 1.0f;
    convert_words(chunks,
                  [&](std::uint32_t codes) { return convert_by_fp8_unit<T, Gpu>(ocp ? e4m3fn_as_fnuz(codes) : codes, factor); });
  } else {
    const Fp8Arithmetic format = arithmetic_of(type);
    convert_words(chunks, [&](std::uint32_t codes) { return convert_by_arithmetic<T>(codes, format); });
  }
}

}  // namespace quire::hip::matrix
