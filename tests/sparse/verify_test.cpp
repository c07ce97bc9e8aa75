// SPDX-License-Identifier: Apache-2.0
// The conformance suite on lists that hold every key that a row sees, in any order: attention over them is attention.
#include <gmock/gmock.h>

#include "quire/report.hpp"
#include "quire/verify.hpp"
#include "quire/workspace.hpp"
#include "sparse/lists.h"

namespace quire::test {
namespace {

/// The case as lists of slots: what masks hide is in no list. The batch itself hides nothing.
struct AsLists {
  Batch batch;
  Options options;
  std::vector<std::int64_t> ids, num_keys;
  KeyLists lists;
};

AsLists as_lists(const Case& c) {
  AsLists made;
  made.batch = c.batch, made.options = c.options;
  for (Tensor* t :
       {&made.batch.cached_lens, &made.batch.causal, &made.batch.q_begin, &made.batch.key_begin, &made.batch.slot_mapping})
    *t = Tensor{};
  made.options.causal = false;
  made.options.sliding_window.reset(), made.options.window_right.reset();
  const Problem problem = problem_of(c.batch, c.cache, c.options);
  const std::int64_t rows = c.batch.query.shape[0], width = problem.max_seq_len(), tokens = page_size(c.cache);
  made.ids.assign(static_cast<std::size_t>(rows * width), -1);
  made.num_keys.assign(static_cast<std::size_t>(rows), 0);
  std::mt19937 random(1);
  std::int64_t row = 0;
  for (std::size_t r = 0; r < problem.reqs.size(); ++r) {
    const semantics::IndexView table = semantics::index_row(c.batch.block_table, static_cast<std::int64_t>(r));
    for (std::int64_t i = 0; i < problem.reqs[r].query_len; ++i, ++row) {
      const KeyPositions seen = problem.visible_keys(problem.reqs[r], i, i);
      const auto first = made.ids.begin() + row * width;
      std::int64_t& count = made.num_keys[static_cast<std::size_t>(row)];
      for (std::int64_t p = seen.begin; p < seen.end; ++p) first[count++] = table[p / tokens] * tokens + p % tokens;
      std::shuffle(first, first + count, random);
    }
  }
  made.lists.ids = Tensor::contiguous(made.ids.data(), DType::i64, rows, width);
  made.lists.num_keys = Tensor::contiguous(made.num_keys.data(), DType::i64, rows);
  return made;
}

bool has_lists(const Case& c) {
  const Problem p = problem_of(c.batch, c.cache, c.options);
  const bool cached = std::all_of(p.reqs.begin(), p.reqs.end(), [](const Request& r) { return r.cached_len == r.seq_len(); });
  return !p.alibi && !p.has_shapes() && cached && p.layout != CacheLayout::packed;
}

Status attend_by_lists(const Case& c, std::string& kernel) {
  if (!has_lists(c))
    return {Code::unsupported, "ALiBi, chunks, prefixes, spans, trees, keys beside the cache and packed slots go with no list"};
  const AsLists a = as_lists(c);
  const Result<Sparse> planned = plan_sparse(a.batch, c.cache, a.options, a.lists);
  if (!planned.ok()) return planned.status();
  kernel = std::string(planned->plans[0].kernel.name());
  Workspace workspace;
  return attend_sparse(planned.value(), a.batch, c.cache, a.options, a.lists,
                       workspace.at_least(workspace_bytes(planned.value())));
}

TEST(SparseConformance, ListsOfAllVisibleKeysAreAttention) {
  Target target;
  target.name = "lists of all visible keys";
  target.attend = attend_by_lists;
  target.skip["StalePagesLeftOfWindow"] = "the batch beside the lists has no window, and its table is read";
  target.padding = target.masks = target.v_head_dim = target.eight_bit_rows = true;
  VerifyOptions options;
  options.quick = true;
  options.types = {{DType::f32, DType::f32}, {DType::bf16, DType::fp8_e4m3fn}};
  const Result<Verdict> verdict = verify(target, options);
  ASSERT_TRUE(verdict.ok()) << verdict.status().message();
  EXPECT_EQ(verdict->verdict, VerifyVerdict::pass) << to_string(verdict.value());
  const auto passed = std::ranges::count_if(verdict->cases, [](const CaseResult& c) { return c.status == CaseStatus::pass; });
  EXPECT_GT(passed, 80) << "of " << verdict->cases.size();
  RecordProperty("passed", static_cast<int>(passed));
}

}  // namespace
}  // namespace quire::test
