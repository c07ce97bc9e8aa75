// SPDX-License-Identifier: Apache-2.0
// fp8 to 16-bit operands: all 256 codes of the four formats, for devices without conversion instructions, with those of fnuz
// formats and with those of OCP formats.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/hip/matrix/convert_fp8.h"

namespace quire::test {
namespace {

template <hip::matrix::Fp8Unit kUnit>
struct Unit {
  static constexpr hip::matrix::Fp8Unit kFp8 = kUnit;
};

/// Equal values; NaN for NaN. Zeros may lose their sign.
template <class T, class Gpu>
void expect_exact(DType type) {
  for (std::uint32_t first = 0; first < 256; first += 8) {
    hip::matrix::Words<4> chunk[1] = {};
    for (std::uint32_t i = 0; i < 8; ++i) chunk[0].word[i / 4] |= (first + i) << i % 4 * 8;
    hip::matrix::convert_codes<T, Gpu>(chunk, type);
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint8_t code[4] = {static_cast<std::uint8_t>(first + i)};
      const float expected = semantics::load(code, type, 0), converted = T::decode(chunk[0].word[i / 2] >> i % 2 * 16 & 0xFFFFu);
      EXPECT_TRUE((std::isnan(expected) && std::isnan(converted)) || expected == converted)
          << name(type) << " code " << first + i << " to " << name(T::kDType) << ": " << converted << ", expected " << expected;
    }
  }
}

template <class Gpu>
void expect_all_exact() {
  for (const DType type : {DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz}) {
    expect_exact<hip::matrix::F16, Gpu>(type);
    expect_exact<hip::matrix::Bf16, Gpu>(type);
  }
}

TEST(SimtConvertFp8, EveryCodeByArithmetic) { expect_all_exact<Unit<hip::matrix::Fp8Unit::none>>(); }
TEST(SimtConvertFp8, EveryCodeWithFnuzInstructions) { expect_all_exact<Unit<hip::matrix::Fp8Unit::fnuz>>(); }
TEST(SimtConvertFp8, EveryCodeWithOcpInstructions) { expect_all_exact<Unit<hip::matrix::Fp8Unit::ocp>>(); }

}  // namespace
}  // namespace quire::test
