// SPDX-License-Identifier: Apache-2.0
// A report claims no more than what the cells say: what cannot be proved is not likely, what right cells refute is not likely, a
// tie of remedies has no one cause, and a row that breaks a law is not right.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

#include "diagnose/written_by.h"

namespace quire::test {
namespace {

using faults_detail::Key;
using faults_detail::Model;
using faults_detail::Row;
using testing::HasSubstr;
using testing::Not;

/// Row t of these rows holds the mean of its own answer and that of the request's row before: lawful numbers that no fault makes.
void mix_with_row_before(Case& c, const std::vector<std::int64_t>& rows) {
  const Case was = c;
  for (const std::int64_t t : rows)
    for (std::int64_t h = 0; h < c.observed.shape[1]; ++h)
      for (std::int64_t d = 0; d < c.observed.shape[2]; ++d)
        f32_at(c.observed, t, h, d) = 0.5F * (f32_at(was.batch.output, t, h, d) + f32_at(was.batch.output, t - 1, h, d));
}

const char* const kInt64 = "q=f32 heads=8:2 d=32 page=8 index=i64 reqs=4@40,6@70,1@55,5@31,1@90 seed=3";

/// An int64 tensor is no evidence that rows were never written.
TEST(Claims, AnInt64TensorProvesNothingAboutUnknownRows) {
  Case c = right(kInt64);
  mix_with_row_before(c, {12, 13, 14, 15});
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::unknown_cause) << to_string(d);
  EXPECT_THAT(to_string(d), Not(HasSubstr("suspect  never writes"))) << to_string(d);
}

/// The fault shows in three of four cells of long rows, and in none of the rows that a window of 24 does not bind.
TEST(Claims, WhatRightCellsRefuteIsNotLikely) {
  const char* const line = "q=f32 heads=8:2 d=32 page=8 window=24 reqs=23,23,23,23,12@60,12@80 seed=4";
  const Case wrong = with_fault(line, "window_one_short");
  Case c = right(line);
  std::mt19937 random(5);
  for (std::int64_t t = 0; t < c.observed.shape[0]; ++t)
    for (std::int64_t h = 0; h < c.observed.shape[1]; ++h) {
      if (random() % 4 == 0) continue;
      for (std::int64_t d = 0; d < c.observed.shape[2]; ++d) f32_at(c.observed, t, h, d) = f32_at(wrong.observed, t, h, d);
    }
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::unknown_cause) << to_string(d);
}

/// A key that is hidden and a key of zeros look the same in bf16 behind a long context; their remedies do not.
TEST(Claims, ATieOfRemediesHasNoOneCause) {
  const char* const line = "q=bf16 heads=8:2 d=64 page=16 reqs=1@900,1@800,1@1000,1@700,5@40 seed=5";
  Case c = right(line);
  const std::vector<std::int64_t> decode{0, 1, 2, 3};
  ASSERT_TRUE(attend_with_fault(c.batch, c.cache, c.options, "causal_excludes_own_key", decode).ok());
  observe_output(c);
  const Diagnosis d = diagnosed(c, {.full = true});
  EXPECT_EQ(d.verdict, DiagnosisVerdict::mechanism_likely) << to_string(d);
  EXPECT_EQ(place_of(d, "causal_excludes_own_key"), 1) << to_string(d);
  EXPECT_EQ(place_of(d, "own_slot_zero"), 1) << to_string(d);
  EXPECT_THAT(to_string(d), HasSubstr("one of these: a kernel that"));
}

/// Rows taken for (row, head) pairs that were never packed see keys up to index / group. A split of <group> sees the same.
TEST(Claims, OfAKeySetThatManyMechanismsHaveNoOneIsTheCause) {
  const auto plant = [](Model& m) {
    m.keys = [f = m.facts](const Row& row, std::vector<Key>& keys) {
      const std::int64_t index = row.token - row.first_token;
      faults_detail::append_keys(0, row.q_pos - index + index / f->group, keys);
    };
  };
  const Diagnosis d = diagnosed(written_by("q=f32 heads=8:2 d=64 page=16 reqs=33,50,20,1@60 seed=6", NumericsProfile{}, plant));
  EXPECT_EQ(d.verdict, DiagnosisVerdict::mechanism_likely) << to_string(d);
  EXPECT_THAT(to_string(d), HasSubstr("index in its request divided by 4")) << to_string(d);
}

/// Fills the output from before the call with numbers that no kernel makes, and keeps what was observed.
void fill_before(Case& c) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (std::int64_t t = 0; t < c.batch.output.shape[0]; ++t)
    for (std::int64_t h = 0; h < c.batch.output.shape[1]; ++h)
      for (std::int64_t d = 0; d < c.batch.output.shape[2]; ++d) f32_at(c.batch.output, t, h, d) = 3 * normal(random);
}

/// Numbers that the buffer did not hold were written: "never writes" is no suspect, in any words, whatever else is unknown.
TEST(Claims, NumbersUnlikeTheBufferRefuteThatNobodyWrote) {
  for (const bool known : {false, true}) {
    Case c = right("q=f32 heads=8:2 d=32 page=8 reqs=4@40,6@70,1@55,5@31,1@90 seed=3");
    mix_with_row_before(c, {12, 13, 14, 15});
    if (known) fill_before(c);
    const Diagnosis d = diagnosed(c);
    EXPECT_EQ(d.verdict, DiagnosisVerdict::unknown_cause) << to_string(d);
    EXPECT_FALSE(d.suspicions[0].text.starts_with("never writes")) << to_string(d);
    EXPECT_THAT(to_string(d), Not(HasSubstr("suspect  never writes"))) << to_string(d);
    for (const Suspicion& s : d.suspicions)
      EXPECT_FALSE(known && s.text.starts_with("never writes") && s.explained > 0.01) << to_string(d);
  }
}

/// Makes every dim of these rows one value, and fills what the buffer held before with numbers.
Case with_rows_of(const std::string& line, float value, std::int64_t first, std::int64_t end) {
  Case c = right(line);
  for (std::int64_t t = first; t < end; ++t)
    for (std::int64_t h = 0; h < c.observed.shape[1]; ++h)
      for (std::int64_t d = 0; d < c.observed.shape[2]; ++d) f32_at(c.observed, t, h, d) = value;
  fill_before(c);
  return c;
}

/// Rows of chunks before the last one see no key of the last row's chunk: zeros, as many other key sets give them.
TEST(Claims, ZerosAloneProveNoCause) {
  const Diagnosis d = diagnosed(with_rows_of("q=f32 heads=4:2 d=32 page=16 chunk=16 reqs=45,1@40 seed=8", 0, 0, 32));
  EXPECT_EQ(d.verdict, DiagnosisVerdict::unknown_cause) << to_string(d);
  EXPECT_THAT(to_string(d), HasSubstr("these cells hold 0 or NaN alone")) << to_string(d);
  EXPECT_THAT(to_string(d), HasSubstr("one of")) << to_string(d);
}

/// NaN over a buffer of numbers was computed: it was not left by a kernel that never wrote.
TEST(Claims, NaNOverNumbersProvesNoCause) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t first : {0, 20}) {
    const Diagnosis d = diagnosed(with_rows_of("q=f32 heads=4:2 d=32 page=16 window=16 reqs=45 seed=8", nan, first, 45));
    EXPECT_EQ(d.verdict, DiagnosisVerdict::unknown_cause) << to_string(d);
  }
}

/// NaN in a buffer that already held it may have been computed; numbers that stand there still were left.
TEST(Claims, OnlyNumbersThatTheBufferHeldProveThatNobodyWrote) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), 7.0F})
    for (const std::int64_t first : {32, 20}) {
      Case c = with_rows_of("q=f32 heads=4:2 d=32 page=16 reqs=45,1@40 seed=8", value, first, 45);
      for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i) static_cast<float*>(c.batch.output.data)[i] = value;
      const Diagnosis d = diagnosed(c);
      const bool proved = value == 7.0F;
      EXPECT_EQ(d.verdict == DiagnosisVerdict::unknown_cause, !proved) << to_string(d);
      EXPECT_EQ(d.suspicions[0].text.starts_with("never writes") && d.suspicions[0].certain, proved) << to_string(d);
    }
}

/// Rows that see no key of the first 32 are NaN in two heads; rows that see one of them are right, and so are all other heads.
TEST(Claims, TheFirstTileWithoutAKeyHasASize) {
  Case c = right("q=f32 heads=4:2 d=32 page=16 window=40 reqs=90,60,1@71 seed=8");
  const faults_detail::Facts f(c.batch, c.cache, c.options);
  const Model truth(f);
  for (std::int64_t t = 0; t < f.num_tokens; ++t)
    for (std::int64_t h = 2; h < 4; ++h)
      for (std::int64_t d = 0; d < 32 && truth.row(t, h).q_pos >= 71; ++d) f32_at(c.observed, t, h, d) = NAN;
  const Diagnosis d = diagnosed(c);
  const auto named = [](const Suspicion& s) { return s.refutation.empty() && s.detail == "tiles of 32 keys"; };
  EXPECT_TRUE(std::ranges::any_of(d.suspicions, named)) << to_string(d);
  EXPECT_NE(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
}

/// A fault holds in five of eight cells; the others hold larger numbers that it does not explain.
TEST(Claims, AClaimThatLeavesAThirdOfTheCellsIsNotLikely) {
  const char* const line = "q=f32 heads=8:2 d=32 page=8 reqs=16@40,16@70,1@55,1@90 seed=4";
  const Case wrong = with_fault(line, "kv_head_modulo");
  Case c = right(line);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (std::int64_t t = 0; t < c.observed.shape[0]; ++t)
    for (const std::int64_t h : {1, 3, 4, 6}) {  // KV heads of the other heads are the same under the fault
      const bool follows = random() % 8 < 5;
      for (std::int64_t d = 0; d < c.observed.shape[2]; ++d)
        f32_at(c.observed, t, h, d) = follows ? f32_at(wrong.observed, t, h, d) : normal(random);
    }
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::unknown_cause) << to_string(d);
  EXPECT_EQ(place_of(d, "kv_head_modulo"), 1) << to_string(d);
}

/// Makes the reference the observed output.
void answer(Case& c) {
  const Result<Reference> r = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(r.ok());
  for (std::size_t i = 0; i < r->out.size(); ++i) static_cast<float*>(c.batch.output.data)[i] = static_cast<float>(r->out[i]);
  for (std::size_t i = 0; c.batch.lse.present() && i < r->lse.size(); ++i)
    static_cast<float*>(c.batch.lse.data)[i] = static_cast<float>(r->lse[i]);
  observe_output(c);
}

/// The scores of row 0 lie below the number at which a kernel starts its maximum: it writes 0, and that number as lse.
TEST(Claims, TheLseOfZerosTellsWhereTheMaximumStarted) {
  Case c = made("q=f32 heads=4:2 d=128 page=16 lse=1 reqs=1@60,1@40,8@20 seed=7");
  auto* query = static_cast<float*>(c.batch.query.data);
  auto* key = static_cast<float*>(c.cache.k.data);
  for (std::int64_t i = 0; i < c.cache.k.num_elements(); ++i) key[i] = 0.05F * key[i] + 22;
  for (std::int64_t i = 0; i < 4 * 128; ++i) query[i] = 0.05F * query[i] - 22;
  answer(c);
  for (std::int64_t h = 0; h < 4; ++h) {
    for (std::int64_t d = 0; d < 128; ++d) f32_at(c.observed, 0, h, d) = 0;
    static_cast<float*>(c.observed_lse.data)[h] = -4419.4F;
  }
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::mechanism_likely) << to_string(d);
  EXPECT_THAT(d.suspicions[0].text, HasSubstr("starts the running maximum at a finite number")) << to_string(d);
  EXPECT_THAT(d.suspicions[0].detail, HasSubstr("-4419.4")) << to_string(d);
}

/// Scores near -1e5 in f32 have a tolerance above the answers: zeros lie within it, and are no average of V.
TEST(Claims, ARowThatBreaksALawIsNotRight) {
  Case c = made("q=f32 heads=4:2 d=64 page=16 reqs=1@60,1@40 seed=7");
  auto* query = static_cast<float*>(c.batch.query.data);
  auto* key = static_cast<float*>(c.cache.k.data);
  for (std::int64_t i = 0; i < c.cache.k.num_elements(); i += 64) key[i] = 1;
  for (std::int64_t h = 0; h < 4; ++h) query[h * 64] = -8e5F;
  answer(c);
  EXPECT_EQ(diagnosed(c).verdict, DiagnosisVerdict::right);
  for (std::int64_t h = 0; h < 4; ++h)
    for (std::int64_t d = 0; d < 64; ++d) f32_at(c.observed, 0, h, d) = 0;
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::unknown_cause) << to_string(d);
  EXPECT_THAT(to_string(d), HasSubstr("law      one value in every dim"));
}

}  // namespace
}  // namespace quire::test
