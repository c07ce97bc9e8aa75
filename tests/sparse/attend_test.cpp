// SPDX-License-Identifier: Apache-2.0
// attend_sparse() on a CPU: equal to a gather in fp64 with poison on every slot that no list holds, refusals before any write,
// and faults that lists can have, each of which is seen.
#include <gmock/gmock.h>

#include "quire/workspace.hpp"
#include "sparse/lists.h"
#include "sparse/views.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using enum ListUnit;
using enum ListOwner;

Status attend_lists(const Case& c, const KeyLists& lists) {
  const Result<Sparse> planned = plan_sparse(c.batch, c.cache, c.options, lists);
  if (!planned.ok()) return planned.status();
  Workspace workspace;
  const std::span<std::byte> bytes = workspace.at_least(workspace_bytes(planned.value()));
  std::memset(bytes.data(), 0xFF, bytes.size());
  return attend_sparse(planned.value(), c.batch, c.cache, c.options, lists, bytes);
}

std::string run(const std::string& line, const Form& form, std::uint32_t seed = 1) {
  const Case c = case_of(line);
  const Lists lists = random_lists(c, form, seed);
  poison_unlisted(c, lists);
  const Status status = attend_lists(c, lists.view);
  return status.ok() ? judged(c, lists) : status.message();
}

const char* const kLines[] = {
    "q=f32 heads=4:2 d=16 page=4 reqs=3x1@40,2x5@20 lse=1",
    "q=bf16 heads=4:2 d=32 page=8 layout=hnd reqs=4x1@80,1x6@30 lse=1 sinks=1 cap=5 scale=0.3",
    "q=f16 heads=6:3 d=24 page=4 reqs=3x1@44,1x3@3 lse=1 index=i64",
    "q=bf16 kv=fp8_e4m3fn heads=6:2 d=64 page=16 layout=hnd reqs=3x2@70,1@40 kscale=head vscale=head sinks=1 lse=1",
    "q=f16 kv=fp8_e5m2 heads=4:1 d=32 page=16 reqs=2x1@70,1x9@40 kscale=tensor vscale=tensor",
    "q=fp8_e4m3fn heads=4:2 d=32 page=8 reqs=4x1@50 qscale=head kscale=head vscale=head out=fp8_e4m3fn lse=1",
    "q=bf16 heads=16:1 d=72 dv=64 page=8 reqs=3x1@90,1x4@20 latent=1 lse=1",
    "q=f32 heads=4:2 d=16 page=4 reqs=2x3@20,1@9,2x0@0 pad=5:zero lse=1",
    "q=f32 heads=4:2 d=16 page=4 reqs=2x3@20,1@9 pad=5 lse=1",
    "q=f32 heads=4:2 d=16 page=4 reqs=4x6@30 causal=2x0,2x1 lse=1",
    "q=f32 heads=2 d=8 page=1 reqs=3x1@20",
    "q=f32 heads=2 d=8 page=4 reqs=none",
};

TEST(AttendSparse, EqualsAGatherInFp64) {
  for (const char* const line : kLines)
    for (const ListUnit unit : {page, slot})
      for (const ListOwner owner : {request, row})
        for (const bool by_head : {false, true})
          for (const std::uint32_t seed : {1u, 2u}) {
            const Form form{.unit = unit, .owner = owner, .by_head = by_head, .width = unit == page ? 5 : 17};
            ASSERT_EQ(run(line, form, seed), "") << line << " " << name(unit) << " " << name(owner) << " " << by_head;
          }
}

TEST(AttendSparse, TakesPagesOfAPackedCache) {
  const char* const line = "q=bf16 kv=fp8_e4m3fn heads=6:2 d=64 page=16 layout=packed reqs=3x2@70,1@40 kscale=head lse=1";
  for (const bool by_head : {false, true}) EXPECT_EQ(run(line, {.unit = page, .by_head = by_head, .width = 4}), "");
  EXPECT_THAT(run(line, {.unit = slot}), HasSubstr("Q-K04 cache.k: layout packed under lists of slots"));
}

TEST(AttendSparse, TakesKAndVThatInterleave) {
  // [pages, 2, page_size, heads, dims], as some engines hold it: a page is twice as many steps of a token.
  const Case plain = case_of("q=f32 heads=4:2 d=16 page=4 reqs=3x1@40,2x5@20 lse=1");
  Case c = plain;
  const std::int64_t pages = num_pages(c.cache), page_elements = 4 * 2 * 16;
  std::vector<float> both(static_cast<std::size_t>(pages * 2 * page_elements));
  for (std::int64_t p = 0; p < pages; ++p) {
    std::memcpy(&both[static_cast<std::size_t>(2 * p * page_elements)],
                static_cast<float*>(plain.cache.k.data) + p * plain.cache.k.stride[0], page_elements * sizeof(float));
    std::memcpy(&both[static_cast<std::size_t>((2 * p + 1) * page_elements)],
                static_cast<float*>(plain.cache.v.data) + p * plain.cache.v.stride[0], page_elements * sizeof(float));
  }
  c.cache.k.data = both.data(), c.cache.v.data = both.data() + page_elements;
  c.cache.k.stride[0] = c.cache.v.stride[0] = 2 * page_elements;
  const Lists lists = random_lists(c, {.width = 17}, 3);
  poison_unlisted(c, lists);
  ASSERT_TRUE(attend_lists(c, lists.view).ok());
  EXPECT_EQ(judged(c, lists), "");
}

TEST(AttendSparse, CountsEntriesInFrontOfMinusOne) {
  const Form form{.width = 17, .counted = false, .index = DType::i64};
  EXPECT_EQ(run(kLines[0], form), "");
  EXPECT_EQ(run(kLines[1], {.owner = row, .by_head = true, .width = 9, .counted = false}), "");
}

TEST(AttendSparse, NeverReadsEntriesBehindTheCount) {
  EXPECT_EQ(run(kLines[0], {.unit = page, .width = 5, .unused = 2147480000}), "");
  EXPECT_EQ(run(kLines[0], {.unit = slot, .width = 17, .unused = 2147480000}), "");
}

TEST(AttendSparse, EmptyListsGiveZeroAndMinusInfinity) {
  const Case c = case_of("q=f32 heads=4:2 d=16 page=4 reqs=3x1@40 lse=1");
  std::vector<std::int32_t> ids(3 * 5, -1), none(3, 0);
  const KeyLists lists{.ids = Tensor::contiguous(ids.data(), DType::i32, 3, 5),
                       .num_keys = Tensor::contiguous(none.data(), DType::i32, 3)};
  ASSERT_TRUE(attend_lists(c, lists).ok());
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i) EXPECT_EQ(static_cast<float*>(c.batch.output.data)[i], 0.0f);
  for (std::int64_t i = 0; i < c.batch.lse.num_elements(); ++i) EXPECT_EQ(static_cast<float*>(c.batch.lse.data)[i], -INFINITY);
  KeyLists empty = lists;
  empty.ids.shape[1] = 0;
  ASSERT_TRUE(attend_lists(c, empty).ok());
}

TEST(AttendSparse, AListOfAllKeysIsDenseAttention) {
  const Case c = case_of("q=f32 heads=4:2 d=16 page=4 reqs=3x1@40,2x5@20 lse=1");
  const Result<Reference> dense = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(dense.ok());
  std::vector<std::int64_t> ids(13 * 41, -1);
  const std::vector<RowOf> rows = rows_of(c);
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const semantics::IndexView table = semantics::index_row(c.batch.block_table, rows[t].request);
    for (std::int64_t p = 0; p < rows[t].visible; ++p)
      ids[t * 41 + static_cast<std::size_t>(rows[t].visible - 1 - p)] = table[p / 4] * 4 + p % 4;
  }
  ASSERT_TRUE(attend_lists(c, {.ids = Tensor::contiguous(ids.data(), DType::i64, 13, 41)}).ok());
  const Comparison compared = compare(c.batch.output, c.batch.lse, dense.value());
  EXPECT_TRUE(compared.ok) << compared.text;
}

TEST(AttendSparse, CountsRowsOfAllKvHeads) {
  const Case c = case_of("q=f32 heads=4:2 d=16 page=4 reqs=3x1@40,2x5@20");
  const Lists lists = random_lists(c, {.by_head = true, .width = 17}, 1);
  const Result<Sparse> planned = plan_sparse(c.batch, c.cache, c.options, lists.view);
  ASSERT_TRUE(planned.ok());
  Workspace workspace;
  std::vector<RowCount> counts;
  ASSERT_TRUE(attend_sparse(planned.value(), c.batch, c.cache, c.options, lists.view,
                            workspace.at_least(workspace_bytes(planned.value())), {.rows = &counts})
                  .ok());
  std::int64_t rows = 0;
  for (const RowCount& count : counts) rows += count.rows;
  EXPECT_EQ(rows, 13 * 4);
}

TEST(AttendSparse, SaysWhatItDoes) {
  const Case c = case_of("q=bf16 heads=4:2 d=16 page=4 reqs=3x1@40");
  const Lists lists = random_lists(c, {.by_head = true, .width = 17}, 1);
  const Result<Sparse> planned = plan_sparse(c.batch, c.cache, c.options, lists.view);
  ASSERT_TRUE(planned.ok());
  EXPECT_EQ(
      planned->reason,
      "lists of up to 17 slots of each row and KV head: the cache is seen as pages of one token, each row as a request, and each "
      "of 2 KV heads as a batch");
  EXPECT_THAT(to_string(planned.value()), HasSubstr("batch 1   cpu_"));
  const Lists pages = random_lists(c, {.unit = page, .owner = request, .width = 5}, 1);
  const Result<Sparse> of_pages = plan_sparse(c.batch, c.cache, c.options, pages.view);
  ASSERT_TRUE(of_pages.ok());
  EXPECT_EQ(of_pages->reason, "lists of up to 5 pages of each request: the block table is the lists");
}

/// The kernel of the first part of a call on another machine. Lists of rows that are not empty are causal there.
std::string kernel_on(const char* device, const char* line, const Form& form) {
  const Case c = case_of(line);
  const Lists lists = random_lists(c, form, 1);
  const sparse::HostLists host(c.batch, c.cache, lists.view);
  const std::vector<sparse::Part> parts = sparse::parts_of(c.batch, c.cache, c.options, host.lists(), true);
  const Problem problem = problem_of(parts[0].batch, parts[0].cache, parts[0].options);
  const Result<Plan> planned = plan(problem, find_device(device).value(), {.max_query_len = 1});
  return planned.ok() ? std::string(planned->kernel.name()) : planned.status().message();
}

TEST(AttendSparse, TunedKernelsServeListsOnGpus) {
  const char* const gqa = "q=bf16 heads=32:8 d=128 page=16 reqs=4x1@900";
  const char* const mla = "q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=4x1@900";
  const Form slots{.width = 64, .least = 1}, pages{.unit = page, .by_head = true, .width = 8, .least = 1};
  const Form all_heads{.unit = page, .width = 8, .least = 1};
  struct {
    const char *device, *line;
    Form form;
    const char* kernel;
  } const served[] = {
      {"sm90", gqa, pages, "cuda_sm90"},     {"sm90", gqa, slots, "cuda_mma"},          {"sm80", gqa, pages, "cuda_mma"},
      {"sm80", gqa, slots, "cuda_mma"},      {"gfx942", gqa, pages, "hip_matrix"},      {"gfx942", gqa, slots, "hip_matrix"},
      {"sm90", mla, slots, "cuda_sm90_mla"}, {"sm90", mla, all_heads, "cuda_sm90_mla"}, {"sm80", mla, slots, "cuda_generic"},
      {"gfx942", mla, slots, "hip_generic"}, {"avx512", mla, slots, "cpu_avx512"},
  };
  for (const auto& [device, line, form, kernel] : served)
    EXPECT_EQ(kernel_on(device, line, form), kernel) << device << " " << line << " " << name(form.unit);
}

TEST(AttendSparse, RefusesAnotherCallThanThePlannedOne) {
  const Case c = case_of("q=f32 heads=4:2 d=16 page=4 reqs=3x1@40");
  Lists lists = random_lists(c, {.by_head = true, .width = 17}, 1);
  const Result<Sparse> planned = plan_sparse(c.batch, c.cache, c.options, lists.view);
  ASSERT_TRUE(planned.ok());
  Workspace workspace;
  const std::span<std::byte> bytes = workspace.at_least(workspace_bytes(planned.value()));
  const auto refusal = [&](const KeyLists& l, std::span<std::byte> w) {
    return attend_sparse(planned.value(), c.batch, c.cache, c.options, l, w).message();
  };
  EXPECT_THAT(refusal(lists.view, bytes.first(64)), HasSubstr("workspace: 64 bytes"));
  const Lists others = random_lists(c, {.width = 17}, 1);
  EXPECT_THAT(refusal(others.view, bytes), HasSubstr("the plan is of 2 batches in cpu memory, the lists make 1 in cpu memory"));
  // The last list of the last head alone is shorter: nothing is written for the first head either.
  lists.narrow_num_keys.back() = lists.narrow_num_keys.back() > 0 ? lists.narrow_num_keys.back() - 1 : 0;
  std::memset(c.batch.output.data, 0x7E, static_cast<std::size_t>(c.batch.output.num_elements()) * sizeof(float));
  ASSERT_GT(random_lists(c, {.by_head = true, .width = 17}, 1).num_keys.back(), 0);
  EXPECT_THAT(refusal(lists.view, bytes), HasSubstr("plan again"));
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i)
    ASSERT_EQ(static_cast<const unsigned char*>(c.batch.output.data)[i], 0x7E);
}

/// Lists as kernels get them, with a fault, by the steps of attend_sparse() behind its rules.
void attend_faulty(const Case& c, const KeyLists& lists, void (*plant)(KeyLists&, std::vector<sparse::Part>&)) {
  const sparse::HostLists host(c.batch, c.cache, lists);
  KeyLists faulty = host.lists();
  std::vector<sparse::Part> parts;
  plant(faulty, parts);
  if (parts.empty()) parts = sparse::parts_of(c.batch, c.cache, c.options, faulty, false);
  plant(faulty, parts);
  for (const sparse::Part& part : parts) {
    const Result<Plan> planned = plan(part.batch, part.cache, part.options);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    Workspace workspace;
    const Status status =
        attend(planned.value(), part.batch, part.cache, part.options, workspace.at_least(workspace_bytes(planned.value())));
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

std::int64_t& id_at(KeyLists& lists, std::int64_t i) { return static_cast<std::int64_t*>(lists.ids.data)[i]; }
/// Entry j of list i.
std::int64_t& entry_at(KeyLists& lists, std::int64_t i, std::int64_t j) {
  return id_at(lists, i * lists.ids.shape[lists.ids.rank - 1] + j);
}
std::int64_t& keys_at(KeyLists& lists, std::int64_t i) { return static_cast<std::int64_t*>(lists.num_keys.data)[i]; }

constexpr std::int64_t kLists = 13;  ///< rows of the batch below

/// Faults of lists, planted behind the rules. A fault that does not show would be a fault of these tests.
TEST(AttendSparse, PlantedFaultsShow) {
  using Parts = std::vector<sparse::Part>;
  const auto shows = [](const char* name, const Form& form, void (*plant)(KeyLists&, Parts&)) {
    const Case c = case_of("q=f32 heads=4:2 d=16 page=4 reqs=3x1@40,2x5@22 lse=1 sinks=1");
    const Lists lists = random_lists(c, form, 4);
    poison_unlisted(c, lists);
    attend_faulty(c, lists.view, [](KeyLists&, Parts&) {});
    ASSERT_EQ(judged(c, lists), "") << name << ": wrong without the fault";
    attend_faulty(c, lists.view, plant);
    EXPECT_NE(judged(c, lists), "") << name << " did not show";
  };
  const Form pages{.unit = page, .width = 5}, slots{.width = 17}, heads{.by_head = true, .width = 17};
  shows("the list of the neighbour row", slots, [](KeyLists& l, Parts& parts) {
    if (!parts.empty()) return;
    std::swap_ranges(&entry_at(l, 0, 0), &entry_at(l, 1, 0), &entry_at(l, 1, 0));
    std::swap(keys_at(l, 0), keys_at(l, 1));
  });
  shows("-1 read as slot 0", slots, [](KeyLists& l, Parts& parts) {
    for (std::int64_t i = 0; parts.empty() && i < l.ids.num_elements(); ++i) id_at(l, i) = std::max<std::int64_t>(0, id_at(l, i));
    for (std::int64_t i = 0; parts.empty() && i < kLists; ++i) keys_at(l, i) = l.ids.shape[1];
  });
  shows("the fill of the last page ignored", pages, [](KeyLists& l, Parts& parts) {
    for (std::int64_t i = 0; parts.empty() && i < kLists; ++i) keys_at(l, i) = (keys_at(l, i) + 3) / 4 * 4;
  });
  shows("the last entry missed", slots, [](KeyLists& l, Parts& parts) {
    for (std::int64_t i = 0; parts.empty() && i < kLists; ++i) keys_at(l, i) = std::max<std::int64_t>(0, keys_at(l, i) - 1);
  });
  shows("an entry twice", slots, [](KeyLists& l, Parts& parts) {
    for (std::int64_t i = 0; parts.empty() && i < kLists; ++i)
      if (keys_at(l, i) > 1) entry_at(l, i, 1) = entry_at(l, i, 0);
  });
  shows("the lists of another KV head", heads, [](KeyLists& l, Parts& parts) {
    if (parts.empty()) return;
    parts[0].batch.block_table.data = &entry_at(l, 1, 0), parts[0].batch.seq_lens.data = &keys_at(l, 1);
  });
  shows("the keys of another KV head", heads, [](KeyLists&, Parts& parts) {
    if (!parts.empty()) parts[1].cache = parts[0].cache;
  });
  shows("the sinks of another KV head", heads, [](KeyLists&, Parts& parts) {
    if (!parts.empty()) parts[1].options.sinks = parts[0].options.sinks;
  });
  shows("slots read as pages", slots, [](KeyLists& l, Parts& parts) {
    for (std::int64_t i = 0; parts.empty() && i < l.ids.num_elements(); ++i) id_at(l, i) = id_at(l, i) < 0 ? -1 : id_at(l, i) / 4;
  });
  shows("the offset in the page lost", slots, [](KeyLists& l, Parts& parts) {
    for (std::int64_t i = 0; parts.empty() && i < l.ids.num_elements(); ++i) id_at(l, i) -= id_at(l, i) < 0 ? 0 : id_at(l, i) % 4;
  });
  shows("rows of a list causal among its keys", {.owner = request, .width = 17, .least = 5}, [](KeyLists&, Parts& parts) {
    if (!parts.empty()) parts[0].options.causal = true;
  });
}

}  // namespace
}  // namespace quire::test
