// SPDX-License-Identifier: Apache-2.0
// What happened to a cache is planted row by row, over types, layouts, page sizes and head counts, and asked for in words.
//
// Rows are moved by the strides of the made case; nothing of src/caches is used.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "quire/tools/capture.hpp"
#include "quire/tools/compare_caches.hpp"
#include "semantics/index_tensor.h"
#include "semantics/layout.h"
#include "text/formatted.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

using Bytes = std::vector<std::byte>;

/// A made case whose rows can be read and written as bytes, own scales included.
class Made {
 public:
  explicit Made(const std::string& line) : result_(make_case(parse_problem_line(line).value())), c(result_.value()) {}

  std::int64_t heads() const { return num_kv_heads(c.cache); }
  std::int64_t size() const { return page_size(c.cache); }
  std::int64_t length(std::int64_t r) const { return semantics::index_at(c.batch.seq_lens, r); }
  std::int64_t page(std::int64_t r, std::int64_t column) const { return semantics::index_at(c.batch.block_table, r, column); }
  /// A page that no request lists.
  std::int64_t spare_page() const {
    std::vector<bool> listed(static_cast<std::size_t>(num_pages(c.cache)));
    for (std::int64_t r = 0; r < c.batch.seq_lens.shape[0]; ++r)
      for (std::int64_t j = 0; j * size() < length(r); ++j) listed[static_cast<std::size_t>(page(r, j))] = true;
    return std::find(listed.begin(), listed.end(), false) - listed.begin();
  }
  CacheContents contents() const { return contents_of(c.batch, c.cache); }

  /// Calls visit(to, element bytes) for each byte range of a row of a page.
  template <typename Visit>
  void each(bool k, std::int64_t page, std::int64_t offset, std::int64_t head, Visit&& visit) const {
    const KVCache& cache = c.cache;
    const Tensor &codes = k ? cache.k : cache.v, &scale = k ? cache.k_scale : cache.v_scale,
                 &blocks = k ? cache.k_block_scale : cache.v_block_scale;
    const semantics::KvStrides s = k ? semantics::k_strides(cache) : semantics::v_strides(cache);
    const std::int64_t row = s.row(page, head, offset), item = itemsize(codes.dtype),
                       dims = k ? head_dim(cache) : v_head_dim(cache);
    const auto at = [](const Tensor& t, std::int64_t byte) { return static_cast<std::byte*>(t.data) + byte; };
    if (is_four_bit(codes.dtype))
      for (std::int64_t d = 0; d < dims / 2; ++d) visit(at(codes, row / 2 + d), 1);
    else
      for (std::int64_t d = 0; d < dims; ++d) visit(at(codes, (row + s.element(d)) * item), item);
    if (scale.rank == 3) visit(at(scale, 4 * (page * scale.stride[0] + offset * scale.stride[1] + head * scale.stride[2])), 4);
    for (std::int64_t b = 0; blocks.present() && b < blocks.shape[3]; ++b)
      visit(at(blocks, page * blocks.stride[0] + offset * blocks.stride[1] + head * blocks.stride[2] + b * blocks.stride[3]), 1);
  }
  Bytes get(bool k, std::int64_t page, std::int64_t offset, std::int64_t head) const {
    Bytes row;
    each(k, page, offset, head, [&](const std::byte* from, std::int64_t n) { row.insert(row.end(), from, from + n); });
    return row;
  }
  void set(bool k, std::int64_t page, std::int64_t offset, std::int64_t head, const Bytes& row) {
    std::size_t next = 0;
    each(k, page, offset, head, [&](std::byte* to, std::int64_t n) {
      std::memcpy(to, row.data() + next, static_cast<std::size_t>(n));
      next += static_cast<std::size_t>(n);
    });
  }
  Bytes at(bool k, std::int64_t r, std::int64_t p, std::int64_t head) const {
    return get(k, page(r, p / size()), p % size(), head);
  }
  void put(bool k, std::int64_t r, std::int64_t p, std::int64_t head, const Bytes& row) {
    set(k, page(r, p / size()), p % size(), head, row);
  }
  /// Calls visit(k, request, position, head) for every row that a request has.
  template <typename Visit>
  void each_row(Visit&& visit) const {
    for (std::int64_t r = 0; r < c.batch.seq_lens.shape[0]; ++r)
      for (std::int64_t p = 0; p < length(r); ++p)
        for (std::int64_t h = 0; h < heads(); ++h)
          for (const bool k : {true, false}) visit(k, r, p, h);
  }

 private:
  Result<Case> result_;

 public:
  Case& c;
};

CacheComparison compared(const CacheContents& a, const CacheContents& b) {
  const Result<CacheComparison> result = compare_caches(a, b);
  EXPECT_TRUE(result.ok()) << result.status().message();
  if (!result.ok()) return {};
  EXPECT_EQ(nlohmann::json::parse(to_json(result.value()))["rows"], result->rows);
  std::int64_t rows = 0;
  for (const CachePart& part : result->parts) rows += part.rows;
  EXPECT_EQ(rows, result->rows);
  return result.value();
}
std::string lines(const CacheComparison& c) { return to_string(c); }

/// Something that happens to a cache, and the words for it.
struct Planted {
  const char* name;
  std::function<void(const Made& a, Made& b)> plant;
  std::function<std::string(const Made& a)> summary;
};

std::function<std::string(const Made&)> says(const char* text) {
  return [text](const Made&) { return std::string(text); };
}

void fill_page(Made& b, std::int64_t page, std::byte value) {
  for (std::int64_t o = 0; o < b.size(); ++o)
    for (std::int64_t h = 0; h < b.heads(); ++h)
      for (const bool k : {true, false}) b.set(k, page, o, h, Bytes(b.get(k, page, o, h).size(), value));
}

void copy_page(const Made& a, std::int64_t from, Made& b, std::int64_t to) {
  for (std::int64_t o = 0; o < b.size(); ++o)
    for (std::int64_t h = 0; h < b.heads(); ++h)
      for (const bool k : {true, false}) b.set(k, to, o, h, a.get(k, from, o, h));
}

const std::vector<Planted>& planted() {
  static const std::vector<Planted> all = {
      {"nothing", [](const Made&, Made&) {}, says("same     all")},
      {"k_and_v_swapped",
       [](const Made& a, Made& b) { a.each_row([&](bool k, auto r, auto p, auto h) { b.put(k, r, p, h, a.at(!k, r, p, h)); }); },
       says("all rows: K and V are swapped")},
      {"heads_rotated",
       [](const Made& a, Made& b) {
         a.each_row([&](bool k, auto r, auto p, auto h) { b.put(k, r, p, (h + 1) % a.heads(), a.at(k, r, p, h)); });
       },
       says("rows: head")},
      {"shifted",
       [](const Made& a, Made& b) {
         a.each_row([&](bool k, auto r, auto p, auto h) { b.put(k, r, (p + 1) % a.length(r), h, a.at(k, r, p, h)); });
       },
       says("rows: moved by 1 position")},
      {"only_k_shifted",
       [](const Made& a, Made& b) {
         a.each_row([&](bool k, auto r, auto p, auto h) {
           if (k) b.put(k, r, (p + 2) % a.length(r), h, a.at(k, r, p, h));
         });
       },
       says("of K: moved by 2 positions")},
      {"pages_permuted",
       [](const Made& a, Made& b) {
         for (std::int64_t j = 0; j < 3; ++j) copy_page(a, a.page(0, j), b, a.page(0, (j + 1) % 3));
       },
       says("whole pages stand in another order")},
      {"page_zeroed", [](const Made& a, Made& b) { fill_page(b, a.page(1, 1), std::byte{0}); }, says("zeros in B")},
      {"requests_exchanged",
       [](const Made& a, Made& b) {
         a.each_row([&](bool k, auto r, auto p, auto h) {
           if (p < a.length(1 - r)) b.put(k, 1 - r, p, h, a.at(k, r, p, h));
         });
       },
       says("in request")},
      {"in_a_page_that_nobody_lists",
       [](const Made& a, Made& b) {
         copy_page(a, a.page(0, 0), b, a.spare_page());
         fill_page(b, a.page(0, 0), std::byte{0});
       },
       says("in pages that B's table does not list")},
      {"a_page_read_in_another_order",
       [](const Made& a, Made& b) {
         const std::int64_t n = a.size(), heads = a.heads();
         for (std::int64_t r = 0; r < 2; ++r)
           for (std::int64_t j = 0; j * n < a.length(r); ++j)
             for (std::int64_t i = 0; i < n * heads; ++i)
               for (const bool k : {true, false})
                 b.set(k, a.page(r, j), i / heads, i % heads, a.get(k, a.page(r, j), i % n, i / n));
       },
       [](const Made& a) {
         return formatted("hnd read as nhd in each page (heads 0-{} of {} tokens as {} tokens of {}", a.heads() - 1, a.size(),
                          a.size(), a.heads());
       }},
      {"rows_of_another_cache",
       [](const Made& a, Made& b) {
         for (const bool k : {true, false})
           for (std::int64_t p = 5; p < 9; ++p) {
             Bytes row = a.at(k, 1, p, 0);
             std::reverse(row.begin(), row.end());
             row[0] ^= std::byte{0x35};
             b.put(k, 1, p, 0, row);
           }
       },
       says("in B")},
  };
  return all;
}

struct Form {
  const char* types;
  int page, heads;
  const char* layout;
};

class Fates : public testing::TestWithParam<std::tuple<std::size_t, Form>> {};

TEST_P(Fates, AreSaidInWords) {
  const auto& [which, form] = GetParam();
  const Planted& fault = planted()[which];
  const std::string line = formatted("{} heads={}:{} d=64 page={} layout={} reqs=1@{},1@{}", form.types, 2 * form.heads,
                                     form.heads, form.page, form.layout, form.page * 3 + form.page / 2, form.page * 2 + 3);
  const Made a(line);
  Made b(line);
  fault.plant(a, b);
  const CacheComparison c = compared(a.contents(), b.contents());
  EXPECT_EQ(c.same, which == 0);
  std::string text;
  for (const std::string& s : c.summary) text += s + "\n";
  if (which == 0) text = lines(c);
  EXPECT_THAT(text, HasSubstr(fault.summary(a))) << lines(c);
  for (std::size_t begin = 0, end; begin < lines(c).size(); begin = end + 1) {
    end = lines(c).find('\n', begin);
    EXPECT_LE(end - begin, 80u) << lines(c).substr(begin, end - begin);
  }
}

constexpr Form kForms[] = {{"q=f32", 4, 2, "nhd"},
                           {"q=f32", 16, 4, "hnd"},
                           {"q=f16", 16, 2, "packed"},
                           {"q=bf16", 8, 4, "nhd"},
                           {"q=bf16 kv=fp8_e4m3fn kscale=head vscale=tensor", 16, 2, "nhd"},
                           {"q=f16 kv=fp8_e5m2 kscale=token vscale=token", 8, 4, "hnd"},
                           {"q=bf16 kv=i8 kscale=token vscale=token", 16, 4, "packed"},
                           {"q=bf16 kv=nvfp4", 16, 2, "nhd"},
                           {"q=bf16 kv=mxfp4", 8, 4, "hnd"}};

INSTANTIATE_TEST_SUITE_P(CompareCaches, Fates,
                         testing::Combine(testing::Range(std::size_t{0}, planted().size()), testing::ValuesIn(kForms)),
                         [](const auto& made) {
                           return formatted("{}_{}", planted()[std::get<0>(made.param)].name, made.index);
                         });

// --- types that differ ------------------------------------------------------------------------------------------------------

/// Two made cases of one seed hold the same numbers, each rounded to its type.
class Types : public testing::TestWithParam<const char*> {};

TEST_P(Types, OfTheSameNumbersAreTheSameRounded) {
  const auto line = [](const char* type) { return formatted("{} heads=4:2 d=64 page=16 reqs=1@40,1@30", type); };
  Made a(line("q=f32")), b(line(GetParam()));
  const CacheComparison c = compared(a.contents(), b.contents());
  EXPECT_TRUE(c.same) << lines(c);
  EXPECT_THAT(lines(c), HasSubstr("identical"));
  // A row that was rounded otherwise is within a step of the type, and no other row.
  Bytes row = b.at(true, 0, 7, 1);
  row[2] ^= std::byte{1};
  b.put(true, 0, 7, 1, row);
  const CacheComparison other = compared(a.contents(), b.contents());
  EXPECT_FALSE(other.same);
  EXPECT_EQ(other.counts[static_cast<std::size_t>(RowFate::changed)], 1);
  EXPECT_THAT(lines(other), HasSubstr("rounded otherwise in B"));
}

INSTANTIATE_TEST_SUITE_P(CompareCaches, Types, testing::Values("q=f16", "q=bf16", "q=bf16 kv=fp8_e4m3fn", "q=bf16 kv=fp8_e5m2"));

// --- single questions -------------------------------------------------------------------------------------------------------

TEST(CompareCaches, FactorsAndNaN) {
  const char* line = "q=f32 heads=4:2 d=64 page=16 reqs=1@40,1@30";
  Made a(line), b(line);
  a.each_row([&](bool k, auto r, auto p, auto h) {
    std::vector<float> values(64);
    std::memcpy(values.data(), a.at(k, r, p, h).data(), 256);
    for (float& v : values) v = k ? v * 0.5f : r == 1 ? std::numeric_limits<float>::quiet_NaN() : v;
    Bytes row(256);
    std::memcpy(row.data(), values.data(), 256);
    b.put(k, r, p, h, row);
  });
  const CacheComparison c = compared(a.contents(), b.contents());
  EXPECT_THAT(c.summary, ElementsAre("144 of 288 rows of K: times 0.5 in B", "62 of 288 rows of V: NaN in B")) << lines(c);
}

TEST(CompareCaches, OrdersOfDims) {
  const char* line = "q=f32 heads=4:2 d=64 page=16 reqs=1@40";
  for (const auto& [words, to] : {std::pair<const char*, std::function<int(int)>>{"halves of dims interleaved in B",
                                                                                  [](int d) { return d % 32 * 2 + d / 32; }},
                                  {"even dims before odd ones in B", [](int d) { return d / 2 + d % 2 * 32; }},
                                  {"dims moved by 32 in B", [](int d) { return (d + 32) % 64; }},
                                  {"dims in reverse in B", [](int d) { return 63 - d; }}}) {
    Made a(line), b(line);
    a.each_row([&](bool k, auto r, auto p, auto h) {
      if (!k) return;
      const Bytes from = a.at(k, r, p, h);
      Bytes row(256);
      for (int d = 0; d < 64; ++d) std::memcpy(row.data() + 4 * to(d), from.data() + 4 * d, 4);
      b.put(k, r, p, h, row);
    });
    EXPECT_THAT(compared(a.contents(), b.contents()).summary, ElementsAre(formatted("82 of 164 rows of K: {}", words)));
  }
}

TEST(CompareCaches, HeadsOfARankAreMatchedByTheModelsNumbers) {
  const Made a("q=f32 heads=8:4 d=64 page=16 reqs=1@40");
  Made b("q=f32 heads=4:2 d=64 page=16 reqs=1@40");
  for (std::int64_t p = 0; p < 41; ++p)
    for (std::int64_t h = 0; h < 2; ++h)
      for (const bool k : {true, false}) b.put(k, 0, p, h, a.at(k, 0, p, h + 2));
  CacheContents rank = b.contents();
  EXPECT_THAT(compared(a.contents(), rank).summary, testing::Contains(HasSubstr("heads 2-3 are in heads 0-1 of B")));
  rank.heads = {2, 3};
  const CacheComparison c = compared(a.contents(), rank);
  EXPECT_EQ(c.counts[0], 164);
  EXPECT_THAT(c.summary, ElementsAre("164 of 328 rows: nowhere in B, which has no such head"));
  EXPECT_TRUE(compared(rank, a.contents()).same) << "what only B has is no difference";
}

TEST(CompareCaches, RowsThatRepeatAreAmbiguousAndNotMoved) {
  const char* line = "q=f32 heads=4:2 d=64 page=16 reqs=1@40";
  Made a(line), b(line);
  for (Made* m : {&a, &b})
    for (std::int64_t p = 8; p < 24; ++p)
      for (std::int64_t h = 0; h < 2; ++h) m->put(true, 0, p, h, Bytes(256, std::byte{0}));
  EXPECT_TRUE(compared(a.contents(), b.contents()).same);
  b.put(true, 0, 10, 1, a.at(true, 0, 3, 1));
  const CacheComparison c = compared(a.contents(), b.contents());
  EXPECT_EQ(c.counts[static_cast<std::size_t>(RowFate::ambiguous)], 1) << lines(c);
  EXPECT_EQ(c.counts[static_cast<std::size_t>(RowFate::moved)], 0);
}

TEST(CompareCaches, ScalesOfTheSameBytesCount) {
  const char* line = "q=bf16 kv=fp8_e4m3fn heads=4:2 d=64 page=16 kscale=tensor vscale=tensor reqs=1@40";
  Made a(line), b(line);
  *static_cast<float*>(b.c.cache.k_scale.data) *= 2;
  const CacheComparison c = compared(a.contents(), b.contents());
  EXPECT_FALSE(c.same);
  EXPECT_THAT(c.summary, ElementsAre(StartsWith("the same bytes of K mean other numbers: k_scale of head 0 is")));
}

TEST(CompareCaches, TablesMayDifferAndLengthsToo) {
  const char* line = "q=f32 heads=4:2 d=64 page=16 reqs=1@40,1@30";
  Made a(line), b(line);
  std::int32_t ids[] = {7, 9}, lens[] = {41, 20};
  CacheContents of_a = a.contents(), of_b = b.contents();
  of_a.request_ids = Tensor::contiguous(ids, DType::i32, 2);
  std::int32_t other[] = {9, 7};
  of_b.request_ids = Tensor::contiguous(other, DType::i32, 2);
  EXPECT_THAT(compared(of_a, of_b).summary, testing::Contains(HasSubstr("in request 7")));
  of_b.request_ids = of_a.request_ids;
  of_b.lengths = Tensor::contiguous(lens, DType::i32, 2);
  EXPECT_THAT(lines(compared(of_a, of_b)), HasSubstr("request 9, positions 20 on: beyond the end of the request in B"));
  of_b.request_ids.shape[0] = of_b.lengths.shape[0] = of_b.block_table.shape[0] = 1;
  EXPECT_THAT(lines(compared(of_a, of_b)), HasSubstr("request 9"));
}

TEST(CompareCaches, WhatCannotBeComparedIsSaid) {
  Made a("q=f32 heads=4:2 d=64 page=16 reqs=1@40"), b("q=f32 heads=4:2 d=32 page=16 reqs=1@40");
  EXPECT_EQ(compare_caches(a.contents(), b.contents()).status().message(),
            "rows of unlike sizes: head_dim 64 and v_head_dim 64 in a, 32 and 32 in b");
  CacheContents broken = a.contents();
  broken.lengths = broken.block_table;
  EXPECT_THAT(compare_caches(a.contents(), broken).status().message(), StartsWith("b.lengths: "));
  broken = a.contents();
  std::int32_t long_one = 1000;
  broken.lengths = Tensor::contiguous(&long_one, DType::i32, 1);
  EXPECT_EQ(compare_caches(broken, a.contents()).status().message(),
            "a.lengths[0]: 1000 outside [0, 64], the positions of 4 pages of 16");
  broken = a.contents();
  broken.cache.v.data = nullptr;
  EXPECT_THAT(compare_caches(broken, a.contents()).status().message(), HasSubstr("Q-M04"));
}

}  // namespace
}  // namespace quire
