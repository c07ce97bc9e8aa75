// SPDX-License-Identifier: Apache-2.0
// append() turns rows into 8-bit codes in loops without branches: every code is that of semantics::store().
#include "backend/cpu/encode_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "semantics/dtype.h"

namespace quire::test {
namespace {

constexpr DType kCodes[] = {DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz, DType::i8};

/// Rows of `count` elements, which vectors do not divide; the first difference, or none.
void compare(const void* from, DType type, std::int64_t count, float scale, DType code) {
  std::vector<std::uint8_t> found(static_cast<std::size_t>(count)), expected(found.size());
  ASSERT_TRUE(cpu::encode_row(from, type, count, scale, code, found.data()));
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = semantics::load(from, type, i);
    semantics::store(expected.data(), code, i, scale == 1.0f ? value : value / scale);
    const auto at = static_cast<std::size_t>(i);
    ASSERT_EQ(found[at], expected[at]) << name(type) << " " << value << " / " << scale << " as " << name(code);
  }
}

TEST(EncodeRows, EveryBf16) {
  std::vector<std::uint16_t> words(65536);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint16_t>(i);
  for (const DType code : kCodes)
    for (const float scale : {1.0f, 0.037f, 3.0f}) compare(words.data(), DType::bf16, 65535, scale, code);
}

TEST(EncodeRows, FloatsAtAndBesideEveryTie) {
  // Bits of a float that decide: sign, exponent, the mantissa's upper bits, and whether any lower bit is set.
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 1u << 14; ++upper)
    for (const std::uint32_t lower : {0u, 1u, 0x3FFFFu}) values.push_back(semantics::bits_to_float(upper << 18 | lower));
  for (const DType code : kCodes) compare(values.data(), DType::f32, static_cast<std::int64_t>(values.size()), 1.0f, code);
}

TEST(EncodeRows, IntegersAtAndBesideEveryTie) {
  std::vector<float> values;
  for (int twice = -300; twice <= 300; ++twice) {
    const float tie = static_cast<float>(twice) / 2;
    for (const float value : {std::nextafter(tie, -1e9f), tie, std::nextafter(tie, 1e9f)}) values.push_back(value);
  }
  for (const float value : {1e30f, -1e30f, INFINITY, -INFINITY, std::nanf(""), -std::nanf(""), 0.0f, -0.0f, 1e-40f})
    values.push_back(value);
  compare(values.data(), DType::f32, static_cast<std::int64_t>(values.size()), 1.0f, DType::i8);
}

TEST(EncodeRows, RandomFloatsAndScales) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> values(4099);
  for (const DType code : kCodes)
    for (const float scale : {1.0f, 0.01f, 250.0f}) {
      for (float& value : values) value = normal(random);
      compare(values.data(), DType::f32, static_cast<std::int64_t>(values.size()), scale, code);
    }
}

TEST(EncodeRows, OtherTypesAreNotItsOwn) {
  std::uint16_t words[4] = {};
  std::uint8_t codes[4] = {1, 2, 3, 4};
  EXPECT_FALSE(cpu::encode_row(words, DType::f16, 4, 1.0f, DType::fp8_e4m3fn, codes));
  EXPECT_FALSE(cpu::encode_row(words, DType::bf16, 4, 1.0f, DType::f16, codes));
  EXPECT_EQ(codes[0], 1);
}

}  // namespace
}  // namespace quire::test
