// SPDX-License-Identifier: Apache-2.0
// The census says which slots a wrong row has read, and how often, exactly where the data determine it, and nothing elsewhere.
#include <functional>
#include <map>
#include <random>

#include "diagnose/census_changes.h"
#include "diagnose/census_util.h"

namespace quire::test {
namespace {

using diagnose_detail::CensusUnit;
using diagnose_detail::RowCensus;
using Multiset = std::map<std::pair<std::int64_t, std::int64_t>, int>;  // (page, offset) -> reads
using Picks = std::vector<Pick>;

std::vector<RowCensus> census_of(const Case& c) {
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const Result<diagnose_detail::Localisation> where = diagnose_detail::localise(facts, {c.observed, c.observed_lse}, {});
  EXPECT_TRUE(where.ok()) << where.status().message();
  return diagnose_detail::take_census(facts, {c.observed, c.observed_lse}, where.value(), diagnose_detail::TimeLimit(-1));
}

Multiset read_by(const RowCensus& census) {
  Multiset read;
  for (std::size_t i = 0; i < census.units.size(); ++i)
    for (const std::int64_t offset : census.units[i].offsets)
      if (census.counts[i] > 0) read[{census.units[i].from, offset}] += census.counts[i];
  return read;
}

Multiset multiset(const Picks& picks) {
  Multiset read;
  for (const Pick& p : picks) ++read[{p.page, p.offset}];
  return read;
}

std::string text(const Multiset& read) {
  std::string s;
  for (const auto& [slot, count] : read)
    s += std::to_string(slot.first) + ":" + std::to_string(slot.second) + "x" + std::to_string(count) + " ";
  return s;
}

/// Rows of decode requests that see three pages and more, of which row 1 is planted.
const std::vector<std::string> kLines = {
    "q=f32 heads=8:2 d=64 page=16 reqs=1@100,1@75,1@120,1@50",
    "q=bf16 heads=8:2 d=64 page=16 reqs=1@100,1@75,1@120,1@50",
    "q=f16 heads=4:4 d=128 page=8 reqs=1@100,1@75,1@120,1@50",
    "q=bf16 kv=fp8_e4m3fn kscale=tensor vscale=tensor heads=8:2 d=64 page=16 reqs=1@100,1@75,1@120,1@50",
    "q=bf16 heads=8:2 d=64 page=16 sinks=1 reqs=1@100,1@75,1@120,1@50",
    "q=bf16 heads=8:2 d=64 page=16 window=50 reqs=1@100,1@75,1@120,1@50",
    "q=f32 heads=8:2 d=64 page=16 cap=5 reqs=1@100,1@75,1@120,1@50",
    "q=bf16 heads=8:2 d=64 dv=32 page=16 reqs=1@100,1@75,1@120,1@50",
    "q=bf16 heads=8:2 d=64 page=16 alibi=1 reqs=1@100,1@75,1@120,1@50",
};

/// Plants a change of what row 1 reads in every line, and expects the census to name exactly that.
void expect_found(const std::function<void(const Case&, Picks&)>& change) {
  for (const std::string& line : kLines) {
    SCOPED_TRACE(line);
    Case c = right(line);
    Picks picks = right_picks(c, 1);
    change(c, picks);
    write_row(c, 1, picks);
    const std::vector<RowCensus> found = census_of(c);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].token, 1);
    EXPECT_EQ(text(read_by(found[0])), text(multiset(picks)));
  }
}

TEST(Census, AnotherRequestsPage) {
  expect_found([](const Case& c, Picks& picks) {
    const std::int64_t own = page_of(c, 1, 2), other = page_of(c, 2, 5);  // a page that request 2 sees within its window
    for (Pick& p : picks)
      if (p.page == own) p.page = other;
  });
}

TEST(Census, OnePageTwiceInsteadOfAnother) {
  expect_found([](const Case& c, Picks& picks) {
    const std::int64_t own = page_of(c, 1, 3), other = page_of(c, 1, 2);
    for (Pick& p : picks)
      if (p.page == own) p.page = other;
  });
}

TEST(Census, APageLeftOut) {
  expect_found([](const Case& c, Picks& picks) {
    const std::int64_t own = page_of(c, 1, 3);
    std::erase_if(picks, [&](const Pick& p) { return p.page == own; });
  });
}

TEST(Census, APageTwice) {
  expect_found([](const Case& c, Picks& picks) {
    const std::int64_t own = page_of(c, 1, 2);
    const Picks all = picks;
    for (const Pick& p : all)
      if (p.page == own) picks.push_back(p);
  });
}

TEST(Census, RangesOfSlotsLeftOutOrTwice) {
  expect_found([](const Case&, Picks& picks) { picks.erase(picks.begin() + 20, picks.begin() + 27); });
  expect_found([](const Case&, Picks& picks) {
    const Picks again(picks.begin() + 30, picks.begin() + 35);
    picks.insert(picks.end(), again.begin(), again.end());
  });
}

TEST(Census, TheFirstAndTheLastKeyLeftOut) {
  expect_found([](const Case&, Picks& picks) { picks.erase(picks.begin()); });
  expect_found([](const Case&, Picks& picks) { picks.pop_back(); });
}

TEST(Census, PagesExchangedWherePositionsMatter) {
  Case c = right("q=bf16 heads=8:2 d=64 page=16 alibi=1 reqs=1@100,1@75,1@120,1@50");
  Picks picks = right_picks(c, 1);
  const std::int64_t one = page_of(c, 1, 1), other = page_of(c, 1, 3);
  for (Pick& p : picks)
    if (p.page == one || p.page == other) p.page = one + other - p.page;
  write_row(c, 1, picks);
  const std::vector<RowCensus> found = census_of(c);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(text(read_by(found[0])), text(multiset(picks)));  // the slots are the same, at other positions
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const diagnose_detail::CensusChanges changes = diagnose_detail::changes_of(facts, found[0]);
  ASSERT_EQ(changes.columns.size(), 2u);
  EXPECT_EQ(changes.columns[0].column, 1);
  EXPECT_EQ(changes.columns[0].read, other);
  EXPECT_EQ(changes.columns[1].column, 3);
  EXPECT_EQ(changes.columns[1].read, one);
}

/// A long row of an output of 8 bits: a page is less than the rounding of the output.
TEST(Census, SilentWhereTheDataLeaveItOpen) {
  Case c = right("q=bf16 kv=fp8_e4m3fn kscale=tensor vscale=tensor out=fp8_e4m3fn heads=1 d=8 page=4 reqs=1@300,1@40");
  Picks picks = right_picks(c, 0);
  picks.erase(picks.begin() + 8, picks.begin() + 12);
  const float scale = static_cast<const float*>(c.batch.output_scale.data)[0];
  write_row(c, 0, picks);
  for (std::int64_t d = 0; d < 8; ++d)
    semantics::store(c.observed.data, c.observed.dtype, d,
                     static_cast<float>(semantics::load(c.observed.data, c.observed.dtype, d) / scale + 5));
  EXPECT_TRUE(census_of(c).empty());
}

/// Two pages hold the same: which of them was read, nobody can tell.
TEST(Census, SilentWhereTwoPagesHoldTheSame) {
  const std::string line = "q=f32 heads=8:2 d=64 page=16 reqs=1@100,1@75,1@120,1@50";
  for (const bool copied : {false, true}) {
    Case c = made(line);
    const std::int64_t own = page_of(c, 1, 2), one = page_of(c, 2, 1), other = page_of(c, 0, 2);
    for (const Tensor* t : {&c.cache.k, &c.cache.v})
      for (std::int64_t i = 0; i < t->stride[0] && copied; ++i)
        static_cast<float*>(t->data)[other * t->stride[0] + i] = static_cast<const float*>(t->data)[one * t->stride[0] + i];
    observe_output(c);
    for (std::int64_t token = 0; token < 4; ++token) write_row(c, token, right_picks(c, token));
    Picks picks = right_picks(c, 1);
    for (Pick& p : picks)
      if (p.page == own) p.page = one;
    write_row(c, 1, picks);
    EXPECT_EQ(census_of(c).size(), copied ? 0u : 1u);
  }
}

TEST(Census, PageIdsBeyondTheCacheThatAreClippedAreTheCause) {
  for (const std::string type : {"f32", "bf16", "bf16 kv=fp8_e4m3fn kscale=tensor vscale=tensor"}) {
    Case c = right("q=" + type + " heads=8:2 d=64 page=16 reqs=1@199,1@63,1@100,1@90,1@140");
    bool readable = false;  // the last page is full of keys that its request sees
    std::int64_t limit = 0;
    for (std::int64_t column = 0; column < 11 && !readable; ++column)
      if (const std::int64_t page = page_of(c, 0, column); page >= 12 && page <= 34) limit = page, readable = true;
    ASSERT_TRUE(readable);
    for (std::int64_t token = 0; token < 5; ++token) {
      Picks picks = right_picks(c, token);
      for (Pick& p : picks) p.page = std::min(p.page, limit);
      write_row(c, token, picks);
    }
    const Diagnosis d = diagnosed(c);
    EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
    EXPECT_EQ(d.suspicions.front().detail, "page ids above " + std::to_string(limit) + " as page " + std::to_string(limit));
  }
}

TEST(Census, TheReportSaysWhoWasRead) {
  Case c = right("q=bf16 heads=8:2 d=64 page=16 reqs=1@100,1@75,1@120,1@50");
  Picks picks = right_picks(c, 1);
  picks.erase(picks.begin() + 20, picks.begin() + 27);
  const Picks again(picks.begin() + 30, picks.begin() + 33);
  picks.insert(picks.end(), again.begin(), again.end());
  write_row(c, 1, picks);
  const Diagnosis d = diagnosed(c);
  bool said = false;
  for (const std::string& fact : d.observations)
    said = said || fact.find("row 1 read its keys otherwise: positions 20-26 left out; positions 37-39 read 2 times") == 0;
  EXPECT_TRUE(said) << to_string(d);
}

TEST(Census, SilentOnRightOutputsAndOnNoise) {
  for (const std::string& line : kLines) {
    SCOPED_TRACE(line);
    Case c = right(line);
    EXPECT_TRUE(census_of(c).empty());
    std::mt19937_64 random(3);
    std::normal_distribution<double> normal(0, 0.3);
    for (std::int64_t i = 0; i < c.observed.num_elements(); ++i)
      semantics::store(c.observed.data, c.observed.dtype, i,
                       static_cast<float>(semantics::load(c.observed.data, c.observed.dtype, i) + normal(random)));
    EXPECT_TRUE(census_of(c).empty());
  }
}

}  // namespace
}  // namespace quire::test
