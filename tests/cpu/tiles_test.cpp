// SPDX-License-Identifier: Apache-2.0
// The model of the AMX instructions (emulated_tiles.h) against the hardware, bit for bit; skipped where there is none.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "quire/plan.hpp"
#if defined(__x86_64__)
#include "backend/cpu/amx/tiles.h"
#include "emulated/emulated_tiles.h"
#include "semantics/dtype.h"

namespace quire::cpu {
namespace {

struct Operands {
  alignas(64) std::uint16_t a[512], b[512];
  alignas(64) float c[256];
};

template <class T>
std::vector<std::uint32_t> multiply(const Operands& x, std::int64_t rows) {
  alignas(64) float c[256];
  std::memcpy(c, x.c, sizeof c);
  T::configure(rows);
  T::template load<2>(c, 64);
  T::template load<5>(x.a, 64);
  T::template load<6>(x.b, 64);
  T::template dot<2, 5, 6>();
  T::template store<2>(c, 64);
  T::release();
  std::vector<std::uint32_t> bits;
  for (const float value : c) bits.push_back(std::isnan(value) ? 0x7FC00000u : semantics::float_to_bits(value));
  return bits;
}

/// Elements of one kind of data; kind 0 is N(0, 1).
float draw(std::mt19937_64& random, int kind) {
  const float normal = std::normal_distribution<float>()(random);
  const auto code = static_cast<std::uint32_t>(random());
  switch (kind) {
    case 0: return normal;
    case 1: return std::ldexp(normal, static_cast<int>(code % 61) - 30);   // cancellation
    case 2: return std::ldexp(normal, static_cast<int>(code % 80) - 140);  // denormal operands, products and sums
    case 3: return code % 50 == 0 ? INFINITY : code % 51 == 0 ? -INFINITY : code % 53 == 0 ? std::nanf("") : normal;
    default: return semantics::bf16_decode(static_cast<std::uint16_t>(code));  // every code can occur
  }
}

class TileModel : public testing::TestWithParam<int> {};

TEST_P(TileModel, IsTheHardwareBitForBit) {
  if ((host_device().cpu_features & kAmxBf16) == 0) GTEST_SKIP() << "no AMX here";
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()) + 1);
  for (int trial = 0; trial < 200; ++trial) {
    Operands x;
    for (std::uint16_t& v : x.a) v = semantics::bf16_encode(draw(random, GetParam()));
    for (std::uint16_t& v : x.b) v = semantics::bf16_encode(draw(random, GetParam()));
    for (float& v : x.c) v = draw(random, GetParam());
    const std::int64_t rows = trial % 16 + 1;
    ASSERT_EQ(multiply<EmulatedTiles>(x, rows), multiply<HardwareTiles>(x, rows)) << "trial " << trial << ", " << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Data, TileModel, testing::Range(0, 5));

// The model against the formula, on any machine: sums of small integers are exact in any order.
TEST(TileModel, MultipliesMatrices) {
  Operands x;
  const auto a = [](int m, int k) { return static_cast<float>((m * 7 + k * 3) % 11 - 5); };
  const auto b = [](int k, int n) { return static_cast<float>((k * 5 + n) % 7 - 3); };
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 32; ++k) x.a[m * 32 + k] = semantics::bf16_encode(a(m, k));
  for (int k = 0; k < 32; ++k)
    for (int n = 0; n < 16; ++n) x.b[k / 2 * 32 + 2 * n + k % 2] = semantics::bf16_encode(b(k, n));
  for (float& c : x.c) c = 2.0f;
  const std::vector<std::uint32_t> bits = multiply<EmulatedTiles>(x, 16);
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      float sum = 2.0f;
      for (int k = 0; k < 32; ++k) sum += a(m, k) * b(k, n);
      EXPECT_EQ(semantics::bits_to_float(bits[static_cast<std::size_t>(m * 16 + n)]), sum) << m << " " << n;
    }
}

}  // namespace
}  // namespace quire::cpu
#endif
