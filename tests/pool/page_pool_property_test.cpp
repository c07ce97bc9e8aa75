// SPDX-License-Identifier: Apache-2.0
// PagePool under random operations, against a simulated cache: each slot remembers the exact token prefix that was written to
// it, so reading a request back through its block table shows at once if a page was given to the wrong request.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "quire/page_pool.hpp"

namespace quire {
namespace {

using Tokens = std::vector<std::int32_t>;

class Model {
 public:
  Model(unsigned seed, std::int64_t num_pages, std::int64_t page_size, bool sharing)
      : rng_(seed),
        page_size_(page_size),
        cache_(static_cast<std::size_t>(num_pages * page_size)),
        pool_(std::move(PagePool::create({num_pages, page_size, sharing, {}})).value()) {}

  void step() {
    const int op = pick(0, 9);
    if (op <= 1) {
      add();
    } else if (live_.empty()) {
      return;
    } else {
      auto it = std::next(live_.begin(), pick(0, static_cast<int>(live_.size()) - 1));
      if (op <= 6) advance(it->first, it->second);
      if (op == 7) finish(it->first);
      if (op == 8) preempt(it->first, it->second);
      if (op == 9) resume(it->first, it->second);
    }
    check_invariants();
  }
  const PagePool& pool() const { return pool_; }

 private:
  struct Request {
    Tokens tokens;
    std::int64_t computed = 0;
    bool preempted = false;
  };

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }

  // Two token values and a few lengths: prefixes collide all the time.
  void add() {
    Tokens tokens(static_cast<std::size_t>(pick(1, static_cast<int>(4 * page_size_))));
    for (auto& t : tokens) t = pick(0, 9) == 0 ? 1 : 0;
    const std::int64_t id = next_id_++;
    const auto hit = pool_.add(id, tokens);
    ASSERT_TRUE(hit.ok()) << hit.status().message();
    ASSERT_LT(hit.value(), static_cast<std::int64_t>(tokens.size()));
    live_[id] = {tokens, hit.value(), false};
    read_back(id, live_[id]);
  }

  // One step of an engine: room for a chunk (or one generated token), write it, commit.
  void advance(std::int64_t id, Request& r) {
    if (r.preempted) return;
    if (r.computed == static_cast<std::int64_t>(r.tokens.size())) {
      r.tokens.push_back(pick(0, 1));
      ASSERT_TRUE(pool_.push_token(id, r.tokens.back()).ok());
    }
    const std::int64_t left = static_cast<std::int64_t>(r.tokens.size()) - r.computed;
    const std::int64_t target = r.computed + pick(1, static_cast<int>(left));
    const auto before = snapshot();
    const Status status = pool_.reserve(id, target);
    if (!status.ok()) {
      ASSERT_EQ(status.code(), Code::out_of_pages) << status.message();
      ASSERT_EQ(snapshot(), before) << "out_of_pages changed something";
      return;
    }
    for (std::int64_t p = r.computed; p < target; ++p) write(id, r, p);
    ASSERT_TRUE(pool_.commit(id, target).ok());
    r.computed = target;
    read_back(id, r);
  }

  void write(std::int64_t id, const Request& r, std::int64_t p) {
    ASSERT_TRUE(pool_.slot(id, p).ok());
    const std::int64_t slot = pool_.slot(id, p).value();
    for (const auto& [other, state] : live_) {
      if (other == id) continue;
      const auto pages = pool_.block_table(other).value();
      for (const auto page : pages) ASSERT_NE(page, slot / page_size_) << "a page with two writers";
    }
    cache_[static_cast<std::size_t>(slot)].assign(r.tokens.begin(), r.tokens.begin() + p + 1);
  }

  void read_back(std::int64_t id, const Request& r) {
    for (std::int64_t p = 0; p < r.computed; ++p) {
      ASSERT_TRUE(pool_.slot(id, p).ok());
      const std::int64_t slot = pool_.slot(id, p).value();
      const Tokens expected(r.tokens.begin(), r.tokens.begin() + p + 1);
      ASSERT_EQ(cache_[static_cast<std::size_t>(slot)], expected) << "request " << id << " position " << p;
    }
  }

  void finish(std::int64_t id) {
    ASSERT_TRUE(pool_.release(id).ok());
    live_.erase(id);
  }
  void preempt(std::int64_t id, Request& r) {
    if (r.preempted) return;
    ASSERT_TRUE(pool_.preempt(id).ok());
    r.preempted = true;
    r.computed = 0;
  }
  void resume(std::int64_t id, Request& r) {
    if (!r.preempted) return;
    const auto hit = pool_.resume(id);
    ASSERT_TRUE(hit.ok());
    r.preempted = false;
    r.computed = hit.value();
    read_back(id, r);
  }

  std::vector<Tokens> snapshot() const {
    std::vector<Tokens> tables;
    for (const auto& [id, r] : live_) {
      const auto table = pool_.block_table(id).value();
      tables.emplace_back(table.begin(), table.end());
    }
    const auto s = pool_.stats();
    tables.push_back({static_cast<std::int32_t>(s.pages_in_use), static_cast<std::int32_t>(s.evictions)});
    return tables;
  }

  void check_invariants() {
    std::map<std::int32_t, int> holders;
    std::optional<std::int64_t> last;
    for (const auto& [id, r] : live_) {
      const auto table = pool_.block_table(id).value();
      const std::set<std::int32_t> distinct(table.begin(), table.end());
      ASSERT_EQ(distinct.size(), table.size()) << "one request holds a page twice";
      for (const auto page : table) {
        ASSERT_GE(page, 0);
        ASSERT_LT(page, pool_.stats().num_pages);
        ++holders[page];
      }
      if (!table.empty()) last = id;  // ids grow with arrival
    }
    std::int64_t shared = 0;
    for (const auto& [page, count] : holders) shared += count > 1 ? 1 : 0;
    ASSERT_EQ(pool_.stats().pages_in_use, static_cast<std::int64_t>(holders.size()));
    ASSERT_EQ(pool_.stats().pages_shared, shared);
    ASSERT_EQ(pool_.victim(), last);
  }

  std::mt19937 rng_;
  std::int64_t page_size_;
  std::vector<Tokens> cache_;
  PagePool pool_;
  std::map<std::int64_t, Request> live_;
  std::int64_t next_id_ = 0;
};

class PagePoolProperty : public testing::TestWithParam<std::int64_t> {};

TEST_P(PagePoolProperty, RandomOperationsNeverMixRequests) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " page_size " << GetParam());
    Model model(seed, /*num_pages=*/24, GetParam(), /*sharing=*/seed % 3 != 2);
    for (int i = 0; i < 1500; ++i) {
      model.step();
      if (testing::Test::HasFatalFailure()) FAIL() << "at operation " << i;
    }
    if (seed % 3 != 2) {
      EXPECT_GT(model.pool().stats().prefix_hit_tokens, 0) << "the run never shared a page: it proves nothing";
      EXPECT_GT(model.pool().stats().evictions, 0) << "the run never reused a page";
    } else {
      EXPECT_EQ(model.pool().stats().prefix_hit_tokens, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, PagePoolProperty, testing::Values(1, 2, 3, 8), testing::PrintToStringParamName());

}  // namespace
}  // namespace quire
