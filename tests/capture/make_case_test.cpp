// SPDX-License-Identifier: Apache-2.0
// make_case: the same bytes everywhere, N(0,1) where a kernel reads, poison where it must not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "capture/case_util.h"

namespace quire {
namespace {

using test::float_at;
using test::index_at;
using ::testing::HasSubstr;

Case make(const std::string& text) {
  Result<ProblemLine> line = parse_problem_line(text);
  EXPECT_TRUE(line.ok()) << line.status().message();
  Result<Case> c = make_case(line.value());
  EXPECT_TRUE(c.ok()) << c.status().message();
  return std::move(c).value();
}

Problem problem(const std::string& text) { return parse_problem_line(text).value().problem; }

const char* const kLines[] = {
    "q=f32 heads=4:2 d=7 page=5 reqs=3@10,0@12,1 window=4 lse=1 seed=1",
    "q=bf16 kv=fp8_e4m3fn heads=8:2 d=64 page=16 reqs=20@33/40,1@64/64,5@0/0,7@9 kscale=head vscale=tensor alibi=1 sinks=1",
    "q=f16 kv=fp8_e4m3fnuz heads=3 d=16 page=1 layout=packed reqs=2@3,1@17 window=1 kscale=tensor vscale=head seed=3",
    "q=f16 kv=fp8_e5m2 heads=2:1 d=24 page=8 layout=hnd reqs=3x4@20,2@50 share=2 index=i64 pages=40 seed=9",
    "q=bf16 kv=f16 heads=16:16 d=8 page=3 layout=packed reqs=9@4/6,1@1/1 window=6 lse=1 seed=5",
    "q=f32 kv=fp8_e5m2fnuz heads=1 d=1 page=544 reqs=1@600 window=2",
    "q=bf16 heads=2 d=4 page=4 reqs=none lse=1 alibi=1 sinks=1",
    "q=bf16 heads=2 d=4 page=4 reqs=3x0,0@9/9",
    "q=bf16 heads=4:2 d=8 page=4 reqs=3@10,1@12/12,2x0 pad=5 lse=1 seed=2",
    "q=f32 kv=fp8_e4m3fn heads=2 d=16 page=4 layout=packed reqs=2@3/4,0 pad=4:zero lse=1 kscale=tensor seed=3",
};

class MakeCase : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Lines, MakeCase, ::testing::ValuesIn(kLines));

TEST_P(MakeCase, PoisonIsExactlyWhereNothingMayBeRead) {
  const Case c = make(GetParam());
  const Problem p = problem(GetParam());
  const test::Readable may = test::readable(c, p);
  for (const bool keys : {true, false}) {
    const Tensor& cache = keys ? c.cache.k : c.cache.v;
    for (std::int64_t slot = 0; slot < static_cast<std::int64_t>(may.slot.size()); ++slot) {
      for (std::int64_t h = 0; h < p.num_kv_heads; ++h) {
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
          const float x = float_at(cache, test::cache_index(c, keys, slot / p.page_size, h, slot % p.page_size, d));
          ASSERT_EQ(std::isfinite(x), may.slot[static_cast<std::size_t>(slot)])
              << "slot " << slot << " head " << h << " dim " << d;
          ASSERT_EQ(std::isnan(x), !may.slot[static_cast<std::size_t>(slot)]);
        }
      }
    }
  }
  for (const Tensor* rows : {&c.batch.key, &c.batch.value}) {
    const std::int64_t row_size = p.num_kv_heads * p.head_dim;
    for (std::int64_t i = 0; i < rows->num_elements(); ++i)
      ASSERT_EQ(std::isfinite(float_at(*rows, i)), may.token[static_cast<std::size_t>(i / row_size)]) << i;
  }
  const std::int64_t of_requests = p.num_tokens() * p.num_q_heads * p.head_dim;
  EXPECT_EQ(c.batch.query.num_elements(), of_requests + p.num_padding_rows * p.num_q_heads * p.head_dim);
  for (std::int64_t i = 0; i < c.batch.query.num_elements(); ++i)
    ASSERT_EQ(std::isfinite(float_at(c.batch.query, i)), i < of_requests) << i;
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i) ASSERT_TRUE(std::isnan(float_at(c.batch.output, i)));
  for (std::int64_t i = 0; i < c.batch.lse.num_elements(); ++i) ASSERT_TRUE(std::isnan(float_at(c.batch.lse, i)));
}

TEST_P(MakeCase, LengthsAndTablesSayWhatTheLineSays) {
  const Case c = make(GetParam());
  const ProblemLine line = parse_problem_line(GetParam()).value();
  const Problem& p = line.problem;
  EXPECT_EQ(problem_of(c.batch, c.cache, c.options).reqs, p.reqs);
  EXPECT_EQ(c.notes.at("problem"), to_string(line));
  EXPECT_EQ(num_pages(c.cache), line.num_pages != 0 ? line.num_pages : num_pages(c.cache));
  const std::int64_t width = c.batch.block_table.shape[1];
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    const std::int64_t used = (p.reqs[r].cached_len + p.page_size - 1) / p.page_size;
    ASSERT_LT(used, width) << "each row ends in at least one poisoned entry";
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t page = index_at(c.batch.block_table, static_cast<std::int64_t>(r) * width + j);
      if (j >= used) {
        EXPECT_EQ(page, 2147480000);
      } else {
        EXPECT_TRUE(page >= 0 && page < num_pages(c.cache)) << page;
      }
    }
  }
}

TEST_P(MakeCase, ProblemSurvives) {
  const Case c = make(GetParam());
  Problem expected = problem(GetParam());
  // One head cannot tell a per-head scale from a per-tensor one.
  EXPECT_EQ(problem_of(c.batch, c.cache, c.options), expected);
}

TEST_P(MakeCase, SlotsAreDistinctAndMatchTheTable) {
  const Case c = make(GetParam());
  const Problem p = problem(GetParam());
  std::set<std::int64_t> slots;
  std::int64_t token = 0;
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    for (std::int64_t position = p.reqs[r].context_len; position < p.reqs[r].seq_len(); ++position, ++token) {
      const std::int64_t slot = index_at(c.batch.slot_mapping, token);
      EXPECT_TRUE(slots.insert(slot).second) << "slot " << slot << " is given twice";
      EXPECT_LT(slot, num_pages(c.cache) * p.page_size);
      if (position >= p.reqs[r].cached_len) continue;
      const std::int64_t entry = static_cast<std::int64_t>(r) * c.batch.block_table.shape[1] + position / p.page_size;
      EXPECT_EQ(slot, index_at(c.batch.block_table, entry) * p.page_size + position % p.page_size);
    }
  }
  for (; token < p.num_tokens() + p.num_padding_rows; ++token) EXPECT_EQ(index_at(c.batch.slot_mapping, token), -1) << token;
  EXPECT_EQ(token, c.batch.slot_mapping.shape[0]);
}

TEST_P(MakeCase, IsDeterministic) {
  EXPECT_EQ(test::hash_of(make(GetParam())), test::hash_of(make(GetParam())));
  EXPECT_EQ(test::hash_of(make(GetParam())), test::hash_of(make(to_string(parse_problem_line(GetParam()).value()))));
}

// Fixed so that a capture or a bug report means the same data on every compiler and in every release.
TEST(MakeCaseBytes, AreFixedForEver) {
  EXPECT_EQ(test::hash_of(make(kLines[0])), 8255288322049268992u);
  EXPECT_EQ(test::hash_of(make(kLines[1])), 6399772591257951754u);
  EXPECT_EQ(test::hash_of(make(kLines[2])), 10374144422626899968u);
  EXPECT_EQ(test::hash_of(make(kLines[3])), 13360190671653058456u);
}

struct Moments {
  double mean = 0, deviation = 0, largest = 0;
};
template <typename Keep>
Moments moments(const Tensor& t, Keep&& keep) {
  double sum = 0, squares = 0, largest = 0;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < t.num_elements(); ++i) {
    if (!keep(i)) continue;
    const double x = float_at(t, i);
    sum += x;
    squares += x * x;
    largest = std::max(largest, std::fabs(x));
    ++count;
  }
  const double n = static_cast<double>(count);
  return {sum / n, std::sqrt(squares / n), largest};
}

TEST(MakeCaseData, IsStandardNormalWithEveryFourthHeadPeaky) {
  const Case c = make("q=f32 heads=8:2 d=64 page=16 reqs=400 seed=2");
  for (std::int64_t head = 0; head < 8; ++head) {
    const Moments m = moments(c.batch.query, [&](std::int64_t i) { return i / 64 % 8 == head; });
    const double scale = (head + 2) % 4 == 3 ? 8 : 1;  // peaky: (head + seed) % 4 == 3
    // 25600 samples: the standard error of the mean is 1/160, that of the deviation 1/226; five of them.
    EXPECT_NEAR(m.mean / scale, 0, 5.0 / 160) << head;
    EXPECT_NEAR(m.deviation / scale, 1, 5.0 / 226) << head;
    EXPECT_GT(m.largest / scale, 3) << head;
  }
  for (const Tensor* t : {&c.cache.k, &c.cache.v}) {
    const Moments m = moments(*t, [&](std::int64_t i) { return !std::isnan(float_at(*t, i)); });
    EXPECT_NEAR(m.mean, 0, 5.0 / 226);
    EXPECT_NEAR(m.deviation, 1, 5.0 / 320);
  }
}

TEST(MakeCaseData, TinyIsUniformWithZerosWhereNothingMayBeRead) {
  const Case c = make("q=f32 heads=8:2 d=64 page=16 reqs=400 data=tiny lse=1 seed=2");
  const auto all = [](std::int64_t) { return true; };
  for (const Tensor* t : {&c.batch.query, &c.cache.k, &c.cache.v}) {
    const Moments m = moments(*t, [&](std::int64_t i) { return float_at(*t, i) != 0; });
    // Uniform in +-1: deviation 1/sqrt(3); 51200 samples or more, five standard errors.
    EXPECT_NEAR(m.mean, 0, 1e-3 * 5 / std::sqrt(3 * 51200.0));
    EXPECT_NEAR(m.deviation, 1e-3 / std::sqrt(3.0), 1e-3 * 5 / 226);
    EXPECT_GT(m.largest, 0.99e-3);
    EXPECT_LE(m.largest, 1e-3);
    EXPECT_EQ(moments(*t, all).largest, m.largest) << "no NaN anywhere";
  }
  for (const Tensor* t : {&c.batch.output, &c.batch.lse})
    for (std::int64_t i = 0; i < t->num_elements(); ++i) ASSERT_TRUE(std::isnan(float_at(*t, i)));
}

TEST(MakeCaseData, TinyIsFlushedByAnUnscaledE4m3Cache) {
  const Case c = make("q=f16 kv=fp8_e4m3fn heads=2 d=64 page=16 reqs=200 data=tiny");
  std::int64_t zeros = 0;
  for (std::int64_t i = 0; i < 200 * 128; ++i) zeros += float_at(c.cache.k, i) == 0 ? 1 : 0;
  EXPECT_GT(zeros, 200 * 128 * 0.9);
}

TEST(MakeCaseData, StreamsDifferBetweenSeedsKindsAndRequests) {
  const Case a = make("q=f32 heads=1 d=4 page=2 reqs=2x2 seed=1");
  const Case b = make("q=f32 heads=1 d=4 page=2 reqs=2x2 seed=2");
  std::set<float> values;
  for (const Case* c : {&a, &b})
    for (std::int64_t i = 0; i < 16; ++i) values.insert(float_at(c->batch.query, i));
  for (std::int64_t r = 0; r < 2; ++r) {
    const std::int64_t page = index_at(a.batch.block_table, r * a.batch.block_table.shape[1]);
    for (std::int64_t i = 0; i < 8; ++i) {
      values.insert(float_at(a.cache.k, page * 8 + i));
      values.insert(float_at(a.cache.v, page * 8 + i));
    }
  }
  EXPECT_EQ(values.size(), 64u);
}

/// Real K or V element of one request, wherever the case holds it.
float logical(const Case& c, const Problem& p, bool keys, std::int64_t r, std::int64_t position, std::int64_t h, std::int64_t d) {
  if (position >= p.reqs[static_cast<std::size_t>(r)].cached_len) {
    std::int64_t row = position - p.reqs[static_cast<std::size_t>(r)].context_len;
    for (std::int64_t i = 0; i < r; ++i) row += p.reqs[static_cast<std::size_t>(i)].query_len;
    return float_at(keys ? c.batch.key : c.batch.value, (row * p.num_kv_heads + h) * p.head_dim + d);
  }
  const std::int64_t page = index_at(c.batch.block_table, r * c.batch.block_table.shape[1] + position / p.page_size);
  return float_at(keys ? c.cache.k : c.cache.v, test::cache_index(c, keys, page, h, position % p.page_size, d));
}

TEST(MakeCaseData, DoesNotDependOnLayoutPagesOrChunking) {
  const std::string a_text = "q=f32 heads=2 d=8 page=16 reqs=4@9,20@10 seed=4";
  const Case a = make(a_text);
  const Problem pa = problem(a_text);
  for (const std::string b_text : {"q=f32 heads=2 d=8 page=5 layout=hnd reqs=4@9,20@10 seed=4 pages=77",
                                   "q=f32 heads=2 d=8 page=1 layout=packed reqs=13@0,30@0 seed=4 index=i64",
                                   "q=f32 heads=2 d=8 page=3 reqs=4@9/9,20@10/17 seed=4"}) {
    const Case b = make(b_text);
    const Problem pb = problem(b_text);
    for (std::int64_t r = 0; r < 2; ++r)
      for (std::int64_t position = 0; position < pa.reqs[static_cast<std::size_t>(r)].seq_len(); ++position)
        for (std::int64_t hd = 0; hd < 16; ++hd)
          for (const bool keys : {true, false})
            ASSERT_EQ(logical(a, pa, keys, r, position, hd / 8, hd % 8), logical(b, pb, keys, r, position, hd / 8, hd % 8))
                << b_text;
    // Last query row of request 0 sits at position 12 in all of them.
    const std::int64_t last = (pb.reqs[0].query_len - 1) * 16;
    for (std::int64_t hd = 0; hd < 16; ++hd) EXPECT_EQ(float_at(a.batch.query, 3 * 16 + hd), float_at(b.batch.query, last + hd));
  }
}

TEST(MakeCasePages, AreShuffledAndSharedOnlyWhereAsked) {
  const Case c = make("q=f32 heads=1 d=1 page=4 reqs=2x4@36 pages=64");
  std::set<std::int64_t> pages;
  bool in_order = true;
  for (std::int64_t r = 0; r < 2; ++r)
    for (std::int64_t j = 0; j < 10; ++j) {
      const std::int64_t page = index_at(c.batch.block_table, r * 11 + j);
      in_order = in_order && page == r * 10 + j;
      pages.insert(page);
    }
  EXPECT_FALSE(in_order);
  EXPECT_EQ(pages.size(), 20u);

  const Case shared = make("q=f32 heads=1 d=1 page=4 reqs=3x4@36,1@7 share=3");
  std::set<std::int64_t> distinct;
  for (std::int64_t r = 0; r < 4; ++r)
    for (std::int64_t j = 0; j < (r < 3 ? 10 : 2); ++j) distinct.insert(index_at(shared.batch.block_table, r * 11 + j));
  EXPECT_EQ(distinct.size(), 3u + 3 * 7 + 1) << "three common pages; the short request has one full page of context";
  for (std::int64_t j = 0; j < 3; ++j)
    EXPECT_EQ(index_at(shared.batch.block_table, j), index_at(shared.batch.block_table, 11 + j));
}

TEST(MakeCase, SharedPagesFormATree) {
  const Case c = make("q=f32 heads=1 d=1 page=4 reqs=5x1@40 share=2,4x3,2x1");
  const auto page = [&](std::int64_t r, std::int64_t j) { return index_at(c.batch.block_table, r * 12 + j); };
  const std::vector<std::vector<std::int64_t>> owners[] = {{{0, 1, 2, 3, 4}}, {{0, 1, 2, 3}, {4}}, {{0, 1}, {2, 3}, {4}}};
  std::set<std::int64_t> distinct;
  for (std::int64_t r = 0; r < 5; ++r)
    for (std::int64_t j = 0; j < 11; ++j) distinct.insert(page(r, j));
  EXPECT_EQ(distinct.size(), 2u + 2 * 3 + 3 * 1 + 5 * 5);
  for (std::int64_t j = 0; j < 6; ++j)
    for (const auto& group : owners[j < 2 ? 0 : j < 5 ? 1 : 2])
      for (const std::int64_t r : group) EXPECT_EQ(page(r, j), page(group[0], j)) << r << " " << j;
  EXPECT_NE(page(0, 2), page(4, 2));
  EXPECT_NE(page(0, 5), page(2, 5));
  const auto value = [&](std::int64_t r, std::int64_t j) { return static_cast<const float*>(c.cache.v.data)[page(r, j) * 4]; };
  EXPECT_NE(value(0, 5), value(2, 5));
  EXPECT_NE(value(0, 1), value(0, 2));
  EXPECT_TRUE(check(c.batch, c.cache, c.options).ok());
}

TEST(MakeCaseScales, AreAmaxOverLargestFinite) {
  struct Expectation {
    const char* type;
    float largest;
  };
  for (const Expectation e :
       {Expectation{"fp8_e4m3fn", 448}, {"fp8_e4m3fnuz", 240}, {"fp8_e5m2", 57344}, {"fp8_e5m2fnuz", 57344}, {"f16", 1}}) {
    const std::string text = std::string("q=f16 heads=3 d=32 page=4 reqs=50 kscale=head vscale=tensor kv=") + e.type;
    const Case c = make(text);
    ASSERT_EQ(c.cache.k_scale.rank, 1);
    ASSERT_EQ(c.cache.v_scale.rank, 0);
    for (std::int64_t h = 0; h < 3; ++h) {
      const Moments m =
          moments(c.cache.k, [&](std::int64_t i) { return i / 32 % 3 == h && !std::isnan(float_at(c.cache.k, i)); });
      EXPECT_EQ(m.largest, e.largest) << text;
      const double factor = h == 0 ? 1 : h == 1 ? 2 : 0.5;
      EXPECT_NEAR(m.deviation * float_at(c.cache.k_scale, h), factor, 0.12 * factor) << text;
    }
    const Moments v = moments(c.cache.v, [&](std::int64_t i) { return !std::isnan(float_at(c.cache.v, i)); });
    EXPECT_EQ(v.largest, e.largest);
    EXPECT_NEAR(v.deviation * float_at(c.cache.v_scale, 0), 2, 0.2) << "V is twice as large as K, so swapped scales show";
  }
}

TEST(MakeCaseOptions, SlopesAreBloomsWithEveryThirdNegated) {
  const Case four = make("q=f32 heads=4 d=1 page=1 reqs=1 alibi=1");
  const float expected4[] = {0.25f, 0.0625f, -0.015625f, 0.00390625f};
  for (int h = 0; h < 4; ++h) EXPECT_EQ(float_at(four.options.alibi_slopes, h), expected4[h]);
  const Case twelve = make("q=f32 heads=12 d=1 page=1 reqs=1 alibi=1");
  for (int h = 0; h < 12; ++h) {
    const double slope = h < 8 ? std::pow(2, -(h + 1)) : std::pow(2, -0.5 * (2 * (h - 8) + 1));
    EXPECT_FLOAT_EQ(float_at(twelve.options.alibi_slopes, h), static_cast<float>(h % 3 == 2 ? -slope : slope)) << h;
  }
}

TEST(MakeCaseOptions, OneSinkDominates) {
  const Case c = make("q=f32 heads=8 d=1 page=1 reqs=1 sinks=1 seed=3");  // head 0 is peaky, so head 1 gets it
  EXPECT_EQ(float_at(c.options.sinks, 1), 12);
  for (int h = 0; h < 8; ++h) EXPECT_TRUE(h == 1 || std::fabs(float_at(c.options.sinks, h)) < 12);
}

TEST(MakeCaseRefuses, TooFewPages) {
  const Result<Case> c = make_case(parse_problem_line("q=f32 heads=1 d=1 page=4 reqs=2x9 pages=5").value());
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), Code::invalid_argument);
  EXPECT_THAT(c.status().message(), HasSubstr("pages=5: the requests need at least 6 pages"));
}

TEST(MakeCaseRefuses, MoreThanMemory) {
  for (const char* text :
       {"q=f32 heads=2147483647:1 d=2147483647 page=1 reqs=1", "q=bf16 heads=1 d=128 page=16 reqs=1 pages=2147483647",
        "q=f32 heads=2147483647 d=2147483647 page=2147483647 reqs=1000x0 pages=2147483647"}) {
    const Result<Case> c = make_case(parse_problem_line(text).value());
    ASSERT_FALSE(c.ok()) << text;
    EXPECT_EQ(c.status().code(), Code::unsupported);
    EXPECT_THAT(c.status().message(), HasSubstr("GiB"));
  }
}

TEST(MakeCaseRefuses, WhatTheParserRefuses) {
  ProblemLine line = parse_problem_line("q=f32 heads=1 d=4 page=4 reqs=1").value();
  for (auto spoil :
       {+[](ProblemLine& l) { l.problem.num_kv_heads = 0; }, +[](ProblemLine& l) { l.problem.head_dim = -1; },
        +[](ProblemLine& l) { l.problem.q_dtype = DType::i32; }, +[](ProblemLine& l) { l.problem.reqs[0].cached_len = 9; },
        +[](ProblemLine& l) { l.problem.k_scale = static_cast<ScaleKind>(7); },
        +[](ProblemLine& l) { l.index_dtype = DType::f32; }, +[](ProblemLine& l) { l.problem.page_size = 0; }}) {
    ProblemLine bad = line;
    spoil(bad);
    EXPECT_FALSE(make_case(bad).ok());
  }
}

TEST(MakeCaseMemory, IsAlignedAndOwned) {
  Case c = make(kLines[1]);
  for (const auto& [name, t] : test::tensors_of(c)) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data) % 64, 0u) << name;
  const void* before = c.batch.query.data;
  const Case moved = std::move(c);
  EXPECT_EQ(moved.batch.query.data, before);
}

}  // namespace
}  // namespace quire
