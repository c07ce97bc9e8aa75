// SPDX-License-Identifier: Apache-2.0
// Diagnosis of padded batches: padding rows are nobody's, so nothing in a left one is wrong, and anything but 0 in a zero one is.
#include <gmock/gmock.h>

#include <cmath>

#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/report.hpp"

namespace quire {
namespace {

using testing::HasSubstr;

/// The reference as what was observed; `behind` in padding rows that it does not have.
Case observed(const std::string& pad, float behind) {
  Case c =
      make_case(parse_problem_line("q=f32 heads=4:2 d=16 page=8 reqs=9@20,1@33,12@5,2x0 lse=1 seed=2 " + pad).value()).value();
  const Reference r = reference(c.batch, c.cache, c.options).value();
  auto* out = static_cast<float*>(c.batch.output.data);
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i)
    out[i] = i < static_cast<std::int64_t>(r.out.size()) ? static_cast<float>(r.out[static_cast<std::size_t>(i)]) : behind;
  c.observed = c.batch.output;
  return c;
}

TEST(Padding, WhatALeftRowHoldsIsRight) {
  for (const float behind : {std::nanf(""), 97.0f, 0.0f}) {
    const Result<Diagnosis> d = diagnose(observed("pad=7", behind), {.full = true});
    ASSERT_TRUE(d.ok()) << d.status().message();
    EXPECT_EQ(d->verdict, DiagnosisVerdict::right) << to_string(d.value());
    EXPECT_TRUE(d->complete);
  }
}

TEST(Padding, AZeroRowThatIsNotZeroIsNamed) {
  Case c = observed("pad=7:zero", 0);
  EXPECT_EQ(diagnose(c, {.full = true})->verdict, DiagnosisVerdict::right);
  static_cast<float*>(c.observed.data)[(22 + 6) * 64 + 5] = 1e-20f;
  const Result<Diagnosis> d = diagnose(c, {.full = true});
  ASSERT_TRUE(d.ok()) << d.status().message();
  EXPECT_EQ(d->verdict, DiagnosisVerdict::unknown_cause);
  EXPECT_THAT(to_string(d.value()), HasSubstr("padding rows 22 to 28 were to become 0 with lse -inf: 1 of 448 elements"));
  EXPECT_THAT(to_json(d.value()), HasSubstr("padding rows 22 to 28"));
}

/// A fault in rows of requests is found as without padding, and padding rows are no evidence.
TEST(Padding, DoesNotHideAFault) {
  Case c = observed("pad=7", std::nanf(""));
  for (std::int64_t i = 0; i < 64; ++i) static_cast<float*>(c.observed.data)[9 * 64 + i] = 3.0f;
  const Result<Diagnosis> d = diagnose(c, {.full = true});
  ASSERT_TRUE(d.ok()) << d.status().message();
  EXPECT_NE(d->verdict, DiagnosisVerdict::right);
  EXPECT_EQ(d->wrong_tokens, std::vector<std::int64_t>{9});
}

}  // namespace
}  // namespace quire
