// SPDX-License-Identifier: Apache-2.0
// Which entries of a block table may be wild: small masks of every kind, key by key, against semantics/visible_pages.h and the
// verdict of check().
#include "semantics/visible_pages.h"

#include <gtest/gtest.h>

#include "support/page_cases.h"

namespace quire::test {
namespace {

std::string verdict(const Case& c) {
  const Findings findings = check(c.batch, c.cache, c.options, Depth::contents);
  return findings.ok() ? "" : findings.status().message();
}

TEST(VisiblePages, AreThoseOfTheDefinition) {
  std::mt19937_64 random(1);
  int needed = 0, inner = 0, hidden_trees = 0, narrow = 0;
  for (int i = 0; i < 20000; ++i) {
    const PageCase of = drawn_page_case(random, 24);
    const std::int64_t enough = of.needed_columns(), all = (of.num_keys + of.page_size - 1) / of.page_size;
    PageBatch batch(of, enough + static_cast<std::int64_t>(random() % 3), random);
    ASSERT_EQ(verdict(*batch), "") << of.text();
    for (std::int64_t column = 0; column < enough; ++column) {
      const std::int64_t page = batch.entry(column);
      inner += of.needs(column) ? 0 : 1;
      if (!of.needs(column)) continue;
      batch.entry(column) = batch.wild(random());
      const Findings findings = check(batch->batch, batch->cache, batch->options, Depth::tables);
      ASSERT_EQ(findings.status().rule(), "Q-T03") << of.text() << ": column " << column;
      batch.entry(column) = page;
      ++needed;
    }
    narrow += enough < all ? 1 : 0;
    hidden_trees += of.tree() > 0 && !of.needs((of.num_keys - 1) / of.page_size) ? 1 : 0;
    if (enough == 0) continue;
    batch->batch.block_table.shape[1] = enough - 1;
    const Findings findings = check(batch->batch, batch->cache, batch->options, Depth::tables);
    ASSERT_EQ(findings.status().rule(), "Q-T10") << of.text();
  }
  EXPECT_GT(needed, 20000);
  EXPECT_GT(inner, 5000);
  EXPECT_GT(hidden_trees, 500);
  EXPECT_GT(narrow, 5000);
}

TEST(VisiblePages, OfTheSemanticsAreThose) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20000; ++i) {
    const PageCase of = drawn_page_case(random, 24);
    if (of.rows == 0) continue;
    PageBatch batch(of, of.needed_columns(), random);
    semantics::Mask mask;
    mask.reach = semantics::reach_of(of.causal, of.window, of.right);
    mask.num_keys = of.num_keys;
    mask.key_begin = of.key_begin;
    mask.set_chunk(of.chunk);
    if (!of.spans.empty()) mask.spans = {of.spans.data(), static_cast<std::int64_t>(of.spans.size() / 2)};
    mask.spans_beyond_window = of.beyond;
    mask.set_regions(of.prefix, of.tree());
    const std::int64_t first = of.q_begin - of.key_begin;
    semantics::VisiblePages pages{mask.seen_by(first, first + of.rows - 1).below(of.cached), of.page_size, {}};
    if (const Tensor& t = batch->batch.tree_mask; t.present())
      pages.tree = {{static_cast<const std::uint8_t*>(t.data), 1}, t.stride[0], of.rows, of.num_keys - of.tree()};
    for (std::int64_t column = 0; column < of.num_keys + 2; ++column)
      ASSERT_EQ(pages.has(column), of.needs(column)) << of.text() << ": column " << column;
    std::vector<bool> seen(static_cast<std::size_t>(of.num_keys)), expected = seen;
    pages.for_each_range(of.cached, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t key = begin; key < end; ++key) seen[static_cast<std::size_t>(key)] = true;
    });
    for (std::int64_t key = 0; key < of.cached; ++key) expected[static_cast<std::size_t>(key)] = of.sees_some(key);
    ASSERT_EQ(seen, expected) << of.text();
    for (const std::int64_t width : {std::int64_t{0}, std::max<std::int64_t>(0, of.needed_columns() - 1), of.needed_columns()}) {
      ASSERT_EQ(pages.needed(width) <= width, of.needed_columns() <= width) << of.text() << ": width " << width;
    }
  }
}

/// The batches of which Q-T03 and Q-T10 spoke although no row sees the keys.
TEST(VisiblePages, ARegionThatNoRowSeesNeedsNoPages) {
  PageCase prefix_alone;
  prefix_alone.window = 1, prefix_alone.prefix = 4, prefix_alone.has_q_begin = true, prefix_alone.q_begin = 100;
  prefix_alone.num_keys = prefix_alone.cached = 48, prefix_alone.page_size = 16;
  PageCase before_tree;
  before_tree.has_q_begin = true, before_tree.num_keys = before_tree.cached = 64, before_tree.page_size = 16;
  before_tree.bits = {{true}};
  std::mt19937_64 random(3);
  EXPECT_EQ(prefix_alone.needed_columns(), 1);
  EXPECT_EQ(verdict(*PageBatch(prefix_alone, 1, random)), "");
  EXPECT_EQ(before_tree.needed_columns(), 4);
  EXPECT_FALSE(before_tree.needs(1) || before_tree.needs(2));
  EXPECT_EQ(verdict(*PageBatch(before_tree, 4, random)), "");
}

}  // namespace
}  // namespace quire::test
