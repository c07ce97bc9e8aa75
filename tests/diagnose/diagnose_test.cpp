// SPDX-License-Identifier: Apache-2.0
// Answers of diagnose() about outputs whose fault is known.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "diagnose/diagnose_util.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const char* const kLine = "q=f32 heads=8:2 d=32 page=8 lse=1 reqs=20@30,1@100,7@13,1@41";

TEST(Diagnose, CallsARightOutputRight) {
  const Diagnosis d = diagnosed(right(kLine));
  EXPECT_EQ(d.verdict, DiagnosisVerdict::right);
  EXPECT_TRUE(d.complete);
  EXPECT_TRUE(d.suspicions.empty());
  EXPECT_THAT(to_string(d), HasSubstr("every one of the 29 rows was compared"));
}

TEST(Diagnose, FindsOneWrongElementAndSaysWhere) {
  Case c = right(kLine);
  f32_at(c.observed, 25, 3, 17) += 0.01f;
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.wrong_tokens, std::vector<std::int64_t>{25});
  EXPECT_THAT(to_string(d),
              HasSubstr("row 25 (request 2: query_len 7, context_len 13, seq_len 20): 1 of 8 heads (3), dims 17-17; 1 elements"));
}

TEST(Diagnose, SaysUnknownWhenNoFaultExplainsTheError) {
  Case c = right(kLine);
  // A pattern that no attention over this cache makes: every dim of some heads moved by its own small amount.
  for (std::int64_t t = 3; t < 29; t += 2)
    for (std::int64_t h = 0; h < 8; h += 3)
      for (std::int64_t dim = 0; dim < 32; ++dim)
        f32_at(c.observed, t, h, dim) += 0.05f * static_cast<float>((t * 7 + h * 5 + dim * 3) % 11 - 5);
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::unknown_cause);
  EXPECT_THAT(to_string(d), HasSubstr("faults and mechanisms explains more than "));
  EXPECT_GT(d.suspicions.size(), faults().size());
  EXPECT_FALSE(d.observations.empty());
  for (const Suspicion& s : d.suspicions) EXPECT_FALSE(s.refutation.empty()) << s.fault;
}

// Rows of NaN fit all causes that read what is poisoned, and those that write nothing.
TEST(Diagnose, SaysHowToTellTheCausesOfNaNApart) {
  const Diagnosis nan = diagnosed(with_fault("q=bf16 heads=8:2 d=64 page=16 window=64 reqs=3x1@200", "window_ignored"));
  EXPECT_EQ(nan.verdict, DiagnosisVerdict::unknown_cause);
  EXPECT_THAT(to_string(nan), HasSubstr("next     NaN does not tell a read of what must not be read"));
  EXPECT_THAT(to_string(diagnosed(with_fault(kLine, "one_query_head_per_group"))), Not(HasSubstr("NaN does not tell")));
}

TEST(Diagnose, CountsManyCausesThatPredictTheSame) {
  const Diagnosis many = diagnosed(with_fault("q=f32 heads=8:2 d=64 page=16 reqs=3x1@200,50@7", "seq_lens_off_by_one"));
  EXPECT_EQ(many.verdict, DiagnosisVerdict::cause_found);
  EXPECT_THAT(to_string(many), HasSubstr("4 other causes predict the same numbers on this batch"));
}

TEST(Diagnose, NamesTheRuleOfABrokenBatch) {
  Case c = right(kLine);
  static_cast<std::int32_t*>(c.batch.block_table.data)[0] = 12345;
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::broken_batch);
  EXPECT_THAT(to_string(d), HasSubstr("Q-T03 block_table[0][0]: page 12345"));
  const Result<Case> reduced = reduce_case(c, d);
  EXPECT_FALSE(reduced.ok());
}

TEST(Diagnose, NeedsAnObservedOutputOfTheRightShape) {
  Case c = made(kLine);
  EXPECT_EQ(diagnose(c).status().code(), Code::invalid_argument);
  c.observed = c.batch.output;
  c.observed.shape[1] = 4;
  EXPECT_THAT(diagnose(c).status().message(), HasSubstr("observed: f32 [29, 4, 32]"));
  c.observed = c.batch.output;
  c.observed_lse = c.batch.seq_lens;
  EXPECT_THAT(diagnose(c).status().message(), HasSubstr("observed_lse"));
}

TEST(Diagnose, FindsTwoFaultsAtOnce) {
  // KV heads are mapped by modulo, and the last row is never written: it holds what the buffer was filled with.
  const std::string line = "q=f32 heads=8:2 d=32 page=8 reqs=20@30,9@100,7@13,5@41";
  Case c = with_fault(line, "kv_head_modulo");
  for (std::int64_t h = 0; h < 8; ++h)
    for (std::int64_t dim = 0; dim < 32; ++dim) f32_at(c.observed, 40, h, dim) = 5;
  const Diagnosis d = diagnosed(c);
  ASSERT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.patterns.size(), 2u) << to_string(d);
  EXPECT_EQ(d.suspicions[0].fault, "kv_head_modulo");
  EXPECT_THAT(to_string(d), HasSubstr("the last row of request 3"));
  EXPECT_THAT(to_string(d), HasSubstr("not_written"));
}

TEST(Diagnose, RefutesWithNumbersAndWithReasons) {
  const Diagnosis d = diagnosed(with_fault(kLine, "scale_from_query_heads"));
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_THAT(to_string(d), HasSubstr("explains"));
  EXPECT_THAT(to_string(d), HasSubstr("rounding moves these rows by at most"));
  EXPECT_THAT(to_string(d), HasSubstr("no case"));
  for (const Suspicion& s : d.suspicions) EXPECT_TRUE(!s.refutation.empty() || s.explained > d.suspicions[0].explained - 0.011);
}

TEST(Diagnose, IsTheSameEveryTime) {
  const Case c = with_fault(kLine, "scale_from_query_heads");
  EXPECT_EQ(to_string(diagnosed(c)), to_string(diagnosed(c)));
  EXPECT_EQ(to_json(diagnosed(c)), to_json(diagnosed(c)));
}

TEST(Diagnose, WritesJsonThatSaysTheSame) {
  const Diagnosis d = diagnosed(with_fault(kLine, "scale_from_query_heads"));
  const nlohmann::json json = nlohmann::json::parse(to_json(d));
  EXPECT_EQ(json["quire_diagnose"], 2);
  EXPECT_EQ(json["verdict"], name(d.verdict));
  EXPECT_EQ(json["suspicions"].size(), d.suspicions.size());
  EXPECT_EQ(json["suspicions"][0]["fault"], d.suspicions[0].fault);
  EXPECT_TRUE(json["pictures"].contains("error"));
  EXPECT_TRUE(json["pictures"].contains("pages"));
}

/// Without time for the reference only a few rows are compared, and the report says so.
TEST(Diagnose, ComparesAFewRowsWhenTimeIsShort) {
  Case c = right("q=f32 heads=4:2 d=32 page=16 reqs=200@300,150@20");
  for (std::int64_t dim = 0; dim < 32; ++dim) f32_at(c.observed, 123, 1, dim) = 7.25f;
  const Diagnosis d = diagnosed(c, {.reference_seconds = 1e-4});
  EXPECT_FALSE(d.complete);
  EXPECT_EQ(d.wrong_tokens, std::vector<std::int64_t>{123});
  EXPECT_THAT(to_string(d), HasSubstr("laws cover all 350 rows"));
  EXPECT_TRUE(diagnosed(c, {.full = true}).complete);
}

/// A lawful error in a row that is not looked at must not be called right.
TEST(Diagnose, ComparesEverythingBeforeCallingItRight) {
  Case c = right("q=f32 heads=4:2 d=32 page=16 reqs=200@300,150@20");
  f32_at(c.observed, 123, 1, 5) += 0.001f;
  const Diagnosis d = diagnosed(c, {.reference_seconds = 1e-4});
  EXPECT_TRUE(d.complete);
  EXPECT_EQ(d.wrong_tokens, std::vector<std::int64_t>{123});
}

TEST(Diagnose, AnEmptyBatchIsRight) {
  EXPECT_EQ(diagnosed(right("q=f32 heads=4:2 d=16 page=8 reqs=none")).verdict, DiagnosisVerdict::right);
  EXPECT_EQ(diagnosed(right("q=f32 heads=4:2 d=16 page=8 reqs=0@5,0")).verdict, DiagnosisVerdict::right);
}

TEST(ReduceCase, KeepsTheCauseWithFewerPages) {
  const Case c =
      with_fault("q=f16 heads=4:2 d=32 page=8 index=i64 reqs=30@30,25@9,7@13,40@3,1@64", "query_start_loc_as_int32_in_decode");
  const Diagnosis d = diagnosed(c);
  const Result<Case> reduced = reduce_case(c, d);
  ASSERT_TRUE(reduced.ok()) << reduced.status().message();
  EXPECT_LT(num_pages(reduced->cache), num_pages(c.cache));
  EXPECT_LT(reduced->batch.query.shape[0], c.batch.query.shape[0]);
  EXPECT_EQ(reduced->batch.query_start_loc.dtype, DType::i64);
  const Diagnosis again = diagnosed(reduced.value());
  EXPECT_EQ(again.verdict, d.verdict);
  EXPECT_EQ(again.suspicions[0].fault, d.suspicions[0].fault);
}

TEST(ReduceCase, SurvivesTheFile) {
  const Case c = with_fault(kLine, "scale_from_query_heads");
  const Diagnosis d = diagnosed(c);
  const Result<Case> reduced = reduce_case(c, d);
  ASSERT_TRUE(reduced.ok()) << reduced.status().message();
  const std::string path = testing::TempDir() + "/reduced.safetensors";
  ASSERT_TRUE(write_capture(path, reduced.value()).ok());
  const Result<Case> read = read_capture(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(diagnosed(read.value()).suspicions[0].fault, d.suspicions[0].fault);
}

/// Every fourth head is insensitive to a key at the window's edge and stays within its tolerance. The pattern tells where the
/// cause holds, and not where it shows.
TEST(Diagnose, InsensitiveHeadsAreNoPartOfThePattern) {
  for (const char* line : {"q=bf16 heads=32:8 d=128 page=16 window=100 reqs=24@512",
                           "q=bf16 heads=32:8 d=128 page=16 window=32 reqs=1@2000,1@700,1@1500",
                           "q=bf16 heads=32:8 d=128 page=16 window=512 reqs=1@300,1@900,40@100,1@513,20"}) {
    const Diagnosis d = diagnosed(with_fault(line, "window_one_short"));
    ASSERT_EQ(d.verdict, DiagnosisVerdict::cause_found) << line << "\n" << to_string(d);
    for (const CellPattern& p : d.patterns) EXPECT_THAT(p.text, Not(HasSubstr("of each group"))) << line;
    EXPECT_TRUE(d.patterns.front().exact()) << d.patterns.front().text;
    EXPECT_THAT(to_string(d), Not(HasSubstr("of each group only"))) << line;
  }
}

}  // namespace
}  // namespace quire::test
