// SPDX-License-Identifier: Apache-2.0
// Codes of 4 bits and scales of blocks: every code, every scale, and every rounding border, against tables and definitions in
// double.
#include "semantics/block_scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace quire::test {
namespace {

/// OCP Microscaling Formats v1.0, table 5.
constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double value_of(std::uint32_t code) { return (code >= 8 ? -1.0 : 1.0) * kE2m1[code % 8]; }

TEST(E2m1, EveryCodeIsItsNumber) {
  for (std::uint32_t code = 0; code < 16; ++code) {
    EXPECT_EQ(semantics::e2m1_decode(code), value_of(code)) << code;
    EXPECT_EQ(std::signbit(semantics::e2m1_decode(code)), code >= 8) << code;
    EXPECT_EQ(semantics::e2m1_encode(semantics::e2m1_decode(code)), code) << "-0 included";
  }
}

/// The nearest number of the table; of two, that with an even code.
std::uint32_t nearest(double value) {
  std::uint32_t best = 0;
  for (std::uint32_t code = 1; code < 8; ++code) {
    const double was = std::fabs(std::fabs(value) - kE2m1[best]), is = std::fabs(std::fabs(value) - kE2m1[code]);
    if (is < was || (is == was && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(value) ? 8u : 0u);
}

TEST(E2m1, RoundsToNearestEvenAtAndBesideEveryTie) {
  for (int n = -8 * 1024; n <= 8 * 1024; ++n)
    for (const float value : {static_cast<float>(n) / 1024, std::nextafter(static_cast<float>(n) / 1024, 100.0f),
                              std::nextafter(static_cast<float>(n) / 1024, -100.0f)})
      ASSERT_EQ(semantics::e2m1_encode(value), nearest(value)) << value;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const auto& [value, code] : {std::pair{kInf, 7u}, {-kInf, 15u}, {1e30f, 7u}, {-1e30f, 15u}, {1e-45f, 0u}, {-1e-45f, 8u}})
    EXPECT_EQ(semantics::e2m1_encode(value), code) << value;
  EXPECT_EQ(semantics::e2m1_encode(std::nanf("")), 0u);
  EXPECT_EQ(semantics::e2m1_encode(-std::nanf("")), 0u) << "e2m1 has no NaN: the block's scale has one";
}

TEST(E2m1, TheEvenDimLiesInTheLowBits) {
  std::uint8_t byte = 0;
  semantics::store_code4(&byte, 0, 0x5);
  semantics::store_code4(&byte, 1, 0xA);
  EXPECT_EQ(byte, 0xA5);
  EXPECT_EQ(semantics::load_code4(&byte, 0), 0x5u);
  EXPECT_EQ(semantics::load_code4(&byte, 1), 0xAu);
  semantics::store_code4(&byte, 0, 0xF);
  EXPECT_EQ(byte, 0xAF) << "a store leaves the other code of the byte alone";
}

TEST(BlockScales, EveryCodeIsItsNumber) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(semantics::e8m0_decode(static_cast<std::uint8_t>(code)), std::ldexp(1.0, code - 127)) << code;
  EXPECT_TRUE(std::isnan(semantics::e8m0_decode(0xFF)));
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float right = semantics::fp8_decode<semantics::E4m3fn>(byte);
    const float is = semantics::block_scale_decode(DType::nvfp4, byte);
    EXPECT_TRUE(is == right || (std::isnan(is) && std::isnan(right))) << code;
    const float e8m0 = semantics::block_scale_decode(DType::mxfp4, byte);
    EXPECT_TRUE(e8m0 == semantics::e8m0_decode(byte) || code == 255) << code;
  }
}

/// Products of a code and a scale have at most 6 bits: f32 holds every one that is in its range.
TEST(BlockScales, ProductsWithCodesAreExact) {
  for (const DType type : {DType::nvfp4, DType::mxfp4})
    for (int scale = 0; scale < 255; ++scale)
      for (std::uint32_t code = 0; code < 16; ++code) {
        const float s = semantics::block_scale_decode(type, static_cast<std::uint8_t>(scale));
        const double exact = static_cast<double>(s) * value_of(code);
        if (std::isnan(s) || std::fabs(exact) > std::numeric_limits<float>::max()) continue;
        ASSERT_EQ(static_cast<double>(semantics::e2m1_decode(code) * s), exact) << scale << " " << code;
      }
}

std::uint8_t scale_of(DType type, const std::vector<float>& block) {
  semantics::BlockScale found;
  for (const float x : block) found.add(x);
  return found.code(type);
}

/// Every bf16 as the largest element of a block, of either sign.
TEST(BlockScales, EveryBf16AsTheLargestOfABlock) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = semantics::bits_to_float(bits << 16);
    const std::vector<float> block{0.0f, x / 2, x, -0.0f};
    const std::uint8_t nv = scale_of(DType::nvfp4, block), mx = scale_of(DType::mxfp4, block);
    if (!std::isfinite(x)) {
      ASSERT_EQ(nv, 0x7F) << x;
      ASSERT_EQ(mx, 0xFF) << x;
      continue;
    }
    const double most = std::fabs(static_cast<double>(x));
    ASSERT_EQ(nv, semantics::fp8_encode<semantics::E4m3fn>(std::fabs(x) / 6.0f)) << x;
    const double exponent = most == 0 ? -127 : std::max(std::floor(std::log2(most)) - 2, -127.0);
    ASSERT_EQ(semantics::e8m0_decode(mx), std::ldexp(1.0, static_cast<int>(exponent))) << x;
    // The largest element is below 8 scales, of which 6 are stored at most.
    ASSERT_LT(most / semantics::e8m0_decode(mx), 8.0) << x;
  }
}

TEST(BlockScales, ErrorsOfABlockAreThoseOfItsCodes) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (const DType type : {DType::nvfp4, DType::mxfp4})
    for (int n = 0; n < 2000; ++n) {
      std::vector<float> block(static_cast<std::size_t>(block_size(type)));
      const float unit = std::ldexp(1.0f, n % 12 - 6);
      for (float& x : block) x = normal(random) * unit;
      const float scale = semantics::block_scale_decode(type, scale_of(type, block));
      ASSERT_GT(scale, 0.0f);
      for (const float x : block) {
        const double stored = semantics::e2m1_decode(semantics::encode_in_block(x, scale)) * static_cast<double>(scale);
        const double y = std::fabs(static_cast<double>(x)) / scale;
        // Half a step of e2m1: 0.25 below 2, 0.5 below 4, 1 below 6; mxfp4 stores 6 for what is up to 8.
        const double most = y < 2 ? 0.25 : y < 4 ? 0.5 : y <= 6 ? 1.0 : y - 6;
        ASSERT_LE(std::fabs(stored - x), most * scale * (1 + 1e-6)) << x << " / " << scale;
      }
    }
}

TEST(BlockScales, ABlockOfZerosAndOneTooSmallForAScale) {
  EXPECT_EQ(scale_of(DType::nvfp4, {0.0f, -0.0f}), 0) << "e4m3fn 0";
  EXPECT_EQ(scale_of(DType::mxfp4, {0.0f, -0.0f}), 0) << "2^-127";
  EXPECT_EQ(semantics::encode_in_block(0.0f, 0.0f), 0u);
  EXPECT_EQ(semantics::encode_in_block(-1e-6f, 0.0f), 0u) << "no scale: the code is +0";
  EXPECT_EQ(semantics::encode_in_block(1.0f, std::nanf("")), 0u);
}

}  // namespace
}  // namespace quire::test
