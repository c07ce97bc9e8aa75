// SPDX-License-Identifier: Apache-2.0
// K of one order and V of another: the pairs are solved exactly where the data determine them, on either side, and nowhere else.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "diagnose/equation.h"
#include "diagnose/pairs.h"

namespace quire::test {
namespace {

using diagnose_detail::RowCensus;
using diagnose_detail::Sides;
using Picks = std::vector<Pick>;
using testing::HasSubstr;
using testing::Not;

constexpr Sides kK{true, false}, kV{false, true};

std::vector<RowCensus> pairs_of(const Case& c, Sides moved) {
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const Result<diagnose_detail::Localisation> where = diagnose_detail::localise(facts, {c.observed, c.observed_lse}, {});
  EXPECT_TRUE(where.ok()) << where.status().message();
  return diagnose_detail::rows_of(
      diagnose_detail::take_pairs(facts, {c.observed, c.observed_lse}, where.value(), diagnose_detail::TimeLimit(-1)), moved);
}

std::string text(const RowCensus& census) {
  std::string s;
  for (const auto& [position, place] : census.pairs)
    s += std::to_string(position) + "<" + std::to_string(place.page) + ":" + std::to_string(place.offset) + " ";
  return s;
}

std::string text(const Picks& moved) {
  std::string s;
  for (const Pick& p : moved)
    s += std::to_string(p.position) + "<" + std::to_string(p.page) + ":" + std::to_string(p.offset) + " ";
  return s;
}

/// Row `token` reads one side by `moved`, the other by its table.
void plant(Case& c, std::int64_t token, Sides side, const Picks& moved) {
  const Picks own = right_picks(c, token);
  write_row(c, token, side.key ? moved : own, side.key ? own : moved);
}

/// Decode requests of three pages and more, of which row 1 is planted.
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

/// Plants a change of what row 1 reads of one side in every line, and expects that the pairs are exactly those.
void expect_found(const std::function<void(const Case&, Picks&)>& change) {
  for (const std::string& line : kLines)
    for (const Sides side : {kV, kK}) {
      SCOPED_TRACE(line + " " + side.text());
      Case c = right(line);
      Picks moved = right_picks(c, 1);
      change(c, moved);
      plant(c, 1, side, moved);
      const std::vector<RowCensus> found = pairs_of(c, side);
      ASSERT_EQ(found.size(), 1u);
      EXPECT_EQ(found[0].token, 1);
      EXPECT_EQ(text(found[0]), text(moved));
    }
}

TEST(Pairs, PagesInAnotherOrder) {
  expect_found([](const Case& c, Picks& moved) {
    const std::int64_t size = c.cache.k.shape[1];
    for (Pick& p : moved)
      if (const std::int64_t j = p.position / size; j == 2 || j == 3) p.page = page_of(c, 1, 5 - j);
  });
}

TEST(Pairs, PagesOfAnotherRequest) {
  expect_found([](const Case& c, Picks& moved) {
    const std::int64_t size = c.cache.k.shape[1];
    for (Pick& p : moved)
      if (const std::int64_t j = p.position / size; j == 2 || j == 3) p.page = page_of(c, 2, size == 8 ? j - 2 : j + 3);
  });
}

TEST(Pairs, SlotsOfEveryPageInAnotherOrder) {
  for (const std::string type : {"f32", "bf16"})
    for (const Sides side : {kV, kK})
      for (const bool full_pages : {true, false}) {
        SCOPED_TRACE(type + " " + side.text() + (full_pages ? " full" : ""));
        Case c = right("q=" + type + " heads=16:4 d=64 page=8 reqs=1@71,1@70,1@61,1@50");
        const std::int64_t order[] = {0, 1, 4, 5, 2, 3, 6, 7};
        Picks moved = right_picks(c, 1);
        for (Pick& p : moved)
          if (!full_pages || p.position < 64) p.offset = order[p.offset];
        plant(c, 1, side, moved);
        const std::vector<RowCensus> found = pairs_of(c, side);
        ASSERT_EQ(found.size(), 1u);
        EXPECT_EQ(text(found[0]), text(moved));
      }
}

TEST(Pairs, KeysInAnyOrder) {
  for (const std::string line :
       {"q=f32 heads=16:4 d=64 page=16 reqs=1@40,1@21,1@30", "q=bf16 heads=16:4 d=64 page=4 reqs=1@40,1@8,1@30"})
    for (const Sides side : {kV, kK}) {
      SCOPED_TRACE(line + " " + side.text());
      Case c = right(line);
      const Picks own = right_picks(c, 1);
      std::vector<std::size_t> order(own.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(5));
      Picks moved = own;
      for (std::size_t k = 0; k < own.size(); ++k) moved[k] = {own[order[k]].page, own[order[k]].offset, own[k].position};
      plant(c, 1, side, moved);
      const std::vector<RowCensus> found = pairs_of(c, side);
      ASSERT_EQ(found.size(), 1u);
      EXPECT_EQ(text(found[0]), text(moved));
    }
}

/// Copies page `from` of K or V into page `to`.
void copy_page(const Tensor& t, std::int64_t from, std::int64_t to) {
  auto* const data = static_cast<float*>(t.data);
  std::copy_n(data + from * t.stride[0], t.stride[0], data + to * t.stride[0]);
}

/// How many rows have pairs if column 2 of row 1 has its V from a page of request 2, after `change` has changed the cache.
std::size_t rows_found(const std::string& line, const std::function<void(const Case&)>& change) {
  Case c = made(line);
  change(c);
  observe_output(c);
  for (std::int64_t token = 0; token < c.observed.shape[0]; ++token) write_row(c, token, right_picks(c, token));
  const std::int64_t own = page_of(c, 1, 2), other = page_of(c, 2, 1);
  Picks moved = right_picks(c, 1);
  for (Pick& p : moved)
    if (p.page == own) p.page = other;
  plant(c, 1, kV, moved);
  return pairs_of(c, kV).size();
}

/// Two pages hold the same V: which of them met the weights, nobody can tell.
TEST(Pairs, SilentWhereValuesRepeat) {
  EXPECT_EQ(rows_found(kLines[0], [](const Case&) {}), 1u);
  EXPECT_EQ(rows_found(kLines[0], [](const Case& c) { copy_page(c.cache.v, page_of(c, 2, 1), page_of(c, 0, 2)); }), 0u);
}

/// Columns 2 and 3 of the row have the same weights: which of them met the other V, nobody can tell.
TEST(Pairs, SilentWhereWeightsRepeat) {
  EXPECT_EQ(rows_found(kLines[0], [](const Case& c) { copy_page(c.cache.k, page_of(c, 1, 2), page_of(c, 1, 3)); }), 0u);
}

/// One narrow head has fewer equations than four columns have pages in their place.
TEST(Pairs, SilentWhereKeysOutnumberEquations) {
  for (const std::string seed : {"1", "2", "3", "4", "5", "6", "7", "8"}) {
    SCOPED_TRACE(seed);
    EXPECT_EQ(rows_found("q=f32 heads=8 d=8 page=4 reqs=1@20,1@15,1@11 seed=" + seed, [](const Case&) {}), 1u);
    EXPECT_EQ(rows_found("q=f32 heads=1 d=8 page=4 reqs=1@20,1@15,1@11 seed=" + seed, [](const Case&) {}), 0u);
  }
}

/// A key that is read twice, or not at all, is no pair: the census has its own words for it.
TEST(Pairs, SilentOnCounts) {
  for (const std::string& line : kLines) {
    SCOPED_TRACE(line);
    Case c = right(line);
    Picks picks = right_picks(c, 1);
    std::erase_if(picks, [&](const Pick& p) { return p.page == page_of(c, 1, 3); });
    write_row(c, 1, picks);
    EXPECT_TRUE(pairs_of(c, kK).empty());
    EXPECT_TRUE(pairs_of(c, kV).empty());
  }
}

TEST(Pairs, SilentOnRightOutputsAndOnNoise) {
  for (const std::string& line : kLines) {
    SCOPED_TRACE(line);
    Case c = right(line);
    EXPECT_TRUE(pairs_of(c, kK).empty());
    std::mt19937_64 random(3);
    std::normal_distribution<double> normal(0, 0.3);
    for (std::int64_t i = 0; i < c.observed.num_elements(); ++i)
      semantics::store(c.observed.data, c.observed.dtype, i,
                       static_cast<float>(semantics::load(c.observed.data, c.observed.dtype, i) + normal(random)));
    EXPECT_TRUE(pairs_of(c, kK).empty());
    EXPECT_TRUE(pairs_of(c, kV).empty());
  }
}

/// Three pages of each request in another order, on one side, in each form of a problem.
TEST(Pairs, OfEveryForm) {
  for (const std::string form :
       {"chunk=64", "prefix=5", "spans=0:66-70,2:61-64", "tree=9,0,5,0", "window=60", "dv=16", "layout=nhd"})
    for (const bool of_value : {true, false}) {
      const std::string line = "q=f32 heads=8:2 d=32 page=16 " + form + " reqs=9@61,1@75,5@60,1@70 seed=12";
      SCOPED_TRACE(line + (of_value ? " V" : " K"));
      Case c = right(line);
      Equation e(c);
      (of_value ? e.value : e.key) = [&](const EquationRow& r, std::int64_t k, std::int64_t d) {
        const std::int64_t to[] = {0, 2, 3, 1}, j = k / e.page_size();
        return e.cached(of_value, e.page(r.request, j < 4 ? to[j] : j), k % e.page_size(), e.kv_head(r.head), d);
      };
      e.write();
      const Diagnosis d = diagnosed(c);
      EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
      EXPECT_EQ(d.suspicions.front().mechanism, "page");
    }
}

/// Every row of a batch reads one side by another rule.
using Rule = std::function<void(const Case&, std::int64_t request, Pick&)>;
Diagnosis with_rule(const std::string& line, Sides side, const Rule& rule) {
  Case c = right(line);
  for (std::int64_t token = 0; token < c.observed.shape[0]; ++token) {
    Picks moved = right_picks(c, token);
    for (Pick& p : moved) rule(c, request_of(c, token), p);
    plant(c, token, side, moved);
  }
  return diagnosed(c);
}

const char* const kMany = "q=bf16 heads=8:2 d=64 page=16 reqs=1@100,1@75,1@120,1@58,1@90";

TEST(Pairs, ARuleIsTheCause) {
  const auto three_exchanged = [](const Case& c, std::int64_t r, Pick& p) {
    const std::int64_t to[] = {1, 2, 0}, j = p.position / 16;
    if (j < 3) p.page = page_of(c, r, to[j]);
  };
  const auto permuted = [](const Case&, std::int64_t, Pick& p) {
    const std::int64_t order[] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
    p.offset = order[p.offset];
  };
  for (const Sides side : {kV, kK}) {
    const Diagnosis pages = with_rule(kMany, side, three_exchanged);
    EXPECT_EQ(pages.verdict, DiagnosisVerdict::cause_found) << to_string(pages);
    EXPECT_EQ(pages.suspicions.front().mechanism, "page");
    const Diagnosis slots = with_rule("q=f32 heads=8:2 d=64 page=16 reqs=1@111,1@79,1@127,1@63,1@95", side, permuted);
    EXPECT_EQ(slots.verdict, DiagnosisVerdict::cause_found) << to_string(slots);
    EXPECT_EQ(slots.suspicions.front().mechanism, "page");
  }
}

}  // namespace
}  // namespace quire::test
