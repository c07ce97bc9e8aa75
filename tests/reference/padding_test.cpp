// SPDX-License-Identifier: Apache-2.0
// Padding rows in the oracle: zero is a right answer like any other, left has none.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr double kNegInf = -std::numeric_limits<double>::infinity();
constexpr const char* kRequests = "q=f32 heads=4:2 d=16 page=4 reqs=5@9,1@30,2x0 lse=1 sinks=1 seed=4";

Case make(const std::string& line) { return make_case(parse_problem_line(line).value()).value(); }
Reference reference_of(const Case& c) { return reference(c.batch, c.cache, c.options).value(); }

TEST(Padding, ZeroRowsFollowTheRowsOfRequests) {
  const Case plain = make(kRequests), padded = make(std::string(kRequests) + " pad=3:zero");
  const Reference a = reference_of(plain), b = reference_of(padded);
  EXPECT_EQ(a.num_tokens, 6);
  EXPECT_EQ(b.num_tokens, 9);
  EXPECT_EQ(b.num_left_rows, 0);
  for (std::size_t i = 0; i < b.out.size(); ++i) ASSERT_EQ(b.out[i], i < a.out.size() ? a.out[i] : 0.0) << i;
  for (std::size_t i = 0; i < b.lse.size(); ++i) ASSERT_EQ(b.lse[i], i < a.lse.size() ? a.lse[i] : kNegInf) << i;
}

TEST(Padding, LeftRowsHaveNoAnswer) {
  const Case plain = make(kRequests), padded = make(std::string(kRequests) + " pad=3");
  const Reference a = reference_of(plain), b = reference_of(padded);
  EXPECT_EQ(b.num_tokens, 6);
  EXPECT_EQ(b.num_left_rows, 3);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.lse, b.lse);
}

/// The output as the reference has it, and `behind` in every row that it does not have.
void fill(const Case& c, const Reference& r, float behind) {
  auto* out = static_cast<float*>(c.batch.output.data);
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i)
    out[i] = i < static_cast<std::int64_t>(r.out.size()) ? static_cast<float>(r.out[static_cast<std::size_t>(i)]) : behind;
  auto* lse = static_cast<float*>(c.batch.lse.data);
  for (std::int64_t i = 0; i < c.batch.lse.num_elements(); ++i)
    lse[i] = i < static_cast<std::int64_t>(r.lse.size()) ? static_cast<float>(r.lse[static_cast<std::size_t>(i)]) : behind;
}

TEST(Padding, CompareJudgesZeroRowsAndNotLeftOnes) {
  const Case left = make(std::string(kRequests) + " pad=3");
  const Reference of_left = reference_of(left);
  fill(left, of_left, std::nanf(""));
  EXPECT_TRUE(compare(left.batch.output, left.batch.lse, of_left).ok);
  const Case zero = make(std::string(kRequests) + " pad=3:zero");
  const Reference of_zero = reference_of(zero);
  fill(zero, of_zero, 0);
  EXPECT_TRUE(compare(zero.batch.output, zero.batch.lse, of_zero).ok);
  static_cast<float*>(zero.batch.output.data)[8 * 4 * 16 + 5] = 1e-30f;
  const Comparison wrong = compare(zero.batch.output, zero.batch.lse, of_zero);
  EXPECT_EQ(wrong.num_mismatches, 1) << wrong.text;
  EXPECT_EQ(wrong.worst.token, 8);
}

TEST(Padding, CompareKnowsHowManyRowsAreLeft) {
  const Case left = make(std::string(kRequests) + " pad=3");
  const Reference r = reference_of(left);
  fill(left, r, 0);
  Tensor output = left.batch.output, lse = left.batch.lse;
  output.shape[0] = lse.shape[0] = 6;
  EXPECT_TRUE(compare(output, lse, r).ok) << "the rows of requests alone";
  output.shape[0] = 8;
  EXPECT_THAT(compare(output, {}, r).text, HasSubstr("the reference [6, 4, 16]"));
  lse.shape[0] = 8;
  EXPECT_THAT(compare_lse(lse, r).text, HasSubstr("expected f32 [6, 4]"));
}

TEST(Padding, ChosenRowsMayBeZeroRowsAndNotLeftOnes) {
  const Case zero = make(std::string(kRequests) + " pad=3:zero");
  const std::vector<std::int64_t> tokens = {8, 2};
  const Result<Reference> some = reference(zero.batch, zero.cache, zero.options, tokens);
  ASSERT_TRUE(some.ok());
  const Reference all = reference_of(zero);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(some->out[i], 0.0);
    EXPECT_EQ(some->out[64 + i], all.out[2 * 64 + i]);
  }
  EXPECT_EQ(some->lse[0], kNegInf);
  const Case left = make(std::string(kRequests) + " pad=3");
  const Result<Reference> refused = reference(left.batch, left.cache, left.options, tokens);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "reference: tokens[0] is 8, expected a row of a request, 0 to 5");
}

}  // namespace
}  // namespace quire
