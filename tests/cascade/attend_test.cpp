// SPDX-License-Identifier: Apache-2.0
// attend_cascade() on a CPU: equal to fp64 with poison wherever nothing may be read, bits that do not depend on the batch where
// that is promised, refusals, and faults that a cascade can have, each of which is seen.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <random>

#include "cascade/levels.h"
#include "quire/cascade.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/workspace.hpp"

namespace quire::test {
namespace {

using testing::HasSubstr;

Case case_of(const std::string& text) {
  const Result<ProblemLine> line = parse_problem_line(text);
  EXPECT_TRUE(line.ok()) << line.status().message();
  Result<Case> made = make_case(line.value());
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made.value());
}

Result<Cascade> planned(const Case& c, CascadeSettings settings = {.always = true}) {
  return plan_cascade(c.batch, c.cache, c.options, settings);
}

Status attend_planned(const Cascade& cascade, const Case& c) {
  Workspace workspace;
  const std::span<std::byte> bytes = workspace.at_least(workspace_bytes(cascade));
  std::memset(bytes.data(), 0xFF, bytes.size());  // NaN: partial results are written before they are merged
  return attend_cascade(cascade, c.batch, c.cache, c.options, bytes);
}

/// Empty if output and lse of the case are right.
std::string judged(const Case& c) {
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  if (!expected.ok()) return expected.status().message();
  const Comparison compared = compare(c.batch.output, c.batch.lse, expected.value());
  return compared.ok ? "" : compared.text;
}

std::string run(const Case& c, std::size_t levels) {
  const Result<Cascade> cascade = planned(c);
  if (!cascade.ok()) return cascade.status().message();
  if (cascade->levels.size() != levels)
    return std::to_string(cascade->levels.size()) + " levels, expected " + std::to_string(levels) + ": " + cascade->shared.reason;
  const Status status = attend_planned(cascade.value(), c);
  return status.ok() ? judged(c) : status.message();
}

/// A table may be narrower than a request is long where no row sees the rest: the request has no rows, or says where they stand.
TEST(AttendCascade, TakesTablesNarrowerThanRequestsAreLong) {
  struct {
    const char* line;
    std::int64_t request, seq_len;
    std::size_t levels;
  } const narrow[] = {
      {"q=f32 heads=4:2 d=16 page=16 reqs=0@5,1@4", 0, 40000, 0},
      {"q=f32 heads=4:2 d=16 page=16 reqs=2x1@5 window=4 qbegin=3", 0, INT32_MAX, 0},
      {"q=f32 heads=4:2 d=16 page=4 reqs=3x1@8 share=2 qbegin=8 lse=1", 1, INT32_MAX, 2},
      {"q=f32 heads=4:2 d=16 page=4 reqs=2x1@8,0@8 share=2 lse=1 index=i64", 2, INT32_MAX, 2},
  };
  for (const auto& [line, request, seq_len, levels] : narrow) {
    const Case c = case_of(line);
    const Tensor& lens = c.batch.seq_lens;
    if (lens.dtype == DType::i64)
      static_cast<std::int64_t*>(lens.data)[request] = seq_len;
    else
      static_cast<std::int32_t*>(lens.data)[request] = static_cast<std::int32_t>(seq_len);
    EXPECT_EQ(run(c, levels), "") << line;
  }
}

// Keys of a request's own, cut out of its table, may look like int64 ids read as int32 (Q-T05), though the whole table does not.
TEST(AttendCascade, PartsOfASoundTableAreNotGuessedAt) {
  const Case c = case_of("q=f32 kv=f32 heads=2:1 d=16 page=1 index=i32 reqs=2x1@6 seed=3");
  constexpr std::int32_t kPages[2][7] = {{5, 9, 1, 0, 3, 0, 2}, {5, 9, 4, 0, 6, 0, 7}};
  for (std::int64_t r = 0; r < 2; ++r) {
    for (std::int64_t column = 0; column < 7; ++column)
      static_cast<std::int32_t*>(c.batch.block_table.data)[r * c.batch.block_table.stride[0] + column] = kPages[r][column];
    static_cast<std::int32_t*>(c.batch.slot_mapping.data)[r] = kPages[r][6];
  }
  std::mt19937 random(1);
  for (const Tensor* t : {&c.cache.k, &c.cache.v})  // pages that the case did not use hold NaN
    for (std::int64_t i = 0; i < t->shape[0] * t->stride[0]; ++i)
      static_cast<float*>(t->data)[i] = std::normal_distribution<float>()(random);
  const Findings findings = check(c.batch, c.cache, c.options, Depth::tables);
  ASSERT_TRUE(findings.ok()) << findings.status().message();
  EXPECT_EQ(run(c, 2), "");
  const Result<Cascade> cascade = planned(c);
  Workspace workspace;
  const std::span<std::byte> bytes = workspace.at_least(workspace_bytes(cascade.value()));
  EXPECT_EQ(prepare_cascade(cascade.value(), c.batch, c.cache, c.options, bytes).message(), "");
}

TEST(AttendCascade, EqualsFp64) {
  struct {
    const char* line;
    std::size_t levels;  // levels, own keys included; 0 = nothing is shared
  } const lines[] = {
      {"q=f32 heads=4:2 d=16 page=4 reqs=6x1@40 share=7", 2},
      {"q=bf16 heads=4:2 d=32 page=8 reqs=8x1@80 share=4,4x3,2x1 lse=1", 4},
      {"q=f16 heads=8:1 d=24 page=4 layout=hnd reqs=3x4@44,2x1@30,1@3 share=3,3x4 lse=1 index=i64", 3},
      {"q=bf16 kv=fp8_e4m3fn heads=6:2 d=64 page=16 layout=packed reqs=5x2@70,3x9@40 share=2,5x1 kscale=head vscale=tensor", 3},
      {"q=fp8_e4m3fn heads=4:2 d=32 page=8 reqs=4x1@50 share=5 qscale=head kscale=head vscale=head out=fp8_e4m3fn", 2},
      {"q=bf16 heads=4:2 d=32 page=8 reqs=4x1@50,2x7@33 share=4 sinks=1 cap=5 scale=0.3 lse=1", 2},
      {"q=f32 heads=4:2 d=16 page=4 reqs=3x5@40/40,2x2@20/21,1@30 share=5 lse=1", 2},
      {"q=f32 heads=4:2 d=16 page=4 reqs=2x3@20,1@9,2x0@0 share=4 pad=5:zero lse=1", 3},
      {"q=f32 heads=4:2 d=16 page=4 reqs=2x3@20,1@9 share=4 pad=5 lse=1", 3},
      {"q=f32 heads=4:2 d=16 page=4 reqs=4x2@30 share=5 window=32", 2},
      {"q=f32 heads=4:2 d=16 page=4 reqs=4x2@30 share=5 window=20 lse=1", 0},
      {"q=f32 heads=4:2 d=16 page=4 reqs=4x2@30 share=5 alibi=1", 0},
      {"q=f32 heads=4:2 d=16 page=4 reqs=4x6@30 share=5 causal=2x0,2x1 lse=1", 2},
      {"q=f32 heads=4:2 d=16 page=4 reqs=4x6@30 share=5 causal=0 wright=2 lse=1", 2},
      {"q=f32 heads=4:2 d=16 page=4 reqs=4x6@30 share=5 kbegin=100 qbegin=140 lse=1", 2},
      {"q=f32 heads=4:2 d=40 dv=16 page=4 reqs=4x6@30 share=5 latent=1 lse=1", 2},
      {"q=f32 heads=2 d=8 page=4 reqs=1x3@30 share=5", 0},
      {"q=f32 heads=2 d=8 page=4 reqs=none share=5", 0},
      {"q=f32 heads=2 d=8 page=1 reqs=4x1@8 share=8", 2},
  };
  for (const auto& [line, levels] : lines)
    for (const std::string seed : {" seed=1", " seed=2"}) ASSERT_EQ(run(case_of(line + seed), levels), "") << line;
}

TEST(AttendCascade, TheSameBitsWhateverTheNumberOfThreads) {
  const Case c = case_of("q=bf16 heads=4:2 d=32 page=8 reqs=8x1@180,3x20@90 share=4,4x3,2x1 lse=1");
  ASSERT_EQ(run(c, 4), "");
  const auto bytes = static_cast<std::size_t>(c.batch.output.num_elements() * 2);
  const std::vector<std::byte> first(static_cast<std::byte*>(c.batch.output.data),
                                     static_cast<std::byte*>(c.batch.output.data) + bytes);
  const std::shared_ptr<Executor> two = make_thread_pool(2);
  const Result<Cascade> cascade = planned(c, {.plan = {.num_threads = 2}, .always = true});
  ASSERT_TRUE(cascade.ok());
  Workspace workspace;
  ASSERT_TRUE(attend_cascade(cascade.value(), c.batch, c.cache, c.options, workspace.at_least(workspace_bytes(cascade.value())),
                             {.executor = two.get()})
                  .ok());
  EXPECT_EQ(std::memcmp(first.data(), c.batch.output.data, bytes), 0);
}

/// Output of request r of a case of one row each.
std::vector<std::byte> row_of(const Case& c, std::int64_t r) {
  const std::int64_t bytes = c.batch.output.stride[0] * itemsize(c.batch.output.dtype);
  const auto* const from = static_cast<const std::byte*>(c.batch.output.data) + r * bytes;
  return {from, from + bytes};
}

/// The batch without its last requests.
Case only_first(Case c, std::int64_t count) {
  c.batch.query.shape[0] = c.batch.output.shape[0] = c.batch.lse.shape[0] = count;
  c.batch.query_start_loc.shape[0] = count + 1;
  c.batch.seq_lens.shape[0] = c.batch.block_table.shape[0] = count;
  c.batch.slot_mapping = c.batch.request_ids = Tensor{};
  return c;
}

TEST(AttendCascade, NamedRunsGiveTheSameBitsWhoeverSharesThem) {
  const std::string text = "q=bf16 heads=4:2 d=32 page=8 reqs=1@700,5x1@690 share=70,3x9 lse=1";
  const auto settings = [](std::vector<SharedRun> runs) {
    return CascadeSettings{.plan = {.batch_invariant = true}, .find = false, .runs = std::move(runs)};
  };
  const Case together = case_of(text);
  const Result<Cascade> of_all = planned(together, settings({{0, 6, 0, 70}, {0, 3, 70, 79}, {3, 6, 70, 79}}));
  ASSERT_TRUE(of_all.ok()) << of_all.status().message();
  ASSERT_TRUE(attend_planned(of_all.value(), together).ok());
  ASSERT_EQ(judged(together), "");
  const std::vector<std::byte> row = row_of(together, 0);
  for (const std::int64_t count : {1, 2, 4}) {
    const Case alone = only_first(case_of(text), count);
    const std::int64_t with = std::min<std::int64_t>(count, 3);
    const Result<Cascade> of_some = planned(alone, settings({{0, count, 0, 70}, {0, with, 70, 79}}));
    ASSERT_TRUE(of_some.ok()) << of_some.status().message();
    ASSERT_TRUE(attend_planned(of_some.value(), alone).ok());
    EXPECT_EQ(row_of(alone, 0), row) << count;
  }
}

TEST(AttendCascade, FoundRunsAreNotSharedWhereBitsMayNotDependOnTheBatch) {
  const Case c = case_of("q=bf16 heads=4:2 d=32 page=8 reqs=4x1@690 share=70");
  const Result<Cascade> cascade = planned(c, {.plan = {.batch_invariant = true}, .always = true});
  ASSERT_TRUE(cascade.ok());
  EXPECT_TRUE(cascade->levels.empty());
  EXPECT_THAT(cascade->shared.reason, HasSubstr("batch_invariant"));
  ASSERT_TRUE(attend_planned(cascade.value(), c).ok());
  EXPECT_EQ(judged(c), "");
}

TEST(AttendCascade, RefusesRunsThatAreNone) {
  const Case c = case_of("q=f32 heads=2 d=8 page=4 reqs=4x1@20 share=3");
  const auto refusal = [&](std::vector<SharedRun> runs) {
    return planned(c, {.find = false, .runs = std::move(runs)}).status().message();
  };
  EXPECT_EQ(refusal({{0, 4, 0, 3}}), "");
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({{0, 5, 0, 3}}), "Q-P01 runs[0]: requests [0, 5), expected at least one of the 4 requests");
  EXPECT_EQ(refusal({{0, 4, 2, 2}}), "Q-P01 runs[0]: pages [2, 2), expected at least one of the 7 columns of block_table");
  EXPECT_THAT(refusal({{0, 4, 0, 2}, {1, 3, 1, 3}}),
              HasSubstr("Q-P02 runs[1]: begins at page 1, expected page 2, where the runs before it end for request 1"));
  EXPECT_THAT(refusal({{0, 4, 0, 6}}),
              HasSubstr("Q-P03 runs[0]: ends at page 6, expected at most 5: full, cached pages of request 0"));
  EXPECT_THAT(refusal({{0, 4, 0, 4}}), HasSubstr("Q-P03 block_table[1][3]: page "));
  EXPECT_THAT(planned(c, {.runs = {{0, 4, 0, 3}}}).status().message(), HasSubstr("beside find = true"));
  EXPECT_THAT(planned(c, {.partials = DType::bf16}).status().message(), HasSubstr("settings.partials: bf16, expected f32"));
}

TEST(AttendCascade, RefusesAnotherBatchThanThePlannedOne) {
  Case c = case_of("q=f32 heads=2 d=8 page=4 reqs=4x1@20 share=3");
  const Result<Cascade> cascade = planned(c);
  ASSERT_TRUE(cascade.ok());
  auto* const table = static_cast<std::int32_t*>(c.batch.block_table.data);
  std::swap(table[0], table[1]);
  EXPECT_THAT(attend_planned(cascade.value(), c).message(),
              HasSubstr("lengths or tables are others than when the cascade was planned"));
  std::swap(table[0], table[1]);
  c.options.logits_soft_cap = 3.0f;
  EXPECT_THAT(attend_planned(cascade.value(), c).message(), HasSubstr("types, sizes or options"));
  c.options.logits_soft_cap.reset();
  std::byte little[64];
  EXPECT_THAT(attend_cascade(cascade.value(), c.batch, c.cache, c.options, little).message(), HasSubstr("workspace: 64 bytes"));
  const std::int32_t page = table[0];
  table[0] = 1000000;
  EXPECT_EQ(attend_planned(cascade.value(), c).rule(), "Q-T03");
  table[0] = page;
  EXPECT_TRUE(attend_planned(cascade.value(), c).ok());
  EXPECT_EQ(judged(c), "");
}

/// The plan of a level that was changed.
void plan_again(CascadeLevel& level, const Case& c) {
  const Options options = cascade::options_of(level, c.options);
  const Batch batch = cascade::batch_of(level, c.batch, {}, c.batch.output, c.batch.lse);
  const Result<Plan> made = plan(problem_of(batch, c.cache, options), host_device());
  ASSERT_TRUE(made.ok()) << made.status().message();
  level.plan = made.value();
}

/// Faults of a cascade, planted in its levels. A fault that does not show would be a fault of these tests.
TEST(AttendCascade, PlantedFaultsShow) {
  const auto shows = [](const char* name, const std::string& options, auto&& plant) {
    const Case c = case_of("q=f32 heads=4:2 d=16 page=4 reqs=3x1@40,2x6@30 share=6 lse=1" + options);
    Result<Cascade> cascade = planned(c);
    ASSERT_TRUE(cascade.ok());
    ASSERT_EQ(cascade->levels.size(), 2U);
    plant(cascade.value());
    for (CascadeLevel& level : cascade->levels) plan_again(level, c);
    const Status status = attend_planned(cascade.value(), c);
    ASSERT_TRUE(status.ok()) << name << ": " << status.message();
    EXPECT_NE(judged(c), "") << name << " did not show";
  };
  const auto page = [](Cascade& c) { return static_cast<std::int32_t>(c.problem.page_size); };
  shows("a page less in the prefix", "", [&](Cascade& c) { c.levels[0].seq_lens[0] -= page(c); });
  // Own keys of a batch whose requests share `pages` pages of the planned ones.
  const auto own_keys_behind = [](Cascade& c, std::int64_t pages) {
    const Case whole = case_of("q=f32 heads=4:2 d=16 page=4 reqs=3x1@40,2x6@30 share=6 lse=1");
    const SharedPrefixes shared{.levels = {}, .pages = std::vector<std::int64_t>(5, pages)};
    cascade::HostTable table{.pages = {}, .columns = whole.batch.block_table.shape[1]};
    const auto* const entries = static_cast<const std::int32_t*>(whole.batch.block_table.data);
    table.pages.assign(entries, entries + 5 * table.columns);
    c.levels[1] = cascade::make_levels(c.problem, shared, table).back();
  };
  shows("the prefix twice", "", [&](Cascade& c) { own_keys_behind(c, 0); });
  shows("own keys begin a page early", "", [&](Cascade& c) { own_keys_behind(c, 5); });
  shows("own keys begin a page late", "", [&](Cascade& c) { own_keys_behind(c, 7); });
  shows("a member of the group missed", "", [](Cascade& c) {
    CascadeLevel& level = c.levels[0];
    level.query_start_loc = {0, 9, 15};
    level.seq_lens.push_back(0);
    level.block_table.resize(2 * level.block_table.size(), -1);
  });
  shows("the sink in every level", " sinks=1", [](Cascade& c) { c.levels[0].own = true; });
  shows("rows of the prefix are causal among themselves", "", [](Cascade& c) { c.levels[0].own = true; });
  shows("the prefix of another page order", "", [](Cascade& c) { c.levels[0].block_table[0] = c.levels[0].block_table[1]; });
}

TEST(AttendCascade, ALogarithmOfAnotherBaseShows) {
  const Case c = case_of("q=f32 heads=4:2 d=16 page=4 reqs=3x1@40 share=6 lse=1");
  const Result<Cascade> cascade = planned(c);
  ASSERT_TRUE(cascade.ok());
  Workspace workspace;
  const std::span<std::byte> bytes = workspace.at_least(workspace_bytes(cascade.value()));
  ASSERT_TRUE(attend_cascade(cascade.value(), c.batch, c.cache, c.options, bytes).ok());
  ASSERT_EQ(judged(c), "");
  // Partial outputs, then their lse, as attend_cascade() leaves them.
  const std::int64_t rows = 3, heads = 4, dims = 16;
  auto* const outs = reinterpret_cast<float*>(bytes.data());
  float* const lses = outs + 2 * rows * heads * dims;  // 1536 bytes: a multiple of the alignment
  for (std::int64_t i = 0; i < 2 * rows * heads; ++i) lses[i] *= 1.4426950408889634f;
  ASSERT_TRUE(merge_many(Tensor::contiguous(outs, DType::f32, 2, rows, heads, dims),
                         Tensor::contiguous(lses, DType::f32, 2, rows, heads), c.batch.output, c.batch.lse)
                  .ok());
  EXPECT_NE(judged(c), "");
}

}  // namespace
}  // namespace quire::test
