// SPDX-License-Identifier: Apache-2.0
// Each class of bytes in wrong cells, planted by hand; sets of cells whose bytes are unlike get a cause each.
#include "diagnose/cell_bytes.h"
#include "diagnose/diagnose_util.h"

namespace quire::test {
namespace {

const std::string kLine = "q=f32 heads=8:2 d=64 page=16 lse=1 reqs=1@60,1@99,1@33,1@140,1@77";

std::string text_of(const Case& c) {
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const diagnose_detail::Observed observed{c.observed, c.observed_lse};
  Result<diagnose_detail::Localisation> where = diagnose_detail::localise(facts, observed, {});
  EXPECT_TRUE(where.ok()) << where.status().message();
  diagnose_detail::classify(facts, observed, where.value());
  return diagnose_detail::cell_bytes(facts, observed, where.value());
}

TEST(CellBytes, EachClassIsCounted) {
  Case c = right(kLine);
  const Tensor was = c.batch.output;
  for (std::int64_t i = 0; i < was.num_elements(); ++i) static_cast<float*>(was.data)[i] = 7.5f + static_cast<float>(i % 3);
  const Tensor answers = copy_of(c, c.observed);
  for (std::int64_t d = 0; d < 64; ++d) {
    f32_at(c.observed, 0, 1, d) = f32_at(was, 0, 1, d);
    f32_at(c.observed, 1, 2, d) = 0;
    f32_at(c.observed, 2, 3, d) = NAN;
    f32_at(c.observed, 3, 4, d) = f32_at(answers, 3, 6, d);
    f32_at(c.observed, 4, 5, d) += 0.5f;
  }
  EXPECT_EQ(text_of(c),
            "the 5 wrong cells looked at hold: 1 what output held before the call, 1 zeros, 1 no finite number, 1 another cell's "
            "right answer (row 3 head 4 that of row 3 head 6)");
}

/// An output that holds right answers before the call is that of the call itself, as captures taken behind it have.
TEST(CellBytes, AnOutputThatIsRightBeforeTheCallProvesNothing) {
  Case c = right(kLine);
  for (std::int64_t d = 0; d < 64; ++d) f32_at(c.observed, 4, 5, d) += 0.5f;
  c.batch.output = copy_of(c, c.observed);
  EXPECT_EQ(text_of(c), "");
}

TEST(CellBytes, NothingIsSaidOfOtherNumbersAndRightOutputs) {
  Case c = right(kLine);
  EXPECT_EQ(text_of(c), "");
  for (std::int64_t d = 0; d < 64; ++d) f32_at(c.observed, 4, 5, d) += 0.5f;
  EXPECT_EQ(text_of(c), "");
}

/// Rows behind the first of each request are never written, and first rows are twice what they should be.
TEST(CellBytes, SetsOfUnlikeBytesHaveACauseEach) {
  Case c = right("q=f32 heads=8:2 d=64 page=16 reqs=4@60,4@99,1@33,4@140,4@77,1@50");
  const Tensor was = c.batch.output;
  for (std::int64_t i = 0; i < was.num_elements(); ++i) static_cast<float*>(was.data)[i] = 7.5f + static_cast<float>(i % 3);
  for (const std::int64_t first : {0, 4, 9, 13})
    for (std::int64_t row = 0; row < 4; ++row)
      for (std::int64_t head = 0; head < 8; ++head)
        for (std::int64_t d = 0; d < 64; ++d) {
          float& seen = f32_at(c.observed, first + row, head, d);
          seen = row == 0 ? 2 * seen : f32_at(was, first + row, head, d);
        }
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  ASSERT_EQ(d.parts.size(), 2u) << to_string(d);
  EXPECT_TRUE(d.patterns[0].exact() || d.patterns[1].exact()) << to_string(d);
  EXPECT_EQ(d.suspicions[d.parts[0].first].mechanism, "not_written") << to_string(d);
  EXPECT_EQ(d.suspicions[d.parts[1].first].mechanism, "factor_out") << to_string(d);
}

}  // namespace
}  // namespace quire::test
