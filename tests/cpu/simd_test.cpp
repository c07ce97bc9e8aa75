// SPDX-License-Identifier: Apache-2.0
// Every vector type against plain arithmetic: conversions exhaustive, exp and tanh against fp64, NaN and infinities kept.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu/fp8_tables.h"
#include "cpu/simd_probe.h"
#include "quire/plan.hpp"
#include "semantics/block_scale.h"
#include "semantics/dtype.h"

namespace quire::test {
namespace {

std::vector<const SimdProbe*> probes() {
  std::vector<const SimdProbe*> usable;
  for (const SimdProbe* p : {&kScalarProbe, &kAvx2Probe, &kAvx512Probe, &kNeonProbe})
    if (p->name != nullptr && (p->cpu_features & ~host_device().cpu_features) == 0) usable.push_back(p);
  return usable;
}

std::uint32_t bits(float x) { return semantics::float_to_bits(x); }

TEST(Simd, ExpIsWithinTwoUlpAndExactAtTheEnds) {
  for (const SimdProbe* p : probes()) {
    std::vector<float> x;
    for (int i = 0; i <= 50462; ++i) x.push_back(-87.3f + 0.00173f * static_cast<float>(i));
    x.insert(x.end(), {0.0f, -0.0f, -1e-30f, -INFINITY, -200.0f, -88.0f, NAN, 10.0f});
    while (x.size() % 16 != 0) x.push_back(0.0f);
    std::vector<float> y(x.size());
    p->exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(y[i])) << p->name;
      } else if (x[i] < -87.34f) {
        EXPECT_LE(y[i], 1.2e-38f) << p->name << " exp(" << x[i] << ")";
      } else {
        const double exact = std::exp(static_cast<double>(x[i]));
        EXPECT_NEAR(y[i], exact, 2.0 * std::ldexp(exact, -23)) << p->name << " exp(" << x[i] << ")";
      }
    }
    const float ends[16] = {0.0f, -0.0f, -INFINITY};
    float out[16];
    p->exp(ends, out, p->width);
    EXPECT_EQ(out[0], 1.0f) << p->name;
    EXPECT_EQ(out[1], 1.0f) << p->name;
    EXPECT_EQ(out[2], 0.0f) << p->name;
  }
}

TEST(Simd, TanhIsWithinFourRoundoffs) {
  for (const SimdProbe* p : probes()) {
    std::vector<float> x;
    for (int i = 0; i <= 34285; ++i) x.push_back(-12.0f + 0.0007f * static_cast<float>(i));
    x.insert(x.end(), {INFINITY, -INFINITY, 0.0f, 1e-20f});
    while (x.size() % 16 != 0) x.push_back(0.0f);
    std::vector<float> y(x.size());
    p->tanh(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(y[i], std::tanh(static_cast<double>(x[i])), 4.0 * 0x1p-24) << p->name << " " << x[i];
  }
}

TEST(Simd, SixteenBitLoadsAreExactForAllCodes) {
  std::vector<std::uint16_t> codes(65536);
  std::iota(codes.begin(), codes.end(), std::uint16_t{0});
  std::vector<float> y(codes.size());
  for (const SimdProbe* p : probes()) {
    p->load_f16(codes.data(), y.data(), 65536);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float expected = semantics::f16_decode(codes[i]);
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(y[i]) : bits(y[i]) == bits(expected)) << p->name << " code " << i;
    }
    p->load_bf16(codes.data(), y.data(), 65536);
    for (std::size_t i = 0; i < codes.size(); ++i)
      ASSERT_EQ(bits(y[i]), bits(semantics::bf16_decode(codes[i]))) << p->name << " code " << i;
  }
}

/// Values at, just below and just above every midpoint of neighbouring codes, and every code itself.
std::vector<float> rounding_cases(float (*decode)(std::uint16_t)) {
  std::vector<float> x;
  for (std::uint32_t code = 0; code < 65535; ++code) {
    const float a = decode(static_cast<std::uint16_t>(code)), b = decode(static_cast<std::uint16_t>(code + 1));
    x.push_back(a);
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    const float middle = static_cast<float>((static_cast<double>(a) + b) / 2);
    x.insert(x.end(), {middle, std::nextafter(middle, a), std::nextafter(middle, b)});
  }
  for (float extreme : {65519.0f, 65520.0f, 3.4e38f, -3.4e38f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-30f}) x.push_back(extreme);
  while (x.size() % 16 != 0) x.push_back(0.0f);
  return x;
}

TEST(Simd, SixteenBitStoresRoundToNearestEven) {
  for (const SimdProbe* p : probes()) {
    const std::vector<float> halves = rounding_cases([](std::uint16_t c) { return semantics::f16_decode(c); });
    std::vector<std::uint16_t> y(halves.size());
    p->store_f16(halves.data(), y.data(), static_cast<std::int64_t>(halves.size()));
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const std::uint16_t expected = semantics::f16_encode(halves[i]);
      ASSERT_TRUE(std::isnan(halves[i]) ? std::isnan(semantics::f16_decode(y[i])) : y[i] == expected)
          << p->name << " " << halves[i];
    }
    const std::vector<float> brains = rounding_cases([](std::uint16_t c) { return semantics::bf16_decode(c); });
    y.resize(brains.size());
    p->store_bf16(brains.data(), y.data(), static_cast<std::int64_t>(brains.size()));
    for (std::size_t i = 0; i < brains.size(); ++i)
      ASSERT_EQ(y[i], semantics::bf16_encode(brains[i])) << p->name << " " << brains[i];
  }
}

TEST(Simd, Fp8LoadsMatchTheTablesWhichMatchTheFormats) {
  std::vector<std::uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), std::uint8_t{0});
  for (DType dtype : {DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz}) {
    for (const SimdProbe* p : probes()) {
      // All at once a NaN code is among them, in sixteens mostly not: two ways to decode.
      for (const std::int64_t run : {256, 64, 16}) {
        std::vector<float> y(256);
        for (std::int64_t at = 0; at < 256; at += run)
          p->load_fp8({codes.data() + at, dtype, {}, cpu::fp8_table(dtype)}, y.data() + at, run);
        for (int i = 0; i < 256; ++i) {
          const float expected = semantics::load(codes.data(), dtype, i), found = y[static_cast<std::size_t>(i)];
          ASSERT_TRUE(std::isnan(expected) ? std::isnan(found) : bits(found) == bits(expected))
              << p->name << " " << name(dtype) << " " << i << " in a run of " << run;
        }
      }
    }
  }
}

/// A type that the loads of elements do not know was read as fp8_e5m2fnuz once: it ends the process.
TEST(SimdDeathTest, ATypeWithoutALoadEndsTheProcess) {
  const std::uint8_t codes[64] = {};
  float y[64];
  for (const DType dtype : {DType::nvfp4, DType::mxfp4, DType::fp8_ds_mla, DType::i32, DType::none})
    for (const SimdProbe* p : probes()) EXPECT_DEATH(p->load_fp8({codes, dtype, {}, nullptr}, y, 64), "") << name(dtype);
}

/// Rows of 4-bit codes of every scale: row `scale` of a head has this scale in all of its blocks, and each code in all places of
/// a block. Pages of 5 tokens, 3 heads, rows with gaps between them; the other heads hold other codes and NaN scales.
struct FourBitRows {
  static constexpr std::int64_t kDims = 64, kHeads = 3, kPageSize = 5, kPages = 52, kPitch = 40;  // bytes from row to row
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(kPages * kPageSize * kHeads * kPitch, 0x77);
  std::vector<std::uint8_t> scales = std::vector<std::uint8_t>(kPages * kPageSize * kHeads * kDims / 4, 0xFF);
  cpu::BlockRows rows;
  cpu::RowSource source;

  explicit FourBitRows(DType type, std::uint32_t turn) {
    const std::int64_t block = block_size(type);
    rows.codes = codes.data();
    rows.strides = {kPageSize * kHeads * 2 * kPitch, 2 * kPitch, kHeads * 2 * kPitch, 0, 1, kDims};
    rows.scales = {scales.data(), kPageSize * kHeads * kDims / 4, kHeads * kDims / 4, kDims / 4, 3, type};
    rows.scale_values = cpu::fp8_table(block_scale_type(type));
    rows.head_bits = 2, rows.token_bits = 3;
    source.dims = source.stride = kDims;
    source.blocks = &rows;
    for (std::int64_t scale = 0; scale < 256; ++scale) {
      const std::int64_t page = scale / kPageSize, token = scale % kPageSize;
      for (std::int64_t b = 0; b < kDims / block; ++b) rows.scales.code_at(page, token, 1, b) = static_cast<std::uint8_t>(scale);
      for (std::int64_t d = 0; d < kDims; ++d)
        semantics::store_code4(codes.data(), rows.strides.row(page, 1, token) + d, code_of(d, turn));
    }
  }
  static std::uint32_t code_of(std::int64_t d, std::uint32_t turn) {
    return static_cast<std::uint32_t>(7 * d + d / 16 + turn) % 16;
  }
  std::int64_t number(std::int64_t scale) const { return (scale / kPageSize) << 5 | (scale % kPageSize) << 2 | 1; }
};

TEST(Simd, RowsOf4BitsHaveTheBitsOfTheirDefinition) {
  for (const DType type : {DType::nvfp4, DType::mxfp4})
    for (std::uint32_t turn = 0; turn < 16; ++turn) {  // every code in every lane
      const FourBitRows of(type, turn);
      for (const SimdProbe* p : probes())
        for (std::int64_t scale = 0; scale < 256; ++scale) {
          std::vector<float> y(FourBitRows::kDims + 1, -1.0f);
          p->load_block_row(of.source, y.data(), of.number(scale));
          const float factor = semantics::block_scale_decode(type, static_cast<std::uint8_t>(scale));
          for (std::int64_t d = 0; d < FourBitRows::kDims; ++d) {
            const float expected = semantics::e2m1_decode(FourBitRows::code_of(d, turn)) * factor;
            const float found = y[static_cast<std::size_t>(d)];
            ASSERT_TRUE(std::isnan(expected) ? std::isnan(found) : bits(found) == bits(expected))
                << p->name << " " << name(type) << " scale " << scale << " dim " << d << ": " << found << " for " << expected;
          }
          ASSERT_EQ(y.back(), -1.0f) << p->name;
        }
    }
}

TEST(Simd, NeighboursOfBf16AreTakenApart) {
  for (const SimdProbe* p : probes()) {
    if (p->split_bf16 == nullptr) continue;
    const auto w = static_cast<std::size_t>(p->width);
    for (std::uint32_t first = 0; first < 65536;
         first += static_cast<std::uint32_t>(2 * w)) {  // every code, NaN and denormals too
      std::vector<std::uint16_t> x(2 * w);
      std::iota(x.begin(), x.end(), static_cast<std::uint16_t>(first));
      std::vector<float> even(w), odd(w);
      p->split_bf16(x.data(), even.data(), odd.data());
      for (std::size_t i = 0; i < w; ++i) {
        ASSERT_EQ(bits(even[i]), bits(semantics::bf16_decode(x[2 * i]))) << p->name << " " << x[2 * i];
        ASSERT_EQ(bits(odd[i]), bits(semantics::bf16_decode(x[2 * i + 1]))) << p->name << " " << x[2 * i + 1];
      }
    }
  }
}

TEST(Simd, TransposeKeepReduce) {
  for (const SimdProbe* p : probes()) {
    const int w = p->width;
    std::vector<float> src(static_cast<std::size_t>(w * w)), dst(src.size());
    std::iota(src.begin(), src.end(), 0.0f);
    p->transpose(src.data(), dst.data());
    for (int r = 0; r < w; ++r)
      for (int c = 0; c < w; ++c)
        ASSERT_EQ(dst[static_cast<std::size_t>(c * w + r)], src[static_cast<std::size_t>(r * w + c)]) << p->name;

    std::vector<float> row(static_cast<std::size_t>(w));
    for (int begin = 0; begin <= w + 2; ++begin)
      for (int end = begin; end <= w + 3; ++end) {
        std::iota(row.begin(), row.end(), 0.0f);
        p->keep(row.data(), /*first=*/1, begin, end);
        for (int i = 0; i < w; ++i)
          ASSERT_EQ(row[static_cast<std::size_t>(i)], i + 1 >= begin && i + 1 < end ? static_cast<float>(i) : -1.0f) << p->name;
      }

    for (int i = 0; i < w; ++i) row[static_cast<std::size_t>(i)] = static_cast<float>((i * 7) % w) - 2.0f;
    EXPECT_EQ(p->reduce_max(row.data()), static_cast<float>(w) - 3.0f) << p->name;
    const int sum = w * (w - 1) / 2 - 2 * w;
    EXPECT_EQ(p->reduce_add(row.data()), static_cast<float>(sum)) << p->name;
    EXPECT_FALSE(p->any_nan(row.data()));
    for (int i = 0; i < w; ++i) {
      std::vector<float> with_nan = row;
      with_nan[static_cast<std::size_t>(i)] = NAN;
      EXPECT_TRUE(p->any_nan(with_nan.data())) << p->name << " lane " << i;
    }
  }
}

}  // namespace
}  // namespace quire::test
