// SPDX-License-Identifier: Apache-2.0
// Faults with parameters find them from a few wrong rows.
#include <gmock/gmock.h>

#include "faults/fault.h"
#include "faults/faults_util.h"

namespace quire::test {
namespace {

using faults_detail::Facts;
using faults_detail::Model;
using faults_detail::RowHead;
using faults_detail::RowResult;

std::vector<faults_detail::Sample> samples(const Model& model, const std::vector<RowHead>& rows) {
  std::vector<faults_detail::Sample> wrong;
  const std::vector<RowResult> results = evaluate(model, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) wrong.push_back({rows[i].token, rows[i].head, results[i].out});
  return wrong;
}

struct StalePage {
  const char* line;
  std::int64_t req, column;
  std::int64_t from = 1;  ///< column of the other request that the page is taken from
};

TEST(StalePage, IsFoundFromOneWrongRow) {
  for (const StalePage& s :
       {StalePage{"q=f32 heads=4:2 d=16 page=8 reqs=5@60,1@90,1@30 seed=3", 1, 4},
        StalePage{"q=bf16 kv=fp8_e4m3fn heads=6:2 d=32 page=16 layout=packed kscale=head vscale=head alibi=1 cap=20 "
                  "sinks=1 reqs=1@200,9@70 seed=4",
                  1, 2},
        StalePage{"q=f16 heads=5:1 d=24 page=5 layout=hnd window=33 reqs=1@133,1@61 seed=5", 0, 25, 9},
        StalePage{"q=f32 heads=4:2 d=16 page=8 reqs=6@40/42,1@50 seed=6", 0, 5}}) {
    SCOPED_TRACE(s.line);
    Case c = made(s.line);
    ASSERT_TRUE(poison_case(c, PoisonKind::finite_garbage).ok());
    const Facts f(c.batch, c.cache, c.options);
    const std::int64_t other = f.page(s.req == 0 ? 1 : 0, s.from);
    Model planted(f);
    planted.table = [&, before = planted.table](std::int64_t r, std::int64_t j) {
      return r == s.req && j == s.column ? other : before(r, j);
    };
    const RowHead last{f.query_start_loc[Facts::at(s.req + 1)] - 1, 1};
    const faults_detail::Suspects found = faults_detail::find("stale_page")->suspects({f, samples(planted, {last})});
    ASSERT_FALSE(found.list.empty()) << found.why_not;
    EXPECT_THAT(found.list.front().detail,
                testing::HasSubstr("logical page " + std::to_string(s.column) + " of request " + std::to_string(s.req) +
                                   " read from page " + std::to_string(other)));
    Model guessed(f);
    found.list.front().plant(guessed);
    EXPECT_EQ(evaluate(guessed, std::span(&last, 1))[0].out, evaluate(planted, std::span(&last, 1))[0].out);
  }
}

TEST(StalePage, IsNotFoundInARightRow) {
  const Case c = made("q=f32 heads=2 d=16 page=8 reqs=5@60,1@90 seed=3");
  const Facts f(c.batch, c.cache, c.options);
  const faults_detail::Suspects found = faults_detail::find("stale_page")->suspects({f, samples(Model(f), {{2, 1}})});
  EXPECT_TRUE(found.list.empty());
  EXPECT_FALSE(found.why_not.empty());
}

TEST(Search, RequestsOfWrongRowsComeFirst) {
  const Case c = made("q=f32 heads=2 d=8 page=8 reqs=80x1@9,3@20,30x1@4 seed=3");
  const Facts f(c.batch, c.cache, c.options);
  const faults_detail::Suspects found =
      faults_detail::find("request_not_written")->suspects({f, samples(Model(f), {{100, 0}, {81, 1}})});
  ASSERT_GE(found.list.size(), 2u);
  EXPECT_EQ(found.list[0].detail, "request 98");
  EXPECT_EQ(found.list[1].detail, "request 80");
}

}  // namespace
}  // namespace quire::test
