// SPDX-License-Identifier: Apache-2.0
// visible_range against brute force; the address formula of every layout is injective; the page walk covers each position once.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "semantics/layout.h"
#include "semantics/mask.h"
#include "semantics/page_walk.h"
#include "semantics/score.h"
#include "semantics/visible_range.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

using semantics::KeyRange;
using semantics::visible_range;

TEST(VisibleRange, EqualsTheDefinitionKeyByKey) {
  for (std::int64_t window = 0; window <= 12; ++window)  // 0 stands for none
    for (std::int64_t q_pos = 0; q_pos <= 20; ++q_pos) {
      const KeyRange range = visible_range(q_pos, window);
      for (std::int64_t k = 0; k <= 25; ++k) {
        const bool visible = k <= q_pos && (window == 0 || q_pos - k < window);
        ASSERT_EQ(visible, k >= range.begin && k < range.end) << "window " << window << " q_pos " << q_pos << " key " << k;
      }
      ASSERT_LT(range.begin, range.end) << "a query always sees its own key";
    }
}

TEST(VisibleRange, UnionOverRowsIsExact) {
  for (std::int64_t window = 0; window <= 7; ++window)
    for (std::int64_t first = 0; first <= 9; ++first)
      for (std::int64_t last = first; last <= 12; ++last) {
        const KeyRange all = visible_range(first, last, window);
        std::set<std::int64_t> seen;
        for (std::int64_t q = first; q <= last; ++q)
          for (std::int64_t k = visible_range(q, window).begin; k < visible_range(q, window).end; ++k) seen.insert(k);
        ASSERT_EQ(all.begin, *seen.begin());
        ASSERT_EQ(all.end, *seen.rbegin() + 1);
        ASSERT_EQ(static_cast<std::size_t>(all.end - all.begin), seen.size());
      }
}

TEST(VisibleRange, HugeWindowsDoNotOverflow) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(visible_range(5, most).begin, 0);
  EXPECT_EQ(visible_range(most - 1, 1).begin, most - 1);
}

TEST(VisibleRange, In32BitsIsTheSame) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int32_t numbers[] = {0, 1, 2, 3, 63, 64, 65, 1000, kMost / 2, kMost - 2, kMost - 1};  // a position ends at kMost
  for (const std::int32_t window : {0, 1, 2, 3, 64, 1000, kMost / 2, kMost - 1, kMost})
    for (const std::int32_t first : numbers)
      for (const std::int32_t last : numbers) {
        const KeyRange wide = visible_range(first, window), both = visible_range(first, last, window);
        const auto narrow = visible_range<std::int32_t>(first, window),
                   narrow_both = visible_range<std::int32_t>(first, last, window);
        ASSERT_TRUE(narrow.begin == wide.begin && narrow.end == wide.end) << first << " window " << window;
        ASSERT_TRUE(narrow_both.begin == both.begin && narrow_both.end == both.end)
            << first << " " << last << " window " << window;
      }
}

semantics::Mask mask_of(const semantics::Reach& reach, std::int64_t num_keys) {
  semantics::Mask mask;
  mask.reach = reach;
  mask.num_keys = num_keys;
  mask.set_regions(/*prefix_len=*/0, /*tree_len=*/0);
  return mask;
}

/// Calls visit(reach, causal, window, right) for small masks; window 0 and right -1 stand for none.
template <typename Visit>
void for_each_mask(Visit&& visit) {
  for (const bool causal : {true, false})
    for (std::int64_t window = 0; window <= 5; ++window)
      for (std::int64_t right = -1; right <= 4; ++right) visit(semantics::reach_of(causal, window, right), causal, window, right);
}

TEST(Reach, EqualsTheDefinitionKeyByKey) {
  for_each_mask([](const semantics::Reach& reach, bool causal, std::int64_t window, std::int64_t right) {
    for (std::int64_t keys = 0; keys <= 8; ++keys)
      for (std::int64_t q_pos = -7; q_pos <= 15; ++q_pos) {
        const KeyRange range = mask_of(reach, keys).of_row(q_pos);
        ASSERT_GE(range.begin, 0);
        ASSERT_LE(range.begin, range.end);
        ASSERT_LE(range.end, keys);
        for (std::int64_t k = 0; k < keys; ++k) {
          const bool sees_later = causal ? k <= q_pos : right < 0 || k <= q_pos + right;
          const bool visible = sees_later && (window == 0 || q_pos - k < window);
          ASSERT_EQ(visible, k >= range.begin && k < range.end)
              << "causal " << causal << " window " << window << " right " << right << " q_pos " << q_pos << " key " << k;
        }
      }
  });
}

TEST(Reach, NeitherEndDecreasesFromRowToRow) {
  for_each_mask([](const semantics::Reach& reach, bool, std::int64_t, std::int64_t) {
    for (std::int64_t keys = 0; keys <= 8; ++keys)
      for (std::int64_t q_pos = -12; q_pos <= 20; ++q_pos) {
        const KeyRange one = mask_of(reach, keys).of_row(q_pos), next = mask_of(reach, keys).of_row(q_pos + 1);
        ASSERT_LE(one.begin, next.begin);
        ASSERT_LE(one.end, next.end);
      }
  });
}

TEST(Reach, UnionOverRowsIsExact) {
  for_each_mask([](const semantics::Reach& reach, bool, std::int64_t, std::int64_t) {
    for (std::int64_t keys = 0; keys <= 7; ++keys)
      for (std::int64_t first = -9; first <= 14; ++first)
        for (std::int64_t last = first; last <= 14; ++last) {
          std::set<std::int64_t> seen;
          for (std::int64_t q = first; q <= last; ++q)
            for (std::int64_t k = mask_of(reach, keys).of_row(q).begin; k < mask_of(reach, keys).of_row(q).end; ++k)
              seen.insert(k);
          const KeyRange all = mask_of(reach, keys).of_rows(first, last);
          ASSERT_EQ(static_cast<std::size_t>(all.end - all.begin), seen.size());
          ASSERT_EQ(all.begin, seen.empty() ? 0 : *seen.begin());
        }
  });
}

TEST(Reach, OfCausalRowsAtTheEndIsWhatTunedKernelsCompute) {
  for (std::int64_t window = 0; window <= 12; ++window)
    for (std::int64_t q_pos = 0; q_pos <= 20; ++q_pos)
      for (std::int64_t keys = q_pos + 1; keys <= 24; ++keys) {
        const KeyRange general = mask_of(semantics::reach_of(true, window, -1), keys).of_row(q_pos);
        const KeyRange causal = visible_range(q_pos, window);
        ASSERT_EQ(general.begin, causal.begin);
        ASSERT_EQ(general.end, causal.end);
      }
}

TEST(Reach, HugeWindowsAndFarRowsDoNotOverflow) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max(), far = std::int64_t{1} << 31;
  for (const std::int64_t q_pos : {-far, std::int64_t{3}, far}) {
    const KeyRange all = mask_of(semantics::reach_of(false, most, most), far).of_row(q_pos);
    EXPECT_EQ(all.begin, 0);
    EXPECT_EQ(all.end, far);
  }
}

KVCache cache_of(Storage& storage, CacheLayout layout, DType dtype, bool gap) {
  KVCache cache;
  cache.layout = layout;
  const std::int64_t x = packed_x(dtype), pages = 3, heads = 2, page = 5, dim = 2 * x;
  const auto make = [&](bool is_key) {
    if (layout == CacheLayout::nhd) return make_tensor(storage, dtype, {pages, page, heads, dim}, gap);
    if (layout == CacheLayout::hnd) return make_tensor(storage, dtype, {pages, heads, page, dim}, gap);
    if (is_key) return make_tensor(storage, dtype, {pages, heads, dim / x, page, x}, gap);
    return make_tensor(storage, dtype, {pages, heads, dim, page}, gap);
  };
  cache.k = make(true);
  cache.v = make(false);
  return cache;
}

/// Every element once, inside the tensor, and where the layout's own index order puts it.
TEST(Layout, AddressesAreInjectiveAndFollowTheDocumentedOrder) {
  for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed})
    for (const DType dtype : {DType::f32, DType::bf16, DType::fp8_e5m2})
      for (const bool gap : {false, true}) {
        Storage storage;
        const KVCache cache = cache_of(storage, layout, dtype, gap);
        const semantics::KvStrides k = semantics::k_strides(cache), v = semantics::v_strides(cache);
        const std::int64_t x = packed_x(dtype);
        std::set<std::int64_t> k_seen, v_seen;
        for (std::int64_t p = 0; p < num_pages(cache); ++p)
          for (std::int64_t h = 0; h < num_kv_heads(cache); ++h)
            for (std::int64_t t = 0; t < page_size(cache); ++t)
              for (std::int64_t d = 0; d < head_dim(cache); ++d) {
                const std::int64_t k_at = k.row(p, h, t) + k.element(d), v_at = v.row(p, h, t) + v.element(d);
                k_seen.insert(k_at);
                v_seen.insert(v_at);
                const auto [ek, ev] = [&]() -> std::pair<std::int64_t, std::int64_t> {
                  if (layout == CacheLayout::nhd) return {offset(cache.k, {p, t, h, d}), offset(cache.v, {p, t, h, d})};
                  if (layout == CacheLayout::hnd) return {offset(cache.k, {p, h, t, d}), offset(cache.v, {p, h, t, d})};
                  return {offset(cache.k, {p, h, d / x, t, d % x}), offset(cache.v, {p, h, d, t})};
                }();
                ASSERT_EQ(k_at, ek);
                ASSERT_EQ(v_at, ev);
              }
        const auto elements = static_cast<std::size_t>(cache.k.num_elements());
        EXPECT_EQ(k_seen.size(), elements);
        EXPECT_EQ(v_seen.size(), elements);
        if (!gap) {
          EXPECT_EQ(*k_seen.rbegin(), cache.k.num_elements() - 1);
        }
      }
}

TEST(Layout, OffsetsBeyondThirtyTwoBits) {
  KVCache cache;
  cache.k = cache.v = Tensor::contiguous(nullptr, DType::f16, std::int64_t{1} << 20, 16, 8, 128);
  const std::int64_t page = (std::int64_t{1} << 20) - 1;
  EXPECT_EQ(semantics::k_strides(cache).row(page, 7, 15) + semantics::k_strides(cache).element(127), cache.k.num_elements() - 1);
}

// The formula published for vLLM's packed K: ((b H + h) (D / x) + d / x) page x + t x + d % x.
TEST(Layout, PackedEqualsThePublishedFormula) {
  Storage storage;
  const KVCache cache = cache_of(storage, CacheLayout::packed, DType::f16, /*gap=*/false);
  const semantics::KvStrides k = semantics::k_strides(cache), v = semantics::v_strides(cache);
  const std::int64_t heads = 2, page = 5, x = 8, dim = 16;
  for (std::int64_t b = 0; b < 3; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t t = 0; t < page; ++t)
        for (std::int64_t d = 0; d < dim; ++d) {
          EXPECT_EQ(k.row(b, h, t) + k.element(d), ((b * heads + h) * (dim / x) + d / x) * page * x + t * x + d % x);
          EXPECT_EQ(v.row(b, h, t) + v.element(d), ((b * heads + h) * dim + d) * page + t);
        }
}

TEST(PageWalk, VisitsEveryPositionOnceInOrderAndReadsOnlyThePagesItNeeds) {
  for (const DType dtype : {DType::i32, DType::i64})
    for (const std::int64_t page_size : {1, 3, 8})
      for (std::int64_t begin = 0; begin <= 20; ++begin)
        for (std::int64_t end = begin; end <= 24; ++end) {
          Storage storage;
          const Tensor table = make_tensor(storage, dtype, {2, 24}, /*gap=*/true);
          const std::int64_t first_page = begin / page_size, last_page = (end + page_size - 1) / page_size;
          for (std::int64_t i = first_page; i < last_page; ++i) set_index(table, {1, i}, 100 + 7 * i);
          std::int64_t next = begin;
          semantics::for_each_page_run(semantics::index_row(table, 1), page_size, begin, end,
                                       [&](std::int64_t page, std::int64_t at, std::int64_t count, std::int64_t position) {
                                         ASSERT_EQ(position, next);
                                         ASSERT_EQ(page, 100 + 7 * (position / page_size));
                                         ASSERT_EQ(at, position % page_size);
                                         ASSERT_TRUE(count > 0 && at + count <= page_size);
                                         next += count;
                                       });
          ASSERT_EQ(next, end);
        }
}

// Where every token is new, a table has no columns, and tensors without elements have no memory in most frameworks.
TEST(PageWalk, ARowOfATableWithoutColumnsAddsNothingToNull) {
  for (const DType dtype : {DType::i32, DType::i64})
    for (const std::int64_t stride : {0, 1, 3}) {
      Tensor table = Tensor::contiguous(nullptr, dtype, 3, 0);
      table.stride[0] = stride;
      for (std::int64_t r = 0; r < 3; ++r) EXPECT_EQ(semantics::index_row(table, r).data, nullptr);
    }
}

TEST(Score, TransformsComeInTheDocumentedOrder) {
  const double dot = 3.0, scale = 0.5, cap = 2.0, slope = -0.25;
  const semantics::ScoreParams params{static_cast<float>(scale), static_cast<float>(cap)};
  const double expected = cap * std::tanh(dot * scale / cap) + slope * -4;
  EXPECT_NEAR(semantics::score<semantics::FloatOps>(static_cast<float>(dot), params, static_cast<float>(slope), -4.0f), expected,
              1e-6);
  EXPECT_EQ(semantics::score<semantics::FloatOps>(3.0f, {0.5f, 0.0f}, 0.0f, -4.0f), 1.5f);
}

}  // namespace
}  // namespace quire::test
