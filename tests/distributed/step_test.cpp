// SPDX-License-Identifier: Apache-2.0
// ShardedStep and nccl_exchange(): a step serves several layers, every exchange gives right rows, and refusals name what is
// wrong. NCCL is a stand-in (fake_nccl.cpp) on host memory; bench/gpu/sharded_cuda.cu runs the real one.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "distributed/ranks.h"
#include "quire/diagnose.hpp"
#include "quire/workspace.hpp"

namespace quire::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

std::vector<std::int64_t> host_values(const Tensor& t) {
  const auto* data = static_cast<const std::int32_t*>(t.data);
  return {data, data + t.shape[0]};
}

/// Rows of two layers, by rank. The second layer has the negated query.
struct Layers {
  std::vector<std::vector<std::byte>> out[2];
  std::vector<std::vector<float>> lse[2];
};

void negate(std::vector<std::byte>& bits, DType dtype) {
  const auto step = static_cast<std::size_t>(itemsize(dtype));
  for (std::size_t i = step - 1; i < bits.size(); i += step) bits[i] ^= std::byte{0x80};
}

/// One layer of a step on this rank. `query` holds its rows.
Status run_layer(const ShardedStep& step, Exchange& exchange, Batch batch, const RankCache& mine, const Case& c,
                 std::vector<std::byte>& query, std::vector<std::byte>& out, std::vector<float>& lse) {
  Workspace workspace;
  const std::int64_t heads = batch.output.shape[1];
  const Tensor& q = c.batch.query;
  batch.query = Tensor::contiguous(query.data(), q.dtype, q.shape[0], q.shape[1], q.shape[2]);
  const DType out_dtype = c.batch.output.dtype;
  out.assign(static_cast<std::size_t>(q.shape[0] * heads * q.shape[2] * itemsize(out_dtype)), std::byte{0xFF});
  lse.assign(static_cast<std::size_t>(q.shape[0] * heads), 0);
  batch.output = Tensor::contiguous(out.data(), out_dtype, q.shape[0], heads, q.shape[2]);
  batch.lse = Tensor::contiguous(lse.data(), DType::f32, q.shape[0], heads);
  return step.run(exchange, batch, mine.cache, c.options, workspace.at_least(step.workspace_bytes()));
}

Layers run_step(const Case& c, std::int32_t world, ShardedSettings settings) {
  Layers made;
  for (auto& out : made.out) out.resize(static_cast<std::size_t>(world));
  for (auto& lse : made.lse) lse.resize(static_cast<std::size_t>(world));
  setenv("QUIRE_NCCL_LIBRARY", QUIRE_FAKE_NCCL_LIBRARY, 1);
  auto group = local_group(world, milliseconds(60000));
  InlineExecutor inline_executor;
  settings.executor = &inline_executor;
  const std::vector<std::int64_t> starts = host_values(c.batch.query_start_loc), keys = host_values(c.batch.seq_lens);
  const auto statuses = on_threads(world, [&](std::int32_t k) -> Status {
    const auto i = static_cast<std::size_t>(k);
    Communicator& ranks = *group.value()[i];
    const ContextShard shard{.rank = k, .world = world, .interleave = 8};
    const RankCache mine(c, shard, 8);
    Batch batch = c.batch;
    batch.block_table = mine.block_table;
    batch.cached_lens = batch.key = batch.value = batch.slot_mapping = batch.lse = Tensor{};
    std::vector<std::byte> first(static_cast<std::size_t>(batch.query.num_elements() * itemsize(batch.query.dtype)));
    std::memcpy(first.data(), batch.query.data, first.size());
    std::vector<std::byte> place(2 * first.size());
    const std::int64_t heads = settings.own_heads ? batch.query.shape[1] / world : batch.query.shape[1];
    batch.output = Tensor::contiguous(place.data(), c.batch.output.dtype, batch.query.shape[0], heads, batch.query.shape[2]);
    const HostLengths lengths{starts, keys};
    const Result<std::size_t> bytes = ShardedStep::memory_bytes(shard, batch, mine.cache, c.options, lengths, settings);
    if (!bytes.ok()) return bytes.status();
    Workspace memory(bytes.value());
    const auto step =
        ShardedStep::make(ranks, shard, batch, mine.cache, c.options, lengths, memory.at_least(bytes.value()), settings);
    if (!step.ok()) return step.status();
    Result<std::unique_ptr<Exchange>> nccl = nccl_exchange(ranks);
    if (!nccl.ok()) return nccl.status();
    if (Status s = run_layer(step.value(), *nccl.value(), batch, mine, c, first, made.out[0][i], made.lse[0][i]); !s.ok())
      return s;
    negate(first, batch.query.dtype);
    return run_layer(step.value(), *nccl.value(), batch, mine, c, first, made.out[1][i], made.lse[1][i]);
  });
  for (const Status& s : statuses) EXPECT_TRUE(s.ok()) << s.message();
  return made;
}

/// "" if the rows of a layer equal fp64 on rank 0, and every rank has its bits.
std::string judged(const Case& c, const Layers& made, int layer) {
  const Tensor& q = c.batch.query;
  Batch batch = c.batch;
  std::vector<std::byte> query(static_cast<std::size_t>(q.num_elements() * itemsize(q.dtype)));
  std::memcpy(query.data(), q.data, query.size());
  if (layer == 1) negate(query, q.dtype);
  batch.query.data = query.data();
  const Result<Reference> expected = reference(batch, c.cache, c.options);
  if (!expected.ok()) return expected.status().message();
  std::vector<std::byte> out = made.out[layer][0];
  std::vector<float> lse = made.lse[layer][0];
  const Comparison compared = compare(Tensor::contiguous(out.data(), q.dtype, q.shape[0], q.shape[1], q.shape[2]),
                                      Tensor::contiguous(lse.data(), DType::f32, q.shape[0], q.shape[1]), expected.value());
  if (!compared.ok) return compared.text;
  for (std::size_t k = 1; k < made.out[layer].size(); ++k)
    if (made.out[layer][k] != out || made.lse[layer][k] != lse)
      return "rank " + std::to_string(k) + " has other bits than rank 0";
  return {};
}

const char* const kLine = "q=bf16 heads=8:4 d=32 page=8 reqs=1@40,7@30,20@0,1@61,3@2 seed=3";

TEST(ShardedStep, ServesSeveralLayersOverNccl) {
  const Case c = case_of(kLine);
  for (const std::int32_t world : {1, 2, 4})
    for (const bool swap : {false, true}) {
      const Layers made = run_step(c, world, {.swap_heads = swap});
      for (const int layer : {0, 1})
        EXPECT_EQ(judged(c, made, layer), "") << world << (swap ? " swapped" : "") << " layer " << layer;
      EXPECT_NE(made.out[0][0], made.out[1][0]);
    }
}

TEST(ShardedStep, OwnHeadsAreAShareOfAllHeads) {
  const Case c = case_of(kLine);
  const Layers all = run_step(c, 2, {}), own = run_step(c, 2, {.own_heads = true, .swap_heads = true});
  const std::size_t row = 8 * 32 * 2, share = row / 2;
  for (std::size_t k : {0U, 1U})
    for (std::size_t t = 0; t < own.out[0][k].size() / share; ++t)
      ASSERT_EQ(std::memcmp(&own.out[0][k][t * share], &all.out[0][0][t * row + k * share], share), 0) << "row " << t;
}

TEST(ShardedStep, PartialsOfTheQuerysTypeAreHalfAsManyBytesAndRight) {
  const Case c = case_of("q=f16 heads=8:4 d=32 page=8 reqs=1@40,1@61,1@200,1@7 seed=5");
  Batch batch = c.batch;
  batch.cached_lens = Tensor{};
  const std::vector<std::int64_t> starts = host_values(batch.query_start_loc), keys = host_values(batch.seq_lens);
  const auto bytes = [&](DType partials) {
    return ShardedStep::memory_bytes({.rank = 0, .world = 2}, batch, c.cache, c.options, {starts, keys}, {.partials = partials})
        .value();
  };
  EXPECT_LT(bytes(DType::f16), bytes(DType::f32));
  EXPECT_EQ(bytes(DType::none), bytes(DType::f32)) << "of host memory";
  // A partial output is at most the largest value that it sums, and is rounded to half an ulp: 2^-11. So is the result.
  const Layers wide = run_step(c, 2, {}), narrow = run_step(c, 2, {.partials = DType::f16});
  float largest = 0;
  for (std::int64_t i = 0; i < c.cache.v.num_elements(); ++i)
    if (const float v = semantics::load(c.cache.v.data, DType::f16, i); v == v) largest = std::max(largest, std::abs(v));
  EXPECT_EQ(judged(c, wide, 0), "");
  EXPECT_NE(narrow.out[0][0], wide.out[0][0]);
  for (std::size_t i = 0; i < wide.out[0][0].size() / 2; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const float a = semantics::load(narrow.out[0][0].data(), DType::f16, at),
                b = semantics::load(wide.out[0][0].data(), DType::f16, at);
    ASSERT_LE(std::abs(a - b), std::ldexp(largest, -11) + std::ldexp(std::abs(b), -10)) << "element " << i;
  }
}

TEST(ShardedStep, ExchangesRoundNothing) {
  Case c = case_of("q=f16 out=f32 heads=8:4 d=32 page=8 reqs=1@40,7@30,1@200 seed=6");
  const auto all = run_step(c, 2, {.partials = DType::f16}),
             swapped = run_step(c, 2, {.swap_heads = true, .partials = DType::f16});
  EXPECT_EQ(all.out[0], swapped.out[0]);
  EXPECT_EQ(all.lse[0], swapped.lse[0]);
}

TEST(ShardedStep, ARankMayHoldNoPage) {
  const Case c = case_of("q=f16 heads=8:4 d=32 page=8 reqs=1@3,1@5 seed=7");
  auto group = local_group(2, milliseconds(60000));
  InlineExecutor inline_executor;
  Layers made;
  made.out[0].resize(2), made.lse[0].resize(2);
  const Tensor& q = c.batch.query;
  const auto statuses = on_threads(2, [&](std::int32_t k) {
    const auto i = static_cast<std::size_t>(k);
    const ContextShard shard{.rank = k, .world = 2, .interleave = 8};  // rank 0 holds all tokens
    const RankCache mine(c, shard, 8);
    Batch batch = c.batch;
    batch.block_table = k == 0 ? mine.block_table : Tensor::contiguous(nullptr, DType::i32, 2, 0);
    batch.cached_lens = batch.key = batch.value = batch.slot_mapping = Tensor{};
    made.out[0][i].resize(static_cast<std::size_t>(q.num_elements() * 2));
    made.lse[0][i].resize(static_cast<std::size_t>(q.shape[0] * q.shape[1]));
    batch.output = Tensor::contiguous(made.out[0][i].data(), DType::f16, q.shape[0], q.shape[1], q.shape[2]);
    batch.lse = Tensor::contiguous(made.lse[0][i].data(), DType::f32, q.shape[0], q.shape[1]);
    return attend_sharded(*group.value()[i], shard, batch, mine.cache, c.options, {.executor = &inline_executor});
  });
  for (const Status& s : statuses) EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(judged(c, made, 0), "");
}

TEST(ShardedStep, RefusalsNameWhatIsWrong) {
  const Case c = case_of(kLine);
  auto group = local_group(1, milliseconds(1000));
  Batch batch = c.batch;
  batch.cached_lens = batch.key = batch.value = batch.slot_mapping = Tensor{};
  const std::vector<std::int64_t> starts = host_values(batch.query_start_loc), keys = host_values(batch.seq_lens);
  Workspace memory(1 << 20);
  const auto message = [&](const HostLengths& lengths, std::span<std::byte> bytes, const ShardedSettings& settings) {
    return ShardedStep::make(*group.value()[0], {}, batch, c.cache, c.options, lengths, bytes, settings).status().message();
  };
  EXPECT_EQ(message({starts, keys}, memory.at_least(0), {}), "");
  EXPECT_THAT(message({starts, keys}, memory.at_least(0).subspan(0, 64), {}), HasSubstr("memory: 64 bytes at"));
  EXPECT_THAT(message({starts, keys}, memory.at_least(0).subspan(8), {}), HasSubstr("64-byte aligned"));
  EXPECT_EQ(message({starts, std::span(keys).subspan(1)}, memory.at_least(0), {}),
            "lengths.seq_lens: 4 values, expected 5 as the batch");
  EXPECT_EQ(message({starts, keys}, memory.at_least(0), {.partials = DType::f16}),
            "settings.partials: f16, expected f32 or bf16 as query");
  const auto with_table = [&](auto&& change) {
    const Tensor table = batch.block_table;
    change(batch.block_table);
    group = local_group(1, milliseconds(1000));  // a group that failed stays broken
    const std::string text = message({starts, keys}, memory.at_least(0), {});
    batch.block_table = table;
    return text;
  };
  EXPECT_THAT(with_table([](Tensor& t) { --t.shape[0]; }), HasSubstr("Q-M30 block_table"));
  EXPECT_THAT(with_table([](Tensor& t) { t.dtype = DType::f32; }), HasSubstr("Q-M27 block_table"));
  EXPECT_THAT(with_table([](Tensor& t) { t.data = nullptr; }), HasSubstr("Q-M04 block_table"));
}

TEST(Nccl, SaysWhatIsMissing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ask = [](const char* library) {
    setenv("QUIRE_NCCL_LIBRARY", library, 1);
    auto group = local_group(1, milliseconds(1000));
    const auto made = nccl_exchange(*group.value()[0]);
    std::fputs(made.status().message().c_str(), stderr);
    std::exit(made.ok() ? 1 : 0);
  };
  EXPECT_EXIT(ask("/nowhere/libnccl.so"), testing::ExitedWithCode(0), "NCCL 2.7 or newer is missing.*nowhere");
  EXPECT_EXIT(ask("libm.so.6"), testing::ExitedWithCode(0), "has no ncclGetUniqueId, ncclCommInitRank");
}

}  // namespace
}  // namespace quire::test
