// SPDX-License-Identifier: Apache-2.0
// attend() on every shard of a context, and merge_many() of the parts: equal to fp64 attention over all keys.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "quire/attention.hpp"
#include "quire/shards.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/workspace.hpp"
#include "semantics/index_tensor.h"
#include "shards/ranks.h"

namespace quire::test {
namespace {

Tensor indices(std::vector<std::int64_t>& values) { return Tensor::contiguous(values.data(), DType::i64, values.size()); }

/// The rows of a case over the keys of one rank, whose results land in `out` and `lse`.
Status attend_to(const Case& c, const ContextShard& shard, const Tensor& out, const Tensor& lse) {
  const RankCache mine(c, shard, 8);
  Result<LocalLengths> local = local_lengths(shard, semantics::indices_of(c.batch.query_start_loc),
                                             semantics::indices_of(c.batch.seq_lens), c.options.sliding_window);
  if (!local.ok()) return local.status();
  const std::int64_t pages = mine.block_table.shape[1];
  std::vector<std::int32_t> rows;
  for (const std::int64_t request : local->request)
    rows.insert(rows.end(), mine.table.begin() + request * pages, mine.table.begin() + (request + 1) * pages);
  Batch batch;
  batch.query = c.batch.query;
  batch.output = out;
  batch.lse = lse;
  batch.query_start_loc = indices(local->query_start_loc);
  batch.seq_lens = indices(local->seq_lens);
  batch.block_table = Tensor::contiguous(rows.data(), DType::i32, local->request.size(), pages);
  if (!local->causal.empty()) batch.causal = Tensor::contiguous(local->causal.data(), DType::u8, local->causal.size());
  if (!local->q_begin.empty()) batch.q_begin = indices(local->q_begin);
  if (!local->key_begin.empty()) batch.key_begin = indices(local->key_begin);
  Options options = c.options;
  if (shard.rank != 0) options.sinks = Tensor{};  // one logit of the denominator counts once
  const Result<Plan> how = plan(batch, mine.cache, options);
  if (!how.ok()) return how.status();
  Workspace workspace;
  return attend(how.value(), batch, mine.cache, options, workspace.at_least(workspace_bytes(how.value())));
}

Tensor part_of(Tensor t, std::int64_t k) {
  t.data = static_cast<float*>(t.data) + k * t.stride[0];
  --t.rank;
  std::copy(t.shape.begin() + 1, t.shape.end(), t.shape.begin());
  std::copy(t.stride.begin() + 1, t.stride.end(), t.stride.begin());
  return t;
}

/// What is wrong with the merge of all ranks' parts; "" = nothing.
std::string judged(const Case& c, std::int32_t world, std::int64_t run, bool contiguous) {
  const Tensor& q = c.batch.query;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(static_cast<std::size_t>(world * q.num_elements()), kNan);
  std::vector<float> lse(static_cast<std::size_t>(world * q.shape[0] * q.shape[1]), kNan);
  const Tensor outs = Tensor::contiguous(out.data(), DType::f32, world, q.shape[0], q.shape[1], q.shape[2]);
  const Tensor lses = Tensor::contiguous(lse.data(), DType::f32, world, q.shape[0], q.shape[1]);
  for (std::int32_t k = 0; k < world; ++k)
    if (Status s = attend_to(c, shard_of(k, world, run, contiguous), part_of(outs, k), part_of(lses, k)); !s.ok())
      return s.message();
  if (Status s = merge_many(outs, lses, c.batch.output, c.batch.lse); !s.ok()) return s.message();
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  if (!expected.ok()) return expected.status().message();
  const Comparison compared = compare(c.batch.output, c.batch.lse, expected.value());
  return compared.ok ? "" : compared.text;
}

constexpr const char* kReqs = "page=8 lse=1 reqs=1@0,7@30,20@0,1@61,3@2 seed=3";

TEST(MergedShards, EqualFp64) {
  for (const std::string options : {"", " window=9", " cap=5", " sinks=1", " window=3 sinks=1 cap=4", " window=2147483647"})
    for (const bool contiguous : {false, true})
      for (const auto& [world, run] : {std::pair{1, 4}, {2, 1}, {3, 8}, {4, 24}}) {
        Case c = case_of("q=bf16 heads=4:2 d=32 " + std::string(kReqs) + options);
        // A problem line has windows of 31 bits, a call has longer ones.
        if (c.options.sliding_window == 2147483647) c.options.sliding_window = std::int64_t{1} << 40;
        ASSERT_EQ(judged(c, world, contiguous ? 20 : run, contiguous), "")
            << options << (contiguous ? " contiguous " : " interleaved ") << world;
      }
}

TEST(MergedShards, KeepDistancesWhereTheyAreContiguous) {
  const Case c = case_of("q=f32 heads=4:2 d=32 alibi=1 " + std::string(kReqs));
  ASSERT_EQ(judged(c, 3, 20, true), "");
  EXPECT_NE(judged(c, 3, 8, false), "") << "slopes over interleaved keys see other distances";
}

}  // namespace
}  // namespace quire::test
