// SPDX-License-Identifier: Apache-2.0
// attend_sharded() on threads: equal to fp64, the same bits on every rank and for every exchange, and no rank left waiting.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "quire/capture.hpp"
#include "quire/diagnose.hpp"
#include "quire/distributed.hpp"
#include "semantics/dtype.h"

namespace quire::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

/// Every rank is a thread already.
class InlineExecutor final : public Executor {
 public:
  int num_threads() const noexcept override { return 1; }
  void run(std::int64_t count, void (*task)(void*, std::int64_t, int), void* context) override {
    for (std::int64_t i = 0; i < count; ++i) task(context, i, 0);
  }
};

/// A case's keys as one rank holds them, in pages of its own, with NaN where it holds none.
struct RankCache {
  RankCache(const Case& c, const ContextShard& shard, std::int64_t page) : page_size(page) {
    const Tensor& k = c.cache.k;  // nhd
    const std::int64_t heads = k.shape[2], dim = k.shape[3], reqs = c.batch.seq_lens.shape[0];
    std::int64_t pages = 1;
    for (std::int64_t r = 0; r < reqs; ++r) pages = std::max(pages, shard.local_length(length(c, r)) / page + 1);
    memory.assign(static_cast<std::size_t>(2 * reqs * pages * page * heads * dim * itemsize(k.dtype)), std::byte{0xFF});
    cache.k = Tensor::contiguous(memory.data(), k.dtype, reqs * pages, page, heads, dim);
    cache.v = Tensor::contiguous(memory.data() + memory.size() / 2, k.dtype, reqs * pages, page, heads, dim);
    cache.k_scale = c.cache.k_scale;
    cache.v_scale = c.cache.v_scale;
    for (std::int64_t r = 0; r < reqs; ++r)
      for (std::int64_t j = 0; j < pages; ++j) table.push_back(static_cast<std::int32_t>(reqs * pages - 1 - (r * pages + j)));
    for (std::int64_t r = 0; r < reqs; ++r)
      for (std::int64_t p = 0; p < length(c, r); ++p) {
        if (!shard.holds(p)) continue;
        const std::int64_t j = shard.local_index(p);
        const std::int64_t slot = table[static_cast<std::size_t>(r * pages + j / page)] * page + j % page;
        const std::int64_t from_page = static_cast<const std::int32_t*>(
            c.batch.block_table.data)[r * c.batch.block_table.stride[0] + p / k.shape[1] * c.batch.block_table.stride[1]];
        copy_row(cache.k, slot, c.cache.k, from_page, p % k.shape[1]);
        copy_row(cache.v, slot, c.cache.v, from_page, p % k.shape[1]);
      }
    block_table = Tensor::contiguous(table.data(), DType::i32, reqs, pages);
  }

  static std::int64_t length(const Case& c, std::int64_t r) { return static_cast<const std::int32_t*>(c.batch.seq_lens.data)[r]; }
  void copy_row(const Tensor& to, std::int64_t slot, const Tensor& from, std::int64_t page, std::int64_t offset) const {
    for (std::int64_t h = 0; h < to.shape[2]; ++h)
      for (std::int64_t d = 0; d < to.shape[3]; ++d)
        semantics::store(
            to.data, to.dtype, (slot * to.shape[2] + h) * to.shape[3] + d,
            semantics::load(from.data, from.dtype,
                            page * from.stride[0] + offset * from.stride[1] + h * from.stride[2] + d * from.stride[3]));
  }

  std::int64_t page_size;
  std::vector<std::byte> memory;
  std::vector<std::int32_t> table;
  KVCache cache;
  Tensor block_table;
};

Case case_of(const std::string& line) {
  Result<ProblemLine> parsed = parse_problem_line(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  Result<Case> made = make_case(parsed.value());
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

/// body(rank) on a thread for each rank; the statuses by rank.
template <class Body>
std::vector<Status> on_threads(std::int32_t world, Body&& body) {
  std::vector<Status> statuses(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (std::int32_t k = 0; k < world; ++k) threads.emplace_back([&, k] { statuses[static_cast<std::size_t>(k)] = body(k); });
  for (std::thread& t : threads) t.join();
  return statuses;
}

ContextShard shard_of(std::int32_t rank, std::int32_t world, std::int64_t run, bool contiguous) {
  if (contiguous) return {.rank = rank, .world = world, .span = run};
  return {.rank = rank, .world = world, .interleave = run};
}

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
  for (const std::string options : {"", " window=9", " cap=5", " sinks=1", " window=3 sinks=1 cap=4"})
    for (const bool contiguous : {false, true})
      for (const auto& [world, length] : {std::pair{1, 4}, {2, 1}, {3, 8}, {4, 24}}) {
        const Case c = case_of("q=bf16 heads=4:2 d=32 " + std::string(kReqs) + options);
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

}  // namespace
}  // namespace quire::test
