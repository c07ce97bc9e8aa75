// SPDX-License-Identifier: Apache-2.0
// reduce_case() of batches whose tables hold anything where nobody reads: the reduced capture holds pages of this cache and no
// other bytes, and is quick whatever a length claims.
#include <gmock/gmock.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "../../fuzz/reduce_law.h"
#include "diagnose/diagnose_util.h"

namespace quire::test {
namespace {

std::string page_bytes(const Tensor& t, std::int64_t page) {
  const auto size = static_cast<std::size_t>(t.num_elements() / t.shape[0] * itemsize(t.dtype));
  return {static_cast<const char*>(t.data) + static_cast<std::size_t>(page) * size, size};
}

/// Every page of `part` is one of `whole`.
void expect_own_pages(const Tensor& part, const Tensor& whole) {
  std::set<std::string> known;
  for (std::int64_t page = 0; page < whole.shape[0]; ++page) known.insert(page_bytes(whole, page));
  for (std::int64_t page = 0; page < part.shape[0]; ++page)
    EXPECT_TRUE(known.contains(page_bytes(part, page))) << "page " << page << " comes from elsewhere";
}

void put(const Tensor& t, std::int64_t at, std::int64_t value) { static_cast<std::int64_t*>(t.data)[at] = value; }

/// Freed pages left of the window, as an engine leaves them.
Case with_freed_pages(const std::string& fault, std::int64_t entry) {
  Case c = with_fault("q=f32 heads=4:2 d=16 page=4 index=i64 window=16 reqs=3@70,1@90,0@5,2@40 seed=9", fault);
  const std::int64_t width = c.batch.block_table.shape[1];
  const std::int64_t first_read[] = {(70 - 15) / 4, (90 - 15) / 4, width, (40 - 15) / 4};
  for (std::int64_t r = 0; r < 4; ++r)
    for (std::int64_t j = 0; j < first_read[r]; ++j) put(c.batch.block_table, r * width + j, entry);
  return c;
}

class FreedPages : public testing::TestWithParam<std::int64_t> {};

TEST_P(FreedPages, AreNotGathered) {
  for (const char* fault : {"kv_head_modulo", "window_ignored"}) {
    const Case c = with_freed_pages(fault, GetParam());
    ASSERT_TRUE(check(c.batch, c.cache, c.options, Depth::contents).ok());
    const Diagnosis d = diagnosed(c);
    const Result<Case> reduced = reduce_case(c, d);
    ASSERT_TRUE(reduced.ok()) << reduced.status().message();
    const Findings findings = check(reduced->batch, reduced->cache, reduced->options, Depth::contents);
    EXPECT_TRUE(findings.ok()) << findings.status().message();
    expect_own_pages(reduced->cache.k, c.cache.k);
    expect_own_pages(reduced->cache.v, c.cache.v);
    EXPECT_EQ(diagnosed(reduced.value()).verdict, d.verdict) << fault;
  }
}

INSTANTIATE_TEST_SUITE_P(ReduceCase, FreedPages,
                         testing::Values(-1, 100, 100000, std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max()));

/// A fault that reads left of the window shows only with the pages that lie there.
TEST(ReduceCase, KeepsPagesLeftOfTheWindow) {
  const Case c = with_fault("q=f32 heads=4:2 d=16 page=4 window=16 reqs=3@70,1@90,2@40 seed=9", "window_ignored");
  const Diagnosis d = diagnosed(c);
  // The pages hold NaN, which other faults would give, too.
  ASSERT_EQ(d.verdict, DiagnosisVerdict::unknown_cause) << to_string(d);
  const Result<Case> reduced = reduce_case(c, d);
  ASSERT_TRUE(reduced.ok()) << reduced.status().message();
  EXPECT_EQ(diagnosed(reduced.value()).suspicions[0].fault, d.suspicions[0].fault);
}

/// The search for the cause of the part takes longer than its comparison with the reference may.
TEST(ReduceCase, KeepsThreeWrongRequestsHoweverLongTheSearchTakes) {
  const Case c = with_fault("q=f32 heads=8:2 d=64 page=16 reqs=3@700,2@900,2@500,2@800,1@600,4@500 seed=3", "kv_head_modulo");
  const Diagnosis found = diagnosed(c, {.full = true}), ended = diagnosed(c, {.seconds = 0.01});
  ASSERT_EQ(found.verdict, DiagnosisVerdict::cause_found) << to_string(found);
  ASSERT_GT(ended.stopped_after, 0) << to_string(ended);
  for (const Diagnosis& d : {found, ended}) {
    const Result<Case> reduced = reduce_case(c, d);
    ASSERT_TRUE(reduced.ok()) << reduced.status().message();
    EXPECT_EQ(reduced->batch.seq_lens.shape[0], 3) << to_string(d);
  }
}

/// A request without rows may claim any length.
TEST(ReduceCase, TakesNoLengthAtItsWord) {
  Case c = right("q=f32 heads=4:2 d=16 page=1 index=i64 reqs=3@70,0@5,2@40,1@90 seed=9");
  put(c.batch.seq_lens, 1, std::numeric_limits<std::int32_t>::max());
  f32_at(c.observed, 5, 0, 0) = std::nanf("");
  ASSERT_TRUE(check(c.batch, c.cache, c.options, Depth::contents).ok());
  Diagnosis d = diagnosed(c);
  d.wrong_tokens = {0};  // token 0 alone shows nothing wrong, so the whole batch is kept
  const auto begin = std::chrono::steady_clock::now();
  const Result<Case> reduced = reduce_case(c, d);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(reduced.ok()) << reduced.status().message();
  EXPECT_EQ(reduced->batch.query.shape[0], 6);
  EXPECT_LE(num_pages(reduced->cache), num_pages(c.cache));
  EXPECT_LT(seconds.count(), 20.0);
}

/// The law that the fuzzer checks, on seeded random bytes.
TEST(ReduceCase, KeepsTheLawOfSloppyBatches) {
  std::int64_t reduced = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::uint8_t> data(160);
    for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(random());
    ASSERT_EQ(fuzz::broken_reduce_law(data, reduced), "") << "seed " << seed;
  }
  EXPECT_GT(reduced, 40);
}

}  // namespace
}  // namespace quire::test
