// SPDX-License-Identifier: Apache-2.0
// The oracle against a second formulation: long double, an explicit dense mask matrix, log-sum-exp, and logical values that
// never went through pages or strides.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "numerics/tolerance.h"
#include "quire/tools/diagnose.hpp"
#include "reference/random_spec.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

using Real = long double;

/// mask[i][k] for one request, from the definition in words: not in the future, and among the last `window` keys.
std::vector<std::vector<bool>> dense_mask(const Problem& p, const Request& req) {
  std::vector<std::vector<bool>> mask(static_cast<std::size_t>(req.query_len),
                                      std::vector<bool>(static_cast<std::size_t>(req.seq_len())));
  for (std::int64_t i = 0; i < req.query_len; ++i)
    for (std::int64_t age = 0; age <= req.context_len + i; ++age)
      mask[static_cast<std::size_t>(i)][static_cast<std::size_t>(req.context_len + i - age)] =
          !p.sliding_window.has_value() || age + 1 <= *p.sliding_window;
  return mask;
}

struct DenseRow {
  Real lse = -std::numeric_limits<Real>::infinity();
  std::vector<Real> out;
  std::int64_t num_keys = 0;
};

DenseRow dense_row(const SmallCase& c, std::size_t r, std::int64_t i, std::int64_t head, const std::vector<bool>& mask) {
  const Problem& p = c.problem();
  const std::int64_t kv_head = head * p.num_kv_heads / p.num_q_heads;
  const Real scale = p.softmax_scale ? static_cast<Real>(*p.softmax_scale) : 1 / std::sqrt(static_cast<Real>(p.head_dim));
  std::vector<Real> logits(mask.size(), -std::numeric_limits<Real>::infinity());
  DenseRow row;
  row.out.assign(static_cast<std::size_t>(p.out_dim()), 0);
  Real sum = std::exp(static_cast<Real>(c.sinks[static_cast<std::size_t>(head)]));
  for (std::size_t k = 0; k < mask.size(); ++k) {
    if (!mask[k]) continue;
    ++row.num_keys;
    Real dot = 0;
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      dot += static_cast<Real>(c.query(c.row_start(static_cast<std::int64_t>(r)) + i, head, d)) *
             c.k[r](static_cast<std::int64_t>(k), kv_head, d);
    Real s = dot * scale;
    if (p.logits_soft_cap) s = std::tanh(s / *p.logits_soft_cap) * *p.logits_soft_cap;
    s -= static_cast<Real>(c.slopes[static_cast<std::size_t>(head)]) * (p.reqs[r].context_len + i - static_cast<std::int64_t>(k));
    logits[k] = s;
    sum += std::exp(s);
  }
  row.lse = std::log(sum);
  for (std::size_t k = 0; k < mask.size(); ++k)
    for (std::int64_t d = 0; mask[k] && d < p.out_dim(); ++d)
      row.out[static_cast<std::size_t>(d)] += std::exp(logits[k] - row.lse) * c.v[r](static_cast<std::int64_t>(k), kv_head, d);
  return row;
}

void expect_same(const SmallCase& c, const std::string& label) {
  const Result<Reference> result = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const Reference& ref = result.value();
  const Problem& p = c.problem();
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    const auto mask = dense_mask(p, p.reqs[r]);
    for (std::int64_t i = 0; i < p.reqs[r].query_len; ++i) {
      for (std::int64_t h = 0; h < p.num_q_heads; ++h) {
        const DenseRow row = dense_row(c, r, i, h, mask[static_cast<std::size_t>(i)]);
        const auto index = static_cast<std::size_t>((c.row_start(static_cast<std::int64_t>(r)) + i) * p.num_q_heads + h);
        ASSERT_EQ(ref.num_keys[index], row.num_keys) << label;
        ASSERT_NEAR(ref.lse[index], static_cast<double>(row.lse), 1e-12 * (1 + std::fabs(ref.lse[index]))) << label;
        for (std::size_t d = 0; d < row.out.size(); ++d) {
          const std::size_t at = index * row.out.size() + d;
          ASSERT_NEAR(ref.out[at], static_cast<double>(row.out[d]), 1e-12 * (1 + ref.abs_pv[at]))
              << label << " request " << r << " row " << i << " head " << h << " dim " << d;
        }
      }
    }
  }
}

TEST(SecondFormulation, AgreesOnRandomCasesOverAllOptionsLayoutsAndTypes) {
  for (std::uint64_t seed = 1; seed <= 400 && !HasFatalFailure(); ++seed) {
    const SmallSpec spec = random_spec(seed);
    expect_same(SmallCase(spec),
                to_string(spec.problem) + (spec.strided ? " strided" : "") + " small-case seed " + std::to_string(seed));
  }
}

// More than one task per request and KV head, and enough work for several threads.
TEST(SecondFormulation, AgreesAcrossTaskBorders) {
  SmallSpec spec;
  spec.problem.q_dtype = DType::f32;
  spec.problem.kv_dtype = DType::bf16;
  spec.problem.num_q_heads = 4;
  spec.problem.num_kv_heads = 2;
  spec.problem.head_dim = 20;
  spec.problem.sliding_window = 60;
  spec.problem.reqs = {{530, 77, 200}, {1, 400, 401}};
  expect_same(SmallCase(spec), to_string(spec.problem));
}

/// The magnitudes behind the tolerance: checked on one case by their definitions.
TEST(SecondFormulation, MagnitudesFollowTheirDefinition) {
  SmallSpec spec;
  spec.problem.q_dtype = spec.problem.kv_dtype = DType::f32;
  spec.problem.head_dim = 5;
  spec.problem.alibi = spec.problem.sinks = true;
  spec.problem.logits_soft_cap = 5.0f;
  spec.problem.reqs = {{1, 6, 7}};
  const SmallCase c(spec);
  const Result<Reference> result = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(result.ok());
  double logit[7], magnitude[7], max = c.sinks[0];
  for (std::int64_t k = 0; k < 7; ++k) {
    double dot = 0, absolute = 0;
    for (std::int64_t d = 0; d < 5; ++d)
      dot += c.query(0, 0, d) * c.k[0](k, 0, d), absolute += std::fabs(c.query(0, 0, d) * c.k[0](k, 0, d));
    logit[k] = 5 * std::tanh(dot / std::sqrt(5.0) / 5) + c.slopes[0] * static_cast<double>(k - 6);
    magnitude[k] = absolute / std::sqrt(5.0) + std::fabs(c.slopes[0] * static_cast<double>(k - 6));
    max = std::max(max, logit[k]);
  }
  double abs_pv = 0, abs_spv = 0,
         mean = std::exp(c.sinks[0] - result->lse[0]) * (std::fabs(c.sinks[0]) + std::fabs(c.sinks[0] - max));
  for (std::int64_t k = 0; k < 7; ++k) {
    const double p = std::exp(logit[k] - result->lse[0]), m = magnitude[k] + 5.0 / 4 + std::fabs(logit[k] - max);
    abs_pv += p * std::fabs(c.v[0](k, 0, 3));
    abs_spv += p * m * std::fabs(c.v[0](k, 0, 3));
    mean += p * m;
  }
  EXPECT_NEAR(result->abs_pv[3], abs_pv, 1e-12);
  EXPECT_NEAR(result->abs_spv[3], abs_spv, 1e-12);
  EXPECT_NEAR(result->score_mag[0], mean, 1e-12);
}

/// Queries of 16 bits: weights below what two f16 parts hold of the largest count as that much, and no more.
TEST(SecondFormulation, WhatPartsOfWeightsLoseIsInTheMagnitudes) {
  SmallSpec spec;
  spec.problem.q_dtype = spec.problem.kv_dtype = DType::bf16;
  spec.problem.head_dim = 5;
  spec.problem.softmax_scale = 40.0f;
  spec.problem.reqs = {{1, 29, 30}};
  const SmallCase c(spec);
  const Result<Reference> result = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(result.ok());
  const double least = 0x1p-39 / (0x1p-24 * (8 + 8 * std::sqrt(7.0 * 31)));
  double abs_pv = 0;
  int below = 0;
  for (std::int64_t k = 0; k < 30; ++k) {
    double dot = 0;
    for (std::int64_t d = 0; d < 5; ++d) dot += c.query(0, 0, d) * c.k[0](k, 0, d);
    const double p = std::exp(40.0 * dot - result->lse[0]);
    abs_pv += std::max(p, least) * std::fabs(c.v[0](k, 0, 3));
    below += p < least ? 1 : 0;
  }
  EXPECT_GT(below, 10);
  EXPECT_NEAR(result->abs_pv[3], abs_pv, 1e-12);
  const double paid = numerics::row_errors(result.value(), 0).per_pv * least;
  EXPECT_GE(paid, 0x1p-39);
  EXPECT_LE(paid, 0x1.1p-39) << "wider than what is lost";
}

}  // namespace
}  // namespace quire::test
