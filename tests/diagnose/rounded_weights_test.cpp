// SPDX-License-Identifier: Apache-2.0
// The tolerance for kernels that round softmax weights: it pays for that rounding, exactly, and for no more.
#include <gtest/gtest.h>

#include <cmath>

#include "diagnose/find_profile.h"
#include "numerics/tolerance.h"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "semantics/dtype.h"

namespace quire {
namespace {

Reference expected_of(const char* line) {
  Case c = make_case(parse_problem_line(line).value()).value();
  return reference(c.batch, c.cache, c.options).value();
}

TEST(RoundedWeights, AddsTheRoundoffTimesTheSumOfWeightedValues) {
  const Reference strict = expected_of("q=f16 heads=2 d=8 page=4 reqs=3@20,1@7 seed=1");
  for (DType weights : {DType::f16, DType::bf16}) {
    Reference wide = strict;
    allow_rounded_weights(wide, weights);
    const numerics::OutputType type = numerics::output_type(DType::f16);
    const double roundoff = weights == DType::f16 ? 0x1p-11 : 0x1p-8;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(strict.out.size()); ++i) {
      const auto e = static_cast<std::size_t>(i);
      const double more = numerics::output_tolerance(wide, i / 8, i, type) - numerics::output_tolerance(strict, i / 8, i, type);
      const double subnormals = weights == DType::f16 ? strict.abs_lost[e] : 0;
      EXPECT_NEAR(more, numerics::kSecondOrder * (roundoff * strict.abs_pv[e] + subnormals), 1e-9 * strict.abs_pv[e]);
    }
    EXPECT_EQ(wide.out, strict.out);
    EXPECT_EQ(wide.lse, strict.lse);
  }
}

TEST(RoundedWeights, WidensTheTokensThatAreNamed) {
  const Reference strict = expected_of("q=f16 heads=2 d=8 page=4 reqs=3@20,1@7 seed=1");
  Reference all = strict, some = strict;
  allow_rounded_weights(all, DType::bf16);
  allow_rounded_weights(some, DType::bf16, {true, false, false, true});
  for (std::size_t i = 0; i < strict.abs_pv.size(); ++i) {
    const std::size_t token = i / (2 * 8);
    EXPECT_EQ(some.abs_pv[i], token == 0 || token == 3 ? all.abs_pv[i] : strict.abs_pv[i]) << i;
  }
}

/// One row whose V is 0 in dim 3 of every key with a weight of at least 2^-14, and weights in f16: only subnormal ones reach that
/// dim.
Case with_a_dim_of_small_weights(const char* line) {
  Case c = make_case(parse_problem_line(line).value()).value();
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const faults_detail::Model truth(facts);
  const faults_detail::Row row = truth.row(0, 0);
  std::vector<faults_detail::Key> keys;
  truth.keys(row, keys);
  std::vector<double> q(8), k(8), scores;
  std::vector<std::int64_t> at(8);
  for (std::int64_t d = 0; d < 8; ++d) q[static_cast<std::size_t>(d)] = truth.query(row, d);
  for (const faults_detail::Key& key : keys) {
    load_vector(truth, row, faults_detail::Side::key, key.position, at, k);
    double dot = 0;
    for (std::size_t d = 0; d < 8; ++d) dot += q[d] * k[d];
    scores.push_back(truth.score(truth, row, key.position, dot));
  }
  const double largest = faults_detail::largest(scores, truth.sink(row));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool small = std::exp(scores[i] - largest) < 0x1p-20;
    truth.elements(faults_detail::Side::value, truth.place(truth, row, faults_detail::Side::value, keys[i].position), 0, at);
    semantics::store(c.cache.v.data, c.cache.v.dtype, at[3], small ? 200.0f : 0.0f);
  }
  return c;
}

/// Both types of query: over an fp8 cache weights are f16 in any case.
TEST(RoundedWeights, PaysForSubnormalWeightsWhereNothingElseIsLeft) {
  for (const char* line : {"q=f16 heads=1 d=8 page=16 scale=2.5 reqs=1@300 seed=3",
                           "q=bf16 kv=fp8_e4m3fn vscale=tensor heads=1 d=8 page=16 scale=1 reqs=1@900 seed=5"}) {
    const Case c = with_a_dim_of_small_weights(line);
    const faults_detail::Facts facts(c.batch, c.cache, c.options);
    const faults_detail::RowHead at{0, 0};
    const std::vector<double> out =
        faults_detail::evaluate(diagnose_detail::emulated(facts, {.weights = DType::f16}), std::span(&at, 1)).front().out;
    Reference expected = reference(c.batch, c.cache, c.options).value();
    const double error = std::fabs(out[3] - expected.out[3]);
    const numerics::OutputType type = numerics::output_type(expected, DType::none);
    ASSERT_GT(expected.abs_lost[3], 0);
    allow_rounded_weights(expected, c.batch.query.dtype);
    const double paid = numerics::output_tolerance(expected, 0, 3, type);
    EXPECT_LE(error, paid) << line;
    expected = reference(c.batch, c.cache, c.options).value();
    const double lost = expected.abs_lost[3];
    std::fill(expected.abs_lost.begin(), expected.abs_lost.end(), 0.0);
    allow_rounded_weights(expected, c.batch.query.dtype);
    EXPECT_GT(error, numerics::output_tolerance(expected, 0, 3, type)) << "the floor is needed: " << line;
    EXPECT_NEAR(paid - numerics::output_tolerance(expected, 0, 3, type), numerics::kSecondOrder * lost, 1e-6 * lost);
  }
}

TEST(RoundedWeights, ChangesNothingForF32) {
  const Reference strict = expected_of("q=f32 heads=2 d=8 page=4 reqs=3@20");
  Reference same = strict;
  allow_rounded_weights(same, DType::f32);
  EXPECT_EQ(same.abs_pv, strict.abs_pv);
}

}  // namespace
}  // namespace quire
