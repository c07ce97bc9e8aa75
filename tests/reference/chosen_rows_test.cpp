// SPDX-License-Identifier: Apache-2.0
// The reference of chosen rows: the bits of the full reference, errors that name the index, and a cost that follows the rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "quire/tools/diagnose.hpp"
#include "reference/random_spec.h"

namespace quire::test {
namespace {

using Tokens = std::vector<std::int64_t>;

std::vector<double> slice(const std::vector<double>& all, std::int64_t row, std::int64_t width) {
  return {all.begin() + row * width, all.begin() + (row + 1) * width};
}

/// Row `i` of `some` has the bits of row `token` of `all`.
void expect_same_row(const Reference& some, std::int64_t i, const Reference& all, std::int64_t token) {
  const std::int64_t heads = all.num_q_heads, width = heads * all.v_head_dim;
  EXPECT_EQ(slice(some.out, i, width), slice(all.out, token, width));
  EXPECT_EQ(slice(some.abs_pv, i, width), slice(all.abs_pv, token, width));
  EXPECT_EQ(slice(some.abs_spv, i, width), slice(all.abs_spv, token, width));
  EXPECT_EQ(slice(some.lse, i, heads), slice(all.lse, token, heads));
  EXPECT_EQ(slice(some.score_mag, i, heads), slice(all.score_mag, token, heads));
  for (std::int64_t h = 0; h < heads; ++h)
    EXPECT_EQ(some.num_keys[static_cast<std::size_t>(i * heads + h)], all.num_keys[static_cast<std::size_t>(token * heads + h)]);
}

void expect_rows_of_full(const SmallCase& c, const Tokens& tokens) {
  const Result<Reference> all = reference(c.batch, c.cache, c.options);
  const Result<Reference> some = reference(c.batch, c.cache, c.options, tokens);
  ASSERT_TRUE(all.ok() && some.ok()) << all.status().message() << some.status().message();
  ASSERT_EQ(some->num_tokens, static_cast<std::int64_t>(tokens.size()));
  ASSERT_EQ(some->num_q_heads, all->num_q_heads);
  ASSERT_EQ(some->head_dim, all->head_dim);
  ASSERT_EQ(some->out.size(), tokens.size() * static_cast<std::size_t>(all->num_q_heads * all->v_head_dim));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    expect_same_row(some.value(), static_cast<std::int64_t>(i), all.value(), tokens[i]);
}

TEST(ChosenRows, HaveTheBitsOfTheFullReferenceInAnyOrderAndRepeated) {
  for (std::uint64_t seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    const SmallSpec spec = random_spec(seed);
    SCOPED_TRACE(to_string(spec.problem) + " small-case seed " + std::to_string(seed));
    const SmallCase c(spec);
    const auto num_tokens = static_cast<std::uint64_t>(spec.problem.num_tokens());
    std::mt19937_64 random(seed + 1000);
    Tokens tokens;
    for (std::uint64_t i = num_tokens == 0 ? 0 : random() % 8; i > 0; --i)
      tokens.push_back(static_cast<std::int64_t>(random() % num_tokens));
    expect_rows_of_full(c, tokens);
  }
}

SmallSpec long_request() {
  SmallSpec spec;
  spec.problem.q_dtype = DType::f32;
  spec.problem.kv_dtype = DType::bf16;
  spec.problem.num_q_heads = 4;
  spec.problem.num_kv_heads = 2;
  spec.problem.head_dim = 20;
  spec.problem.reqs = {{3, 9, 12}, {700, 77, 200}, {1, 400, 401}};
  return spec;
}

TEST(ChosenRows, HaveTheBitsOfTheFullReferenceAcrossTaskBorders) {
  Tokens most;
  for (std::int64_t token = 703; token >= 0; token -= 2) most.push_back(token);
  expect_rows_of_full(SmallCase(long_request()), most);
}

// Windows of 30 around rows 100 apart: each is decoded on its own, and nothing in between.
TEST(ChosenRows, HaveTheBitsOfTheFullReferenceWithGapsBetweenTheirWindows) {
  SmallSpec spec = long_request();
  spec.problem.sliding_window = 30;
  expect_rows_of_full(SmallCase(spec), {600, 3, 100, 200, 129, 130, 131, 702, 703});
}

TEST(ChosenRows, NoneGiveAnEmptyResult) {
  const SmallCase c(long_request());
  const Result<Reference> none = reference(c.batch, c.cache, c.options, Tokens{});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->num_tokens, 0);
  EXPECT_EQ(none->num_q_heads, 4);
  EXPECT_EQ(none->head_dim, 20);
  EXPECT_TRUE(none->out.empty() && none->lse.empty() && none->num_keys.empty());
}

TEST(ChosenRows, OutsideTheBatchAreNamed) {
  const SmallCase c(long_request());
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{704}, std::numeric_limits<std::int64_t>::max()}) {
    const Result<Reference> refused = reference(c.batch, c.cache, c.options, Tokens{5, bad, 6});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::invalid_argument);
    EXPECT_EQ(refused.status().message(),
              "reference: tokens[1] is " + std::to_string(bad) + ", expected 0 to num_tokens - 1 = 703");
  }
}

TEST(ChosenRows, OfABrokenBatchGiveItsFinding) {
  const SmallCase c(long_request());
  set_index(c.batch.query_start_loc, {0}, 1);
  const Result<Reference> refused = reference(c.batch, c.cache, c.options, Tokens{0});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("Q-T01"));
}

/// Floats that end where readable memory ends: reading one more is fatal.
class AtTheEdge {
 public:
  explicit AtTheEdge(std::size_t count) : count_(count), page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    base_ = mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(static_cast<std::byte*>(base_) + page_, page_, PROT_NONE);
  }
  AtTheEdge(const AtTheEdge&) = delete;
  AtTheEdge& operator=(const AtTheEdge&) = delete;
  ~AtTheEdge() { munmap(base_, 2 * page_); }
  float* data() const { return static_cast<float*>(base_) + page_ / sizeof(float) - count_; }

 private:
  std::size_t count_, page_;
  void* base_ = nullptr;
};

// Keys 13 to 21 are visible. Those behind lie in no readable memory; those before are not decoded either, but may be near.
TEST(ChosenRows, ReadNothingBehindTheLastOfThem) {
  SmallSpec spec;
  spec.problem.q_dtype = spec.problem.kv_dtype = DType::f32;
  spec.problem.head_dim = 4;
  spec.problem.page_size = 4;
  spec.problem.sliding_window = 8;
  spec.problem.reqs = {{40, 0, 0}};
  SmallCase c(spec);
  const Result<Reference> expected = reference(c.batch, c.cache, c.options, Tokens{20, 21});
  const std::size_t visible = 22 * 4;
  const AtTheEdge edge(visible);
  std::memcpy(edge.data(), c.batch.key.data, visible * sizeof(float));
  c.batch.key.data = edge.data();
  const Result<Reference> cut = reference(c.batch, c.cache, c.options, Tokens{20, 21});
  ASSERT_TRUE(expected.ok() && cut.ok());
  EXPECT_EQ(cut->out, expected->out);
}

}  // namespace
}  // namespace quire::test
