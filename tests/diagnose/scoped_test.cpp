// SPDX-License-Identifier: Apache-2.0
// A mechanism inside a scope: faults of the catalogue and fitted parameters, in some rows or heads of a batch that is right
// elsewhere.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "diagnose/written_by.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const char* const kLine =
    "q=f16 kv=fp8_e4m3fn kscale=tensor vscale=tensor heads=8:2 d=64 page=16 lse=1 reqs=20@30,1@100,7@13,1@41,1@333,12@90";

/// Decode rows of the line: requests 1, 3 and 4.
std::vector<std::int64_t> decode_rows(const Case& c) {
  const auto* starts = static_cast<const std::int32_t*>(c.batch.query_start_loc.data);
  std::vector<std::int64_t> rows;
  for (std::int64_t r = 0; r < c.batch.seq_lens.shape[0]; ++r)
    if (starts[r + 1] - starts[r] == 1) rows.push_back(starts[r]);
  return rows;
}

/// The right output, with these rows as a kernel with the fault computes them.
Case with_fault_in(const std::string& line, const std::string& fault, const std::vector<std::int64_t>& rows) {
  Case c = right(line);
  const Status status = attend_with_fault(c.batch, c.cache, c.options, fault, rows);
  EXPECT_TRUE(status.ok()) << status.message();
  observe_output(c);
  return c;
}

void scale(Case& c, std::int64_t token, std::int64_t head, double factor) {
  const Tensor& o = c.observed;
  for (std::int64_t d = 0; d < o.shape[2]; ++d) {
    const std::int64_t at = (token * o.shape[1] + head) * o.shape[2] + d;
    semantics::store(o.data, o.dtype, at, static_cast<float>(factor * semantics::load(o.data, o.dtype, at)));
  }
}

TEST(Scoped, AFaultInDecodeRowsIsNamedWithItsScope) {
  Case c = made(kLine);
  const Diagnosis d = diagnosed(with_fault_in(kLine, "v_scale_dropped", decode_rows(c)));
  ASSERT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.suspicions[0].fault, "v_scale_dropped");
  EXPECT_THAT(d.suspicions[0].scope, HasSubstr("decode rows"));
  ASSERT_EQ(d.patterns.size(), 1u);
  EXPECT_THAT(d.patterns[0].text, HasSubstr("exactly the decode rows, all heads: 3 x 8 of 3 x 8 cells; no other cell is wrong"));
}

TEST(Scoped, AFactorThatNoListHoldsIsFitted) {
  Case c = right(kLine);
  for (std::int64_t t = 0; t < c.observed.shape[0]; ++t)
    for (const std::int64_t head : {4, 5}) scale(c, t, head, 0.37);
  const Diagnosis d = diagnosed(c);
  ASSERT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.suspicions[0].mechanism, "factor_out");
  EXPECT_THAT(d.suspicions[0].detail, HasSubstr("times 0.3"));
  EXPECT_THAT(d.patterns[0].text, HasSubstr("heads 4-5"));
}

/// A window is one key too long in the prefill rows. Rows whose 21st key weighs nothing stay right, and so do rows that see it
/// by their prefix: no rule over the batch tells them from the wrong ones, but the cause does.
TEST(Scoped, RightCellsThatACauseWouldChangeTellWhereItHolds) {
  const char* const line =
      "q=bf16 heads=6:2 d=64 page=32 window=20 prefix=30,0,0,30,4,0,1 seed=6 "
      "reqs=1@145,3@48,47@17,66@100,17@42,1@300,1@31";
  const Case c = made(line);
  std::vector<std::int64_t> prefill;
  for (std::int64_t t = 1; t < 134; ++t) prefill.push_back(t);
  const Diagnosis d = diagnosed(with_fault_in(line, "window_one_long", prefill));
  ASSERT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.suspicions[0].fault, "window_one_long") << to_string(d);
  EXPECT_THAT(d.suspicions[0].scope, HasSubstr("prefill rows")) << to_string(d);
}

/// Two faults in different scopes are two patterns, each with its cause.
TEST(Scoped, TwoFaultsInTwoScopesAreNamedOneByOne) {
  Case c = with_fault_in(kLine, "causal_excludes_own_key", decode_rows(made(kLine)));
  for (std::int64_t t = 0; t < 20; ++t) scale(c, t, 7, -1);
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.patterns.size(), 2u) << to_string(d);
  EXPECT_THAT(to_string(d), HasSubstr("factor_out"));
  EXPECT_THAT(to_string(d), HasSubstr("causal_excludes_own_key"));
}

/// The share of the error alone would call this found: nine dims of ten follow the fault, the others hold something else.
TEST(Scoped, WhatDoesNotExplainEveryDimIsNotTheCause) {
  Case c = with_fault_in(kLine, "v_scale_dropped", decode_rows(made(kLine)));
  for (const std::int64_t t : decode_rows(c))
    for (std::int64_t head = 0; head < 8; ++head)
      for (std::int64_t d = 0; d < 6; ++d) {
        const std::int64_t at = (t * 8 + head) * 64 + d;
        semantics::store(c.observed.data, c.observed.dtype, at, static_cast<float>(3 + d + head));
      }
  const Diagnosis d = diagnosed(c);
  EXPECT_NE(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
}

/// NaN may have been computed, or never overwritten: bytes from before the call decide, and without them nothing does.
TEST(Scoped, NaNProvesNothingUnlessTheBytesWereThereBefore) {
  Case c = right(kLine);
  const Tensor before = copy_of(c, c.batch.output);
  for (std::int64_t i = 0; i < before.num_elements(); ++i)
    semantics::store(before.data, before.dtype, i, 5.0f + 0.25f * static_cast<float>(i % 7));
  const auto keep = [&](Case& changed, bool as_nan) {
    for (const std::int64_t t : decode_rows(changed))
      for (std::int64_t i = t * 8 * 64; i < (t + 1) * 8 * 64; ++i)
        semantics::store(changed.observed.data, changed.observed.dtype, i,
                         as_nan ? std::nanf("") : static_cast<float>(semantics::load(before.data, before.dtype, i)));
  };
  Case kept = right(kLine);
  kept.batch.output = before;
  keep(kept, /*as_nan=*/false);
  const Diagnosis proven = diagnosed(kept);
  EXPECT_EQ(proven.verdict, DiagnosisVerdict::cause_found) << to_string(proven);
  EXPECT_EQ(proven.suspicions[0].mechanism, "not_written");
  Case computed = right(kLine);
  computed.batch.output = before;
  keep(computed, /*as_nan=*/true);
  EXPECT_NE(diagnosed(computed).verdict, DiagnosisVerdict::cause_found);
}

/// Only the last tile of each sequence counts: rows that see none of it hold 0. A few of them alone look as if nothing had been
/// written; a cause is certain after all cells were looked at.
TEST(Scoped, ACauseIsCertainAfterAllCellsWereLookedAt) {
  const Diagnosis d = diagnosed(
      written_by("q=f16 heads=8:2 d=128 page=16 reqs=113@25,1@25,29@1454,5@428,1@12,83@23", {}, [](faults_detail::Model& m) {
        m.keys = [exact = m.keys](const faults_detail::Row& row, std::vector<faults_detail::Key>& keys) {
          exact(row, keys);
          const std::int64_t first = (row.seq_len - 1) / 128 * 128;
          std::erase_if(keys, [&](const faults_detail::Key& k) { return k.position < first; });
        };
      }));
  ASSERT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  for (const Suspicion& s : d.suspicions) EXPECT_FALSE(s.certain && s.mechanism == "not_written") << to_string(d);
}

}  // namespace
}  // namespace quire::test
