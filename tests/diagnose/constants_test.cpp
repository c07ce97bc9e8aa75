// SPDX-License-Identifier: Apache-2.0
// docs/reference/numerics.md and the code name the same constants with the same values.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "numerics/tolerance.h"
#include "semantics/dtype.h"

namespace quire::test {
namespace {

std::string numerics_page() {
  std::ifstream file(QUIRE_SOURCE_DIR "/docs/reference/numerics.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The cell right of `name` in a table row; powers of two may be written 2^-24.
double documented(const std::string& page, const std::string& name) {
  const std::string key = "| " + name + " | ";
  const std::size_t at = page.find(key);
  if (at == std::string::npos) return std::nan("");
  const std::string cell = page.substr(at + key.size(), page.find(" |", at + key.size()) - at - key.size());
  return cell.rfind("2^", 0) == 0 ? std::ldexp(1.0, std::stoi(cell.substr(2))) : std::stod(cell);
}

TEST(NumericsPage, StatesTheConstantsOfTheCode) {
  const std::string page = numerics_page();
  EXPECT_EQ(documented(page, "kAccumulatorRoundoff"), numerics::kAccumulatorRoundoff);
  EXPECT_EQ(documented(page, "kLambda"), numerics::kLambda);
  EXPECT_EQ(documented(page, "kRoundingsPerKey"), numerics::kRoundingsPerKey);
  EXPECT_EQ(documented(page, "kScoreRoundings"), numerics::kScoreRoundings);
  EXPECT_EQ(documented(page, "kWeightRoundings"), numerics::kWeightRoundings);
  EXPECT_EQ(documented(page, "kLogRoundings"), numerics::kLogRoundings);
  EXPECT_EQ(documented(page, "kSecondOrder"), numerics::kSecondOrder);
  EXPECT_EQ(documented(page, "kHalfSubnormal"), numerics::kHalfSubnormal);
  EXPECT_EQ(documented(page, "kTf32Roundoff"), numerics::kTf32Roundoff);
  EXPECT_EQ(documented(page, "kStoredScoreRoundings"), numerics::kStoredScoreRoundings);
  EXPECT_EQ(documented(page, "kStoredCapRoundings"), numerics::kStoredCapRoundings);
  EXPECT_EQ(documented(page, "kAccumulatorRoundingsPerKey"), numerics::kAccumulatorRoundingsPerKey);
  EXPECT_EQ(documented(page, "kMostScoreError"), numerics::kMostScoreError);
}

TEST(NumericsPage, StatesTheRoundoffOfTheOutputTypes) {
  const std::string page = numerics_page();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    EXPECT_EQ(documented(page, std::string(name(dtype))), numerics::output_type(dtype).roundoff) << name(dtype);
}

// A row that the test looks for and does not find must not compare equal to anything.
TEST(NumericsPage, AMissingConstantIsNoticed) { EXPECT_TRUE(std::isnan(documented(numerics_page(), "kNoSuchConstant"))); }

// Rounding a value of the type's range changes it by at most u_out |x| + the smallest subnormal.
TEST(Tolerance, OutputRoundoffCoversTheStoreOfEveryMagnitude) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const numerics::OutputType type = numerics::output_type(dtype);
    for (int exponent = -149; exponent < 127; ++exponent)
      for (int step = 0; step < 1021; ++step) {
        const auto x = static_cast<float>(std::ldexp(1.0 + step / 1021.0, exponent));
        if (std::fabs(x) >= type.overflow) continue;
        std::uint32_t cell = 0;
        semantics::store(&cell, dtype, 0, x);
        const double stored = semantics::load(&cell, dtype, 0);
        ASSERT_LE(std::fabs(stored - x), type.roundoff * x + type.smallest) << name(dtype) << " " << x;
      }
  }
}

// exp(8 sqrt(128) 2^-24 + ...) - 1, by hand: 8 * 11.3137 * 5.9605e-8 = 5.3948e-6.
TEST(Tolerance, GammaByHand) {
  EXPECT_NEAR(numerics::gamma(128), 5.3948e-6, 1e-9);
  EXPECT_EQ(numerics::gamma(0), 0.0);
  EXPECT_LT(numerics::gamma(1e6), 1e6 * 0x1p-24) << "far below the worst case n u";
}

}  // namespace
}  // namespace quire::test
