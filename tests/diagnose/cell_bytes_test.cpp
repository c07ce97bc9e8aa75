// SPDX-License-Identifier: Apache-2.0
// Each class of bytes in wrong cells, and lse in another order, planted by hand.
#include "diagnose/cell_bytes.h"
#include "diagnose/diagnose_util.h"

namespace quire::test {
namespace {

const std::string kLine = "q=f32 heads=8:2 d=64 page=16 lse=1 reqs=1@60,1@99,1@33,1@140,1@77";

std::vector<std::string> lines_of(const Case& c) {
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const diagnose_detail::Observed observed{c.observed, c.observed_lse};
  const Result<diagnose_detail::Localisation> where = diagnose_detail::localise(facts, observed, {});
  EXPECT_TRUE(where.ok()) << where.status().message();
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
  const std::vector<std::string> lines = lines_of(c);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "the 5 wrong cells looked at hold: 1 what output held before the call, 1 zeros, 1 no finite number, 1 another cell's "
            "right answer (row 3 head 4 that of row 3 head 6)");
}

/// An output that holds right answers before the call is that of the call itself, as captures taken behind it have.
TEST(CellBytes, AnOutputThatIsRightBeforeTheCallProvesNothing) {
  Case c = right(kLine);
  for (std::int64_t d = 0; d < 64; ++d) f32_at(c.observed, 4, 5, d) += 0.5f;
  c.batch.output = copy_of(c, c.observed);
  EXPECT_TRUE(lines_of(c).empty());
}

TEST(CellBytes, NothingIsSaidOfOtherNumbersAndRightOutputs) {
  Case c = right(kLine);
  EXPECT_TRUE(lines_of(c).empty());
  for (std::int64_t d = 0; d < 64; ++d) f32_at(c.observed, 4, 5, d) += 0.5f;
  EXPECT_TRUE(lines_of(c).empty());
}

TEST(CellBytes, AnLseInAnotherOrder) {
  for (const int kind : {0, 1, 2}) {
    Case c = right(kLine);
    float* lse = static_cast<float*>(c.observed_lse.data);
    const std::vector<float> was(lse, lse + 40);
    for (std::size_t token = 0; token < 5; ++token)
      for (std::size_t head = 0; head < 8; ++head) {
        const std::size_t flat = kind == 0 ? head * 5 + token : head / 4 * 20 + token * 4 + head % 4;
        lse[kind == 2 ? flat % 5 * 8 + flat / 5 : flat] = was[token * 8 + head];
      }
    const std::vector<std::string> lines = lines_of(c);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0], std::string("lse holds every right value, written as ") +
                            (kind == 0 ? "[KV head, head in the group, row]" : "[KV head, row, head in the group]") +
                            " and read as " + (kind == 2 ? "[head, row]" : "[row, head]"));
  }
}

}  // namespace
}  // namespace quire::test
