// SPDX-License-Identifier: Apache-2.0
// attend_sharded() on threads: equal to fp64, the same bits on every rank and for every exchange, and no rank left waiting.
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "distributed/ranks.h"
#include "quire/capture.hpp"
#include "quire/diagnose.hpp"
#include "quire/distributed.hpp"
#include "quire/interrupt.hpp"

namespace quire::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

/// Outputs (all heads) and lse of every rank.
struct Outputs {
  std::vector<std::vector<std::byte>> out;
  std::vector<std::vector<float>> lse;
};

Outputs run(const Case& c, std::int32_t world, std::int64_t run_length, bool contiguous, ShardedSettings settings) {
  Outputs made;
  const Tensor& q = c.batch.query;
  made.out.assign(static_cast<std::size_t>(world),
                  std::vector<std::byte>(static_cast<std::size_t>(q.num_elements() * itemsize(q.dtype))));
  made.lse.assign(static_cast<std::size_t>(world), std::vector<float>(static_cast<std::size_t>(q.shape[0] * q.shape[1])));
  auto group = local_group(world, milliseconds(60000));
  InlineExecutor inline_executor;
  settings.executor = &inline_executor;
  const auto statuses = on_threads(world, [&](std::int32_t k) {
    const auto i = static_cast<std::size_t>(k);
    const ContextShard shard = shard_of(k, world, run_length, contiguous);
    const RankCache mine(c, shard, 8);
    Batch batch = c.batch;
    batch.block_table = mine.block_table;
    const std::int64_t heads = settings.own_heads ? q.shape[1] / world : q.shape[1];
    batch.output = Tensor::contiguous(made.out[i].data(), q.dtype, q.shape[0], heads, q.shape[2]);
    batch.lse = Tensor::contiguous(made.lse[i].data(), DType::f32, q.shape[0], heads);
    batch.cached_lens = batch.key = batch.value = batch.slot_mapping = Tensor{};
    return attend_sharded(*group.value()[i], shard, batch, mine.cache, c.options, settings);
  });
  for (const Status& s : statuses) EXPECT_TRUE(s.ok()) << s.message();
  return made;
}

std::string judged(const Case& c, Outputs& made) {
  Batch batch = c.batch;
  const Result<Reference> expected = reference(batch, c.cache, c.options);
  if (!expected.ok()) return expected.status().message();
  const Tensor& q = batch.query;
  const Comparison compared =
      compare(Tensor::contiguous(made.out[0].data(), q.dtype, q.shape[0], q.shape[1], q.shape[2]),
              Tensor::contiguous(made.lse[0].data(), DType::f32, q.shape[0], q.shape[1]), expected.value());
  if (!compared.ok) return compared.text;
  for (std::size_t k = 1; k < made.out.size(); ++k)
    if (made.out[k] != made.out[0] || made.lse[k] != made.lse[0])
      return "rank " + std::to_string(k) + " has other bits than rank 0";
  return {};
}

constexpr const char* kReqs = "page=8 reqs=1@0,7@30,20@0,1@61,3@2 seed=3";

TEST(AttendSharded, EqualsFp64WithTheSameBitsOnEveryRank) {
  for (const std::string options : {"", " window=9", " cap=5", " sinks=1", " window=3 sinks=1 cap=4", " window=2147483647"})
    for (const bool contiguous : {false, true})
      for (const auto& [world, length] : {std::pair{1, 4}, {2, 1}, {3, 8}, {4, 24}}) {
        Case c = case_of("q=bf16 heads=4:2 d=32 " + std::string(kReqs) + options);
        // A problem line has windows of 31 bits, a call has longer ones.
        if (c.options.sliding_window == 2147483647) c.options.sliding_window = std::int64_t{1} << 40;
        Outputs made = run(c, world, contiguous ? 20 : length, contiguous, {});
        ASSERT_EQ(judged(c, made), "") << options << (contiguous ? " contiguous " : " interleaved ") << world;
      }
}

TEST(AttendSharded, EveryExchangeGivesTheSameBits) {
  const Case c = case_of("q=f32 heads=4:2 d=32 " + std::string(kReqs));
  for (const std::int32_t world : {2, 4}) {
    Outputs gathered = run(c, world, 2, false, {});
    ASSERT_EQ(judged(c, gathered), "");
    const Outputs swapped = run(c, world, 2, false, {.swap_heads = true});
    for (std::size_t k = 0; k < swapped.out.size(); ++k) {
      EXPECT_EQ(swapped.out[k], gathered.out[0]);
      EXPECT_EQ(swapped.lse[k], gathered.lse[0]);
    }
    const Outputs own = run(c, world, 2, false, {.own_heads = true, .swap_heads = true});
    const Outputs own_gathered = run(c, world, 2, false, {.own_heads = true});
    const std::int64_t share = 4 / world, row = 32 * 4;
    for (std::int64_t k = 0; k < world; ++k) {
      const auto i = static_cast<std::size_t>(k);
      EXPECT_EQ(own.out[i], own_gathered.out[i]);
      for (std::int64_t t = 0; t < c.batch.query.shape[0]; ++t)
        ASSERT_EQ(std::memcmp(&own.out[i][static_cast<std::size_t>(t * share * row)],
                              &gathered.out[0][static_cast<std::size_t>((t * 4 + k * share) * row)],
                              static_cast<std::size_t>(share * row)),
                  0);
    }
  }
}

/// Statuses of two ranks that differ in what `change` does on rank 1.
template <class Change>
std::vector<Status> with_a_change(Change&& change, std::int64_t other_page = 8) {
  const Case c = case_of("q=f16 heads=4:2 d=32 page=8 reqs=1@20,2@9");
  auto group = local_group(2, milliseconds(60000));
  InlineExecutor inline_executor;
  return on_threads(2, [&](std::int32_t k) {
    ContextShard shard{.rank = k, .world = 2};
    const RankCache mine(c, shard, k == 1 ? other_page : 8);
    Batch batch = c.batch;
    batch.block_table = mine.block_table;
    batch.cached_lens = batch.key = batch.value = batch.slot_mapping = Tensor{};
    std::vector<std::byte> out(static_cast<std::size_t>(batch.query.num_elements() * 2));
    batch.output = Tensor::contiguous(out.data(), DType::f16, batch.query.shape[0], 4, 32);
    Options options = c.options;
    ShardedSettings settings{.executor = &inline_executor};
    if (k == 1) change(shard, batch, options, settings);
    return attend_sharded(*group.value()[static_cast<std::size_t>(k)], shard, batch, mine.cache, options, settings);
  });
}

TEST(AttendSharded, RanksThatDisagreeAllSaySo) {
  const auto nothing = [](auto&&...) {};
  for (const Status& s : with_a_change(nothing)) EXPECT_TRUE(s.ok()) << s.message();
  for (const Status& s : with_a_change(nothing, 16))
    EXPECT_EQ(s.message(), "Q-D05 page_size: 16 on rank 1, expected 8 as on rank 0");
  for (const Status& s : with_a_change([](auto&, auto&, Options& o, auto&) { o.sliding_window = 4; }))
    EXPECT_EQ(s.message(), "Q-D05 sliding_window: 4 on rank 1, expected -1 as on rank 0");
  for (const Status& s : with_a_change([](ContextShard& shard, auto&, auto&, auto&) { shard.interleave = 2; }))
    EXPECT_EQ(s.message(), "Q-D05 interleave: 2 on rank 1, expected 1 as on rank 0");
}

TEST(AttendSharded, ARankThatIsRefusedMakesTheOthersFailAndNamesItself) {
  const auto statuses = with_a_change([](auto&, Batch& b, auto&, auto&) { b.block_table = Tensor{}; });
  EXPECT_EQ(statuses[1].rule(), "Q-M01");
  EXPECT_EQ(statuses[0].code(), Code::rank_failed);
  EXPECT_THAT(statuses[0].message(), HasSubstr("rank 1 failed: Q-M01 block_table"));
  static std::int32_t bad_table[32];
  std::fill(std::begin(bad_table), std::end(bad_table), 1000000);
  const auto late = with_a_change([](auto&, Batch& b, auto&, auto&) { b.block_table.data = bad_table; });
  EXPECT_EQ(late[1].rule(), "Q-T03");
  EXPECT_THAT(late[0].message(), HasSubstr("rank 1 failed: Q-T03 block_table"));
}

TEST(AttendSharded, ARankWhoseCallIsEndedLeavesNobodyWaiting) {
  const Case c = case_of("q=f16 heads=4:2 d=32 page=8 reqs=1@20,2@9");
  auto group = local_group(2, milliseconds(60000));
  InlineExecutor inline_executor;
  bool interrupted = false;
  const auto statuses = on_threads(2, [&](std::int32_t k) -> Status {
    const ContextShard shard{.rank = k, .world = 2};
    const RankCache mine(c, shard, 8);
    Batch batch = c.batch;
    batch.block_table = mine.block_table;
    batch.cached_lens = batch.key = batch.value = batch.slot_mapping = Tensor{};
    std::vector<std::byte> out(static_cast<std::size_t>(batch.query.num_elements() * 2));
    batch.output = Tensor::contiguous(out.data(), DType::f16, batch.query.shape[0], 4, 32);
    const InterruptScope scope([](void* rank) { return *static_cast<std::int32_t*>(rank) == 1; }, &k);
    std::this_thread::sleep_for(milliseconds(50));  // the first question comes after 20 ms
    try {
      return attend_sharded(*group.value()[static_cast<std::size_t>(k)], shard, batch, mine.cache, c.options,
                            {.executor = &inline_executor});
    } catch (const Interrupted&) {
      interrupted = true;
      return {};
    }
  });
  EXPECT_TRUE(interrupted);
  EXPECT_EQ(statuses[0].code(), Code::rank_failed);
  EXPECT_THAT(statuses[0].message(), HasSubstr("rank 1 failed: interrupted"));
}

}  // namespace
}  // namespace quire::test
