// SPDX-License-Identifier: Apache-2.0
// poison_case: spoils exactly what may not be read, judged by a brute-force walk over rows and keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "capture/case_util.h"
#include "quire/contract.hpp"
#include "semantics/index_tensor.h"

namespace quire {
namespace {

using test::float_at;

const char* const kLines[] = {
    "q=f32 heads=4:2 d=7 page=5 reqs=3@10,0@12,1 window=4 lse=1 seed=1",
    "q=bf16 kv=fp8_e4m3fn heads=8:2 d=64 page=16 reqs=20@33/40,1@64/64,5@0/0,7@9 kscale=head vscale=tensor alibi=1 sinks=1",
    "q=f16 kv=fp8_e4m3fnuz heads=3 d=16 page=1 layout=packed reqs=2@3,1@17 window=1 kscale=tensor vscale=head seed=3",
    "q=f16 kv=fp8_e5m2 heads=2:1 d=24 page=8 layout=hnd reqs=3x4@20,2@50 share=2 index=i64 pages=40 seed=9",
    "q=bf16 kv=f16 heads=16:16 d=8 page=3 layout=packed reqs=9@4/6,1@1/1 window=6 lse=1 seed=5",
    "q=bf16 heads=2 d=4 page=4 reqs=none lse=1 alibi=1 sinks=1",
    "q=bf16 heads=2 d=4 page=4 reqs=3x0,0@9/9",
    "q=bf16 heads=4:2 d=8 page=4 reqs=3@10,1@12/12,2x0 pad=5 lse=1 seed=2",
    "q=f32 kv=fp8_e4m3fn heads=2 d=16 page=4 layout=packed reqs=2@3/4,0 pad=4:zero lse=1 kscale=tensor seed=3",
    "q=f32 heads=2:1 d=8 page=4 reqs=1@30,2@9,0@8 share=2 window=6 seed=4",
};

Case make(const std::string& text) { return make_case(parse_problem_line(text).value()).value(); }

class PoisonCase : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Lines, PoisonCase, ::testing::ValuesIn(kLines));

TEST_P(PoisonCase, MadeCasesSatisfyTheContractWhateverThePoison) {
  Case c = make(GetParam());
  EXPECT_TRUE(check(c.batch, c.cache, c.options, Depth::contents).ok()) << check(c.batch, c.cache, c.options).status().message();
  for (const PoisonKind kind : {PoisonKind::finite_garbage, PoisonKind::zero, PoisonKind::nan}) {
    ASSERT_TRUE(poison_case(c, kind).ok());
    EXPECT_TRUE(check(c.batch, c.cache, c.options, Depth::contents).ok())
        << check(c.batch, c.cache, c.options).status().message();
  }
}

/// The hash of a made case that was poisoned, with the table it was made with: that one has pages left of windows, as an engine
/// leaves them.
std::uint64_t hash_but_for_table(Case& c, const Case& original) {
  const Tensor &from = original.batch.block_table, &to = c.batch.block_table;
  for (std::int64_t i = 0; i < to.num_elements(); ++i)
    semantics::store_index(to, i, semantics::load_index(from.data, from.dtype, i));
  return test::hash_of(c);
}

TEST_P(PoisonCase, NanRestoresWhatMakeCaseMade) {
  const Case original = make(GetParam());
  Case c = make(GetParam());
  const std::uint64_t before = test::hash_of(c);
  ASSERT_TRUE(poison_case(c, PoisonKind::nan).ok());
  EXPECT_EQ(hash_but_for_table(c, original), before);
  ASSERT_TRUE(poison_case(c, PoisonKind::finite_garbage).ok());
  if (c.batch.output.num_elements() > 0) {
    EXPECT_NE(test::hash_of(c), before);
  }
  ASSERT_TRUE(poison_case(c, PoisonKind::nan).ok());
  EXPECT_EQ(hash_but_for_table(c, original), before) << "visible data was changed";
}

void expect_garbage(const Tensor& t, std::int64_t i) {
  const float magnitude = std::fabs(float_at(t, i));
  ASSERT_TRUE(std::isfinite(magnitude)) << i;
  ASSERT_GE(magnitude, is_fp8(t.dtype) ? 240.0f : 9900.0f) << i;
}

TEST_P(PoisonCase, GarbageIsExactlyWhereNothingMayBeRead) {
  const Case original = make(GetParam());
  Case c = make(GetParam());
  ASSERT_TRUE(poison_case(c, PoisonKind::finite_garbage).ok());
  const Problem p = problem_of(c.batch, c.cache, c.options);
  const test::Readable may = test::readable(original, p);
  for (const bool keys : {true, false}) {
    const Tensor& cache = keys ? c.cache.k : c.cache.v;
    for (std::int64_t slot = 0; slot < static_cast<std::int64_t>(may.slot.size()); ++slot) {
      for (std::int64_t i = 0; i < p.num_kv_heads * p.head_dim; ++i) {
        const std::int64_t at =
            test::cache_index(c, keys, slot / p.page_size, i / p.head_dim, slot % p.page_size, i % p.head_dim);
        if (may.slot[static_cast<std::size_t>(slot)]) {
          ASSERT_EQ(float_at(cache, at), float_at(keys ? original.cache.k : original.cache.v, at));
        } else {
          expect_garbage(cache, at);
        }
      }
    }
  }
  const std::int64_t row_size = p.num_kv_heads * p.head_dim;
  for (std::int64_t i = 0; i < c.batch.key.num_elements(); ++i) {
    if (may.token[static_cast<std::size_t>(i / row_size)]) {
      ASSERT_EQ(float_at(c.batch.value, i), float_at(original.batch.value, i));
    } else {
      expect_garbage(c.batch.key, i);
    }
  }
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i) expect_garbage(c.batch.output, i);
  for (std::int64_t i = 0; i < c.batch.lse.num_elements(); ++i) expect_garbage(c.batch.lse, i);
}

TEST_P(PoisonCase, ZerosAreExactlyWhereNothingMayBeReadAndOutputsAreNaN) {
  const Case original = make(GetParam());
  Case c = make(GetParam());
  ASSERT_TRUE(poison_case(c, PoisonKind::zero).ok());
  for (const auto& [was, is] : {std::pair{&original.cache.k, &c.cache.k},
                                {&original.cache.v, &c.cache.v},
                                {&original.batch.key, &c.batch.key},
                                {&original.batch.value, &c.batch.value}})
    for (std::int64_t i = 0; i < is->num_elements(); ++i) {
      const float before = float_at(*was, i);
      ASSERT_EQ(float_at(*is, i), std::isnan(before) ? 0.0f : before) << i;
    }
  for (const Tensor* t : {&c.batch.output, &c.batch.lse})
    for (std::int64_t i = 0; i < t->num_elements(); ++i) ASSERT_TRUE(std::isnan(float_at(*t, i)));
  ASSERT_TRUE(poison_case(c, PoisonKind::nan).ok());
  EXPECT_EQ(hash_but_for_table(c, original), test::hash_of(original));
}

/// Entries left of a window and behind the cached keys.
TEST_P(PoisonCase, EntriesThatNobodyReadsAreNoPageOrAPageThatNobodyReads) {
  for (const PoisonKind kind : {PoisonKind::finite_garbage, PoisonKind::zero, PoisonKind::nan}) {
    const Case original = make(GetParam());
    Case c = make(GetParam());
    const Problem p = problem_of(c.batch, c.cache, c.options);
    const test::Readable may = test::readable(c, p);
    ASSERT_TRUE(poison_case(c, kind).ok());
    const std::int64_t size = page_size(c.cache);
    for (std::int64_t i = 0; i < c.batch.block_table.num_elements(); ++i) {
      const std::int64_t page = test::index_at(c.batch.block_table, i);
      if (may.entry[static_cast<std::size_t>(i)]) {
        EXPECT_EQ(page, test::index_at(original.batch.block_table, i));
        continue;
      }
      const std::int64_t width = c.batch.block_table.shape[1];
      const bool behind = i % width * size >= p.reqs[static_cast<std::size_t>(i / width)].cached_len;
      if (kind == PoisonKind::nan && behind) {
        EXPECT_EQ(page, 2147480000) << "entry " << i;
        continue;
      }
      ASSERT_TRUE(page >= 0 && page < num_pages(c.cache)) << "entry " << i;
      for (std::int64_t at = 0; at < size; ++at) EXPECT_FALSE(may.slot[static_cast<std::size_t>(page * size + at)]);
    }
  }
}

TEST(PoisonCaseStrides, AreHonoured) {
  // K and V interleaved in one allocation: page, {k, v}, token, head, dim.
  Case c = make("q=f32 heads=1 d=4 page=2 reqs=1@2");
  const std::int64_t pages = num_pages(c.cache);
  auto* both = reinterpret_cast<float*>(c.allocate(static_cast<std::size_t>(pages) * 16 * sizeof(float)));
  for (std::int64_t page = 0; page < pages; ++page)
    for (std::int64_t i = 0; i < 8; ++i) {
      both[page * 16 + i] = float_at(c.cache.k, page * 8 + i);
      both[page * 16 + 8 + i] = float_at(c.cache.v, page * 8 + i);
    }
  const Tensor k = c.cache.k;
  c.cache.k.data = both;
  c.cache.v.data = both + 8;
  c.cache.k.stride[0] = c.cache.v.stride[0] = 16;
  ASSERT_TRUE(poison_case(c, PoisonKind::finite_garbage).ok());
  std::int64_t kept = 0;
  for (std::int64_t page = 0; page < pages; ++page)
    for (std::int64_t i = 0; i < 8; ++i) {
      const float before = float_at(k, page * 8 + i);
      if (std::isnan(before)) {
        EXPECT_EQ(std::fabs(both[page * 16 + i]), 1e4f);
      } else {
        EXPECT_EQ(both[page * 16 + i], before);
        ++kept;
      }
    }
  EXPECT_EQ(kept, 3 * 4);
}

TEST(PoisonCaseRefuses, ABrokenTable) {
  Case c = make("q=f32 heads=1 d=4 page=2 reqs=1@2");
  static_cast<std::int32_t*>(c.batch.block_table.data)[0] = 99;
  const Status s = poison_case(c, PoisonKind::nan);
  EXPECT_EQ(s.code(), Code::contract_violation);
  EXPECT_THAT(s.message(), ::testing::HasSubstr("block_table[0][0]"));
}

}  // namespace
}  // namespace quire
