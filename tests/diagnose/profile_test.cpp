// SPDX-License-Identifier: Apache-2.0
// Numerics profiles: their words, what they pay, and that diagnose finds the one that a kernel has, and no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "diagnose/find_profile.h"
#include "diagnose/written_by.h"
#include "numerics/tolerance.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr const char* kPlain16 = "q=bf16 heads=8:2 d=64 page=16 reqs=20@30,1@300,7@113";
constexpr const char* kFp8 = "q=bf16 kv=fp8_e4m3fn kscale=head vscale=tensor heads=8:2 d=64 page=16 reqs=20@30,1@300,7@113";
constexpr const char* kF32 = "q=f32 heads=8:2 d=64 page=16 reqs=20@30,1@300,7@113";

void scale_row(Case& c, std::int64_t token, double factor) {
  const std::int64_t n = c.observed.shape[1] * c.observed.shape[2];
  for (std::int64_t i = token * n; i < (token + 1) * n; ++i) {
    const double value = semantics::load(c.observed.data, c.observed.dtype, i);
    semantics::store(c.observed.data, c.observed.dtype, i, static_cast<float>(factor * value));
  }
}

TEST(Profile, SurvivesItsWords) {
  const NumericsProfile all{.weights = DType::bf16,
                            .scores = DType::f16,
                            .accumulator = DType::f16,
                            .parts = DType::bf16,
                            .tf32_products = true,
                            .dequantised_to_query = true};
  EXPECT_EQ(to_string(all), "weights=bf16,scores=f16,accumulator=f16,parts=bf16,products=tf32,dequantised");
  for (const NumericsProfile& p : {all, NumericsProfile{}, NumericsProfile{.weights = DType::f16}})
    EXPECT_EQ(parse_profile(to_string(p)).value(), p) << to_string(p);
  EXPECT_EQ(in_words({.weights = DType::bf16, .dequantised_to_query = true}),
            "rounds cached K and V times their scale to the query's type and rounds its softmax weights to bf16");
}

TEST(Profile, PartsCostARoundingOfWhatTheySum) {
  const Case c = made(kPlain16);
  const Reference plain = reference(c.batch, c.cache, c.options).value();
  for (const DType weights : {DType::f32, DType::bf16}) {
    const Reference one = reference(c.batch, c.cache, c.options, {.weights = weights}).value(),
                    two = reference(c.batch, c.cache, c.options, {.weights = weights, .parts = DType::bf16}).value();
    const numerics::OutputType type = numerics::output_type(DType::bf16);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(plain.out.size()); ++i) {
      const double more = numerics::output_tolerance(two, i / plain.v_head_dim, i, type) -
                          numerics::output_tolerance(one, i / plain.v_head_dim, i, type),
                   expected = numerics::kSecondOrder * (0x1p-8 * plain.abs_pv[static_cast<std::size_t>(i)] + 0x1p-133);
      ASSERT_NEAR(more, expected, 1e-9 * expected) << "element " << i;
    }
  }
}

TEST(Profile, RefusesOtherWordsAndSaysWhich) {
  for (const char* text : {"weights", "weights=fp8_e4m3fn", "weight=f16", "products=f16", "weights=bf16,,scores=bf16", ""})
    EXPECT_FALSE(parse_profile(text).ok()) << text;
  EXPECT_THAT(parse_profile("weights=bf16,score=f16").status().message(), HasSubstr("\"score=f16\"; expected plain, or"));
  const Case c = made(kF32);
  const Status refused = reference(c.batch, c.cache, c.options, {.weights = DType::fp8_e5m2}).status();
  EXPECT_EQ(refused.message(), "profile: weights is fp8_e5m2, expected f32, f16 or bf16");
}

/// Each profile pays for its emulated kernel, the one before it in the list of tightness does not.
TEST(Profile, TheToleranceHoldsTheEmulatedKernel) {
  struct Row {
    const char* line;
    NumericsProfile profile;
  };
  for (const Row& t : {Row{kPlain16, {.weights = DType::bf16}},
                       {kPlain16, {.weights = DType::bf16, .scores = DType::bf16}},
                       {"q=f16 heads=4:2 d=32 page=16 cap=20 alibi=1 reqs=9@70", {.scores = DType::f16}},
                       {kFp8, {.dequantised_to_query = true}},
                       {kFp8, {.weights = DType::bf16, .dequantised_to_query = true}},
                       {kF32, {.tf32_products = true}}}) {
    const Case c = written_by(t.line, t.profile);
    const Reference plain = reference(c.batch, c.cache, c.options).value();
    const Reference paid = reference(c.batch, c.cache, c.options, t.profile).value();
    EXPECT_EQ(paid.profile, t.profile);
    EXPECT_FALSE(compare(c.observed, {}, plain).ok) << to_string(t.profile);
    const Comparison verdict = compare(c.observed, {}, paid);
    EXPECT_TRUE(verdict.ok) << to_string(t.profile) << ": " << verdict.text;
  }
}

TEST(Profile, DequantisedIsAnExactModel) {
  const Case c = made(kFp8);
  const Reference plain = reference(c.batch, c.cache, c.options).value();
  const Reference rounded = reference(c.batch, c.cache, c.options, {.dequantised_to_query = true}).value();
  EXPECT_NE(plain.out, rounded.out);
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const faults_detail::RowHead at{25, 5};
  const faults_detail::RowResult row =
      evaluate(diagnose_detail::emulated(facts, {.dequantised_to_query = true}), std::span(&at, 1)).front();
  for (std::size_t d = 0; d < 64; ++d) EXPECT_NEAR(rounded.out[(25 * 8 + 5) * 64 + d], row.out[d], 1e-12);
}

TEST(Profile, IsFoundByItself) {
  struct Row {
    const char* line;
    NumericsProfile kernel;
  };
  for (const Row& t : {Row{kPlain16, {.weights = DType::bf16}},
                       {kPlain16, {.scores = DType::bf16}},
                       {kFp8, {.dequantised_to_query = true}},
                       {kFp8, {.weights = DType::bf16, .dequantised_to_query = true}},
                       {kF32, {.tf32_products = true}}}) {
    const Diagnosis d = diagnosed(written_by(t.line, t.kernel));
    EXPECT_EQ(d.verdict, DiagnosisVerdict::right) << to_string(t.kernel) << to_string(d);
    EXPECT_EQ(d.profile, t.kernel) << to_string(d.profile);
    EXPECT_THAT(to_string(d), HasSubstr("right for a kernel that " + in_words(t.kernel)));
    EXPECT_THAT(to_string(d), HasSubstr("it hides small errors"));
    EXPECT_EQ(nlohmann::json::parse(to_json(d))["profile"]["found"], true);
  }
}

TEST(Profile, IsPlainForAKernelThatRoundsNothing) {
  for (const char* line : {kPlain16, kFp8, kF32}) EXPECT_TRUE(diagnosed(right(line)).profile.plain()) << line;
}

/// A fault moves some cells by about as much as a rounding would: those of a kernel that rounds nothing but its output lie on
/// both sides of that, and many are exact.
TEST(Profile, IsPlainForAnExactKernelWithAFault) {
  struct Row {
    const char* line;
    std::vector<const char*> faults;
  };
  for (const Row& t :
       {Row{"q=bf16 heads=32:8 d=128 page=16 window=64 reqs=40@512",
            {"window_one_short", "window_one_long", "causal_excludes_own_key", "every_second_key_skipped",
             "split_counted_twice"}},
        Row{"q=bf16 heads=32:8 d=128 page=16 sinks=1 reqs=1@700,4@300,1@2000",
            {"denominator_starts_at_one", "masked_keys_in_denominator", "sinks_dropped", "own_slot_zero"}},
        Row{"q=bf16 kv=fp8_e4m3fn kscale=head vscale=tensor heads=8:2 d=64 page=16 window=40 reqs=20@30,1@300,7@113",
            {"context_len_is_seq_len", "window_one_long", "causal_excludes_own_key"}}})
    for (const char* fault : t.faults) {
      Case c = with_fault(t.line, fault);
      const diagnose_detail::Facts facts(c.batch, c.cache, c.options);
      const Result<diagnose_detail::Localisation> where = diagnose_detail::localise(facts, {c.observed, c.observed_lse}, {});
      EXPECT_TRUE(where->reference.profile.plain()) << fault << " on " << t.line << ": " << to_string(where->reference.profile);
      EXPECT_TRUE(where->any_wrong()) << fault << " on " << t.line;
    }
}

/// A fault in a kernel that rounds its weights: rows that only are rounded are right, and the fault's stand alone.
TEST(Profile, LeavesAFaultStanding) {
  Case c = written_by(kPlain16, {.weights = DType::bf16});
  scale_row(c, 3, 1.1);
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(to_string(d.profile), "weights=bf16");
  EXPECT_NE(d.verdict, DiagnosisVerdict::right);
  EXPECT_EQ(d.wrong_tokens, std::vector<std::int64_t>{3});
}

/// The k_scales of two KV heads are confused, and nearly equal: scores kept in bf16 would err by as much, but not with a sign.
TEST(Profile, IsNotFoundForASmallFactorOnScores) {
  const Diagnosis d = diagnosed(written_by(kPlain16, {}, [](faults_detail::Model& m) {
    m.softmax_scale = [exact = m.softmax_scale](const faults_detail::Row& row) {
      return exact(row) * (row.head < 4 ? 1.0033 : 0.9967);
    };
  }));
  EXPECT_TRUE(d.profile.plain()) << to_string(d.profile);
  EXPECT_NE(d.verdict, DiagnosisVerdict::right);
}

/// Nearly every cell is wrong by far. The few others are wrong by as much as rounded weights make them, and that is enough.
TEST(Profile, IsFoundBesideAFaultOfNearlyAllRows) {
  Case c = written_by("q=bf16 heads=8:2 d=64 page=16 reqs=40@300,1@300,70@113,330@500", {.weights = DType::bf16});
  for (std::int64_t token = 40; token < c.observed.shape[0]; ++token) scale_row(c, token, -1);
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(to_string(d.profile), "weights=bf16") << to_string(d);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.wrong_tokens.size(), static_cast<std::size_t>(c.observed.shape[0] - 40)) << to_string(d);
}

/// A factor that the tolerance of rounded weights would hide is no rounding: it has a sign.
TEST(Profile, IsNotFoundForASmallFactorOnEverything) {
  Case c = written_by(kPlain16, {.weights = DType::bf16});
  for (std::int64_t token = 0; token < c.observed.shape[0]; ++token) scale_row(c, token, 1.003);
  const Diagnosis d = diagnosed(c);
  EXPECT_TRUE(d.profile.plain()) << to_string(d.profile);
  EXPECT_NE(d.verdict, DiagnosisVerdict::right);
}

TEST(Profile, ThatIsGivenIsTheOneThatJudges) {
  const Case c = written_by(kPlain16, {.weights = DType::bf16});
  EXPECT_NE(diagnosed(c, {.profile = NumericsProfile{}}).verdict, DiagnosisVerdict::right);
  const Diagnosis d = diagnosed(c, {.profile = NumericsProfile{.weights = DType::bf16}});
  EXPECT_EQ(d.verdict, DiagnosisVerdict::right);
  EXPECT_THAT(to_string(d), HasSubstr("(as given)"));
}

/// Sums in f16 widen every tolerance, and nothing else.
TEST(Profile, AnAccumulatorWidensTheTolerance) {
  const Case c = made("q=f16 heads=2 d=32 page=16 reqs=4@60");
  const Reference plain = reference(c.batch, c.cache, c.options).value();
  const Reference wide = reference(c.batch, c.cache, c.options, {.accumulator = DType::f16}).value();
  EXPECT_EQ(plain.out, wide.out);
  const numerics::OutputType type = numerics::output_type(DType::f16);
  for (std::int64_t i = 0; i < 4 * 2 * 32; ++i) {
    const double more = numerics::output_tolerance(wide, i / 32, i, type) - numerics::output_tolerance(plain, i / 32, i, type);
    const double sums = numerics::gamma(2.0 * static_cast<double>(plain.num_keys[static_cast<std::size_t>(i / 32)] + 1), 0x1p-11);
    EXPECT_GT(more, sums * plain.abs_pv[static_cast<std::size_t>(i)]);
  }
}

}  // namespace
}  // namespace quire::test
