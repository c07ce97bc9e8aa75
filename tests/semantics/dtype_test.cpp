// SPDX-License-Identifier: Apache-2.0
// Element conversions, exhaustive over all codes, against values computed here from the definition of each format.
#include "semantics/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace quire::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

/// A binary format by its parameters. `special` is what the all-ones exponent means.
struct Format {
  DType dtype;
  int bits, mantissa_bits, bias;
  enum Special { ieee, nan_at_all_ones, fnuz } special;
  bool saturating;
};
/// Keeps GoogleTest from printing the bytes of a parameter.
void PrintTo(const Format& format, std::ostream* out) { *out << name(format.dtype); }

const Format kFormats[] = {
    {DType::fp8_e4m3fn, 8, 3, 7, Format::nan_at_all_ones, true},
    {DType::fp8_e4m3fnuz, 8, 3, 8, Format::fnuz, true},
    {DType::fp8_e5m2, 8, 2, 15, Format::ieee, true},
    {DType::fp8_e5m2fnuz, 8, 2, 16, Format::fnuz, true},
    {DType::f16, 16, 10, 15, Format::ieee, false},
    {DType::bf16, 16, 7, 127, Format::ieee, false},
};

/// (-1)^sign * 2^(exponent - bias) * 1.mantissa, written out with ldexp.
double value_by_definition(const Format& f, unsigned code) {
  const unsigned sign_bit = 1u << (f.bits - 1);
  const unsigned ones = (1u << (f.bits - 1 - f.mantissa_bits)) - 1;
  const unsigned exponent = (code & (sign_bit - 1)) >> f.mantissa_bits;
  const unsigned mantissa = code & ((1u << f.mantissa_bits) - 1);
  const double sign = (code & sign_bit) != 0 ? -1.0 : 1.0;
  if (f.special == Format::fnuz && code == sign_bit) return kNaN;
  if (f.special == Format::nan_at_all_ones && (code & (sign_bit - 1)) == sign_bit - 1) return kNaN;
  if (f.special == Format::ieee && exponent == ones) return mantissa == 0 ? sign * kInf : kNaN;
  const double fraction = std::ldexp(mantissa, -f.mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - f.bias);
  return sign * std::ldexp(1 + fraction, static_cast<int>(exponent) - f.bias);
}

unsigned encode(const Format& f, float value) {
  std::uint16_t cell[2] = {};  // memory for the largest type that store() writes
  semantics::store(cell, f.dtype, 0, value);
  return f.bits == 8 ? cell[0] & 0xFFu : cell[0];
}
double decode(const Format& f, unsigned code) {
  const std::uint16_t cell[2] = {static_cast<std::uint16_t>(code), 0};
  return semantics::load(cell, f.dtype, 0);
}

/// Codes of all finite non-negative values, in order of value.
std::vector<unsigned> ascending(const Format& f) {
  std::vector<unsigned> codes;
  for (unsigned code = 0; code < 1u << (f.bits - 1); ++code)
    if (std::isfinite(value_by_definition(f, code))) codes.push_back(code);
  return codes;
}

class DtypeTest : public testing::TestWithParam<Format> {};

TEST_P(DtypeTest, EveryCodeDecodesToItsDefinition) {
  const Format& f = GetParam();
  for (unsigned code = 0; code < 1u << f.bits; ++code) {
    const double expected = value_by_definition(f, code), got = decode(f, code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << name(f.dtype) << " code " << code;
    } else {
      EXPECT_EQ(got, expected) << name(f.dtype) << " code " << code;
      EXPECT_EQ(std::signbit(got), std::signbit(expected)) << name(f.dtype) << " code " << code;
    }
  }
}

TEST_P(DtypeTest, EveryFiniteCodeSurvivesARoundTrip) {
  const Format& f = GetParam();
  for (unsigned code = 0; code < 1u << f.bits; ++code) {
    const double value = value_by_definition(f, code);
    if (std::isfinite(value)) {
      EXPECT_EQ(encode(f, static_cast<float>(value)), code) << name(f.dtype) << " code " << code;
    }
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(decode(f, encode(f, std::nanf(""))))) << name(f.dtype);
    }
  }
}

TEST_P(DtypeTest, LargestFiniteValueIsThePublishedOne) {
  const Format& f = GetParam();
  const double largest = value_by_definition(f, ascending(f).back());
  const double published = f.dtype == DType::fp8_e4m3fn     ? 448
                           : f.dtype == DType::fp8_e4m3fnuz ? 240
                           : f.bits == 8                    ? 57344
                           : f.dtype == DType::f16          ? 65504
                                                            : 0x1.FEp127;
  EXPECT_EQ(largest, published);
}

// Between two neighbours: below the midpoint down, above it up, on it to the even code. All neighbours, both signs.
TEST_P(DtypeTest, RoundsToNearestEven) {
  const Format& f = GetParam();
  const std::vector<unsigned> codes = ascending(f);
  const unsigned sign_bit = 1u << (f.bits - 1);
  for (std::size_t i = 0; i + 1 < codes.size(); ++i) {
    const double low = value_by_definition(f, codes[i]), high = value_by_definition(f, codes[i + 1]);
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2) << "midpoints are exact in f32";
    const unsigned even = codes[i] % 2 == 0 ? codes[i] : codes[i + 1];
    EXPECT_EQ(encode(f, middle), even) << name(f.dtype) << " midpoint " << middle;
    EXPECT_EQ(encode(f, std::nextafterf(middle, 0.0f)), codes[i]) << name(f.dtype) << " below " << middle;
    EXPECT_EQ(encode(f, std::nextafterf(middle, INFINITY)), codes[i + 1]) << name(f.dtype) << " above " << middle;
    const bool no_minus_zero = f.special == Format::fnuz && even == 0;
    EXPECT_EQ(encode(f, -middle), no_minus_zero ? 0u : (even | sign_bit)) << name(f.dtype) << " midpoint " << -middle;
    EXPECT_EQ(encode(f, -std::nextafterf(middle, INFINITY)), codes[i + 1] | sign_bit) << name(f.dtype);
  }
}

TEST_P(DtypeTest, OverflowSaturatesInFp8AndBecomesInfinityInSixteenBits) {
  const Format& f = GetParam();
  const std::vector<unsigned> codes = ascending(f);
  const double largest = value_by_definition(f, codes.back());
  const double step = largest - value_by_definition(f, codes[codes.size() - 2]);
  const auto limit = static_cast<float>(largest + step / 2);  // rounding to nearest leaves the finite range here
  for (const double sign : {1.0, -1.0}) {
    const auto beyond = [&](float magnitude) { return decode(f, encode(f, static_cast<float>(sign) * magnitude)); };
    EXPECT_EQ(beyond(std::nextafterf(limit, 0.0f)), sign * largest) << name(f.dtype);
    const double expected = f.saturating ? sign * largest : sign * kInf;
    for (const float big : {limit, std::nextafterf(limit, INFINITY), std::numeric_limits<float>::max(), INFINITY})
      EXPECT_EQ(beyond(big), expected) << name(f.dtype) << " " << big;
  }
}

TEST_P(DtypeTest, NaNStaysNaNWhateverItsSignAndPayload) {
  const Format& f = GetParam();
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F80FFFFu})
    EXPECT_TRUE(std::isnan(decode(f, encode(f, semantics::bits_to_float(bits))))) << name(f.dtype) << " " << bits;
}

TEST_P(DtypeTest, TinyValuesAndZeroKeepTheirSignWhereTheFormatHasOne) {
  const Format& f = GetParam();
  const unsigned sign_bit = 1u << (f.bits - 1);
  const unsigned minus_zero = f.special == Format::fnuz ? 0u : sign_bit;
  EXPECT_EQ(encode(f, 0.0f), 0u);
  EXPECT_EQ(encode(f, -0.0f), minus_zero) << "code 0x80 is NaN in the fnuz formats";
  EXPECT_EQ(encode(f, 1e-45f), 0u);
  EXPECT_EQ(encode(f, -1e-45f), minus_zero);
}

// 2^32 values are too many; every f32 exponent with mantissas around every rounding border of the format is enough.
TEST_P(DtypeTest, ErrorIsAtMostHalfAStepEverywhere) {
  const Format& f = GetParam();
  const double largest = value_by_definition(f, ascending(f).back());
  const double smallest = value_by_definition(f, 1);
  for (unsigned exponent = 0; exponent < 255; ++exponent) {
    for (unsigned mantissa = 0; mantissa < 1u << 23; mantissa += 9973) {
      const float x = semantics::bits_to_float(exponent << 23 | mantissa);
      if (x == 0 || x > largest) continue;  // zero has no exponent
      const double ulp = std::max(smallest, std::ldexp(1.0, std::ilogb(static_cast<double>(x)) - f.mantissa_bits));
      ASSERT_LE(std::fabs(decode(f, encode(f, x)) - x), ulp / 2) << name(f.dtype) << " " << x;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Semantics, DtypeTest, testing::ValuesIn(kFormats),
                         [](const auto& format) { return std::string(name(format.param.dtype)); });

TEST(Dtype, IntegerCodesAreTheirNumbers) {
  for (int code = -128; code <= 127; ++code) {
    const auto byte = static_cast<std::int8_t>(code);
    EXPECT_EQ(semantics::load(&byte, DType::i8, 0), static_cast<float>(code));
    std::int8_t stored = 1;
    semantics::store(&stored, DType::i8, 0, static_cast<float>(code));
    EXPECT_EQ(stored, std::max(code, -127)) << "-128 is read, and never written";
  }
}

// Every number below 2^7 whose fraction has eight bits: each tie, and both of its sides.
TEST(Dtype, IntegersRoundToNearestEvenAndSaturate) {
  for (int n = -200 * 256; n <= 200 * 256; ++n) {
    const double value = n / 256.0, clamped = std::clamp(value, -127.0, 127.0);
    std::int8_t stored = 0;
    semantics::store(&stored, DType::i8, 0, static_cast<float>(value));
    EXPECT_EQ(stored, static_cast<int>(std::nearbyint(clamped))) << value;
  }
  for (const auto& [value, code] : {std::pair{kInf, 127}, {-kInf, -127}, {kNaN, 0}, {1e30, 127}, {-1e-45, 0}}) {
    std::int8_t stored = 1;
    semantics::store(&stored, DType::i8, 0, static_cast<float>(value));
    EXPECT_EQ(stored, code) << value;
  }
}

TEST(Dtype, F32PassesThroughBitForBit) {
  for (const std::uint32_t bits : {0u, 0x80000000u, 1u, 0x7F800000u, 0x7FC12345u, 0x3F800001u}) {
    float cell = 0;
    semantics::store(&cell, DType::f32, 0, semantics::bits_to_float(bits));
    EXPECT_EQ(semantics::float_to_bits(semantics::load(&cell, DType::f32, 0)), bits);
  }
}

TEST(Dtype, LoadAndStoreAddressTheIndexedElement) {
  std::vector<std::uint32_t> memory(64, 0xAAAAAAAA);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e5m2fnuz}) {
    std::fill(memory.begin(), memory.end(), 0xAAAAAAAA);
    semantics::store(memory.data(), dtype, 5, 1.5f);
    EXPECT_EQ(semantics::load(memory.data(), dtype, 5), 1.5f) << name(dtype);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(memory.data());
    for (std::int64_t i = 0; i < 64 * 4; ++i)
      if (i < 5 * itemsize(dtype) || i >= 6 * itemsize(dtype)) {
        ASSERT_EQ(bytes[i], 0xAA) << name(dtype) << " byte " << i;
      }
  }
}

TEST(Dtype, IndicesAreReadAsTheTypeTheyHave) {
  const std::int64_t wide[] = {1, -1, std::int64_t{1} << 40};
  const std::int32_t narrow[] = {1, -1, 1 << 30};
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(semantics::load_index(wide, DType::i64, i), wide[i]);
    EXPECT_EQ(semantics::load_index(narrow, DType::i32, i), narrow[i]);
  }
}

// The four fp8 formats are four types: how many codes mean something else under the wrong one.
TEST(Dtype, Fp8FormatsAreNotInterchangeable) {
  int differ = 0;
  for (unsigned code = 0; code < 256; ++code) {
    const double fn = decode(kFormats[0], code), fnuz = decode(kFormats[1], code);
    if (!(fn == fnuz) && !(std::isnan(fn) && std::isnan(fnuz))) ++differ;
  }
  EXPECT_EQ(differ, 255);  // every code but +0 differs
}

}  // namespace
}  // namespace quire::test
