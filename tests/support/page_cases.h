// SPDX-License-Identifier: Apache-2.0
// Small requests with every kind of mask, and which columns of their block table some row needs: by the equations of
// docs/design.md, section 1, key by key, and apart from src/semantics. As batches, all other entries are wild, all other elements
// NaN. A request without rows and with more keys than the table has room for stands in front.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "quire/tools/capture.hpp"
#include "semantics/dtype.h"

namespace quire::test {

struct PageCase {
  bool causal = true, beyond = false, has_q_begin = false;
  std::int64_t window = 0, right = -1, chunk = 0, prefix = 0, key_begin = 0;  ///< window 0, right -1, chunk 0: none
  std::int64_t q_begin = 0, rows = 1, num_keys = 1, cached = 1, page_size = 1;
  std::vector<std::int64_t> spans;      ///< begin, end, begin, ...
  std::vector<std::vector<bool>> bits;  ///< tree bits of each row; empty: no tree

  std::int64_t tree() const { return bits.empty() ? 0 : static_cast<std::int64_t>(bits[0].size()); }

  static std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
  bool sees(std::int64_t row, std::int64_t key) const {
    if (key >= num_keys - tree()) return bits[static_cast<std::size_t>(row)][static_cast<std::size_t>(key - num_keys + tree())];
    const std::int64_t q = q_begin + row, k = key_begin + key;
    bool together = false;
    for (std::size_t i = 0; i < spans.size(); i += 2)
      together = together || (spans[i] <= q && q < spans[i + 1] && spans[i] <= k && k < spans[i + 1]);
    if (!together && (causal ? k > q : right >= 0 && k > q + right)) return false;
    if (k < prefix || (together && beyond)) return true;
    return (window == 0 || q - k < window) && (chunk == 0 || floor_div(q, chunk) == floor_div(k, chunk));
  }
  bool sees_some(std::int64_t key) const {
    for (std::int64_t row = 0; row < rows; ++row)
      if (sees(row, key)) return true;
    return false;
  }
  bool needs(std::int64_t column) const {
    for (std::int64_t key = column * page_size; key < std::min(cached, (column + 1) * page_size); ++key)
      if (sees_some(key)) return true;
    return false;
  }
  std::int64_t needed_columns() const {
    std::int64_t columns = (cached + page_size - 1) / page_size;
    while (columns > 0 && !needs(columns - 1)) --columns;
    return columns;
  }
  std::string text() const {
    std::string tree_text, spans_text;
    for (const auto& row : bits) {
      for (const bool bit : row) tree_text += bit ? '1' : '0';
      tree_text += ' ';
    }
    for (const std::int64_t end : spans) spans_text += std::to_string(end) + " ";
    const auto number = [](const char* name, std::int64_t value) { return std::string(name) + std::to_string(value); };
    return number("causal ", causal ? 1 : 0) + number(" window ", window) + number(" right ", right) + number(" chunk ", chunk) +
           number(" prefix ", prefix) + number(" key_begin ", key_begin) + number(" q_begin ", q_begin) + number(" rows ", rows) +
           number(" seq_len ", num_keys) + number(" cached ", cached) + number(" page ", page_size) + " spans " + spans_text +
           number("beyond ", beyond ? 1 : 0) + " tree " + tree_text;
  }
};

/// Bits of a tree that break no rule: where rows stand at the end of their keys, each sees its own, and causal ones no later key.
inline void draw_tree(PageCase& c, std::int64_t keys, std::mt19937_64& random) {
  const bool none = random() % 3 == 0;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    std::vector<bool>& bits = c.bits.emplace_back();
    const std::int64_t own = c.q_begin - c.key_begin + row - (c.num_keys - keys);
    const bool at_end = c.num_keys >= c.rows && c.q_begin - c.key_begin == c.num_keys - c.rows;
    for (std::int64_t b = 0; b < keys; ++b) {
      const bool later = at_end && c.causal && b > own;
      bits.push_back((at_end && b == own) || (!later && !none && random() % 3 == 0));
    }
  }
}

/// `largest`: keys, at most.
inline PageCase drawn_page_case(std::mt19937_64& random, std::int64_t largest) {
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); };
  const auto maybe = [&](std::int64_t n) { return below(2) * below(n); };
  PageCase c;
  c.page_size = 1 + below(3);
  c.causal = below(3) > 0;
  c.window = maybe(largest / 2);
  c.right = c.causal ? -1 : below(4) - 1;
  c.chunk = maybe(largest / 2);
  c.prefix = maybe(largest);
  c.num_keys = below(largest + 1);
  c.rows = below(4) == 0 ? 0 : 1 + below(4);
  c.key_begin = maybe(largest);
  c.has_q_begin = below(2) == 0 || (c.causal && c.num_keys < c.rows);
  const std::int64_t at_end = c.key_begin + c.num_keys - c.rows;
  c.q_begin = c.has_q_begin ? below(2 * largest) : at_end;
  c.cached = c.num_keys;
  if (c.q_begin == at_end && c.num_keys >= c.rows && below(2) == 0) c.cached -= below(c.rows + 1);
  for (std::int64_t at = below(6), left = maybe(4); left > 0; --left) {
    const std::int64_t end = at + 1 + below(6);
    c.spans.insert(c.spans.end(), {at, end});
    at = end + below(3);
  }
  c.beyond = !c.spans.empty() && below(2) == 0;
  if (below(2) == 0 && c.rows > 0) draw_tree(c, below(std::min<std::int64_t>(c.num_keys, 20) + 1), random);
  if (!c.bits.empty() && c.bits[0].empty()) c.bits.clear();
  return c;
}

/// A batch of the request that owns its memory. The table has `columns` columns; rows and cache are of one type.
class PageBatch {
 public:
  static constexpr std::int64_t kHeads = 2, kDim = 8, kRequest = 1;

  PageBatch(const PageCase& c, std::int64_t columns, std::mt19937_64& random, DType type = DType::f32)
      : of_(c), columns_(columns), type_(type) {
    fill_lengths();
    fill_masks();
    fill_table(random);
    fill_rows(random);
  }
  Case& operator*() { return c_; }
  Case* operator->() { return &c_; }

  std::int64_t& entry(std::int64_t column) {
    return static_cast<std::int64_t*>(c_.batch.block_table.data)[kRequest * columns_ + column];
  }
  /// Entries that are no pages.
  std::int64_t wild(std::uint64_t i) const {
    const std::int64_t values[] = {-1, 1 << 20, num_pages(c_.cache), -5, 0x7FFFFFFF, std::int64_t{1} << 33, -7, 2147480000};
    return values[i % std::size(values)];
  }

 private:
  template <class T>
  Tensor tensor(DType dtype, const std::vector<T>& values, std::initializer_list<std::int64_t> shape) {
    Tensor t = Tensor::from_shape(nullptr, dtype, {}, static_cast<int>(shape.size()));
    std::copy(shape.begin(), shape.end(), t.shape.begin());
    std::int64_t stride = 1;
    for (int i = t.rank; i-- > 0; stride *= t.shape[i]) t.stride[i] = stride;
    if (values.empty()) return t;
    t.data = c_.allocate(values.size() * sizeof(T));
    std::copy(values.begin(), values.end(), static_cast<T*>(t.data));
    return t;
  }
  Tensor indices(const std::vector<std::int64_t>& values) {
    return tensor(DType::i64, values, {static_cast<std::int64_t>(values.size())});
  }
  /// Elements that are all NaN.
  Tensor elements(DType dtype, std::initializer_list<std::int64_t> shape) {
    std::int64_t bytes = itemsize(dtype);
    for (const std::int64_t n : shape) bytes *= n;
    Tensor t = tensor(dtype, std::vector<std::uint8_t>(static_cast<std::size_t>(bytes)), shape);
    for (std::int64_t i = 0; i < t.num_elements(); ++i)
      semantics::store(t.data, dtype, i, std::numeric_limits<float>::quiet_NaN());
    return t;
  }

  void fill_lengths() {
    Batch& b = c_.batch;
    constexpr std::int64_t kManyKeys = 70;
    b.query_start_loc = indices({0, 0, of_.rows});
    b.seq_lens = indices({kManyKeys, of_.num_keys});
    if (of_.cached < of_.num_keys) b.cached_lens = indices({kManyKeys, of_.cached});
    if (of_.has_q_begin) b.q_begin = indices({3, of_.q_begin});
    if (of_.key_begin > 0) b.key_begin = indices({0, of_.key_begin});
    if (!of_.causal) b.causal = tensor<std::uint8_t>(DType::u8, {1, 0}, {2});
    if (of_.window > 0) c_.options.sliding_window = of_.window;
    if (of_.right >= 0) c_.options.window_right = of_.right;
  }
  void fill_masks() {
    Batch& b = c_.batch;
    if (of_.chunk > 0) c_.options.attention_chunk = of_.chunk;
    if (of_.prefix > 0) b.prefix_lens = indices({0, of_.prefix});
    if (!of_.spans.empty()) {
      std::vector<std::int64_t> values(of_.spans.size(), 0);
      values.insert(values.end(), of_.spans.begin(), of_.spans.end());
      b.spans = tensor(DType::i64, values, {2, static_cast<std::int64_t>(of_.spans.size()) / 2, 2});
      c_.options.spans_beyond_window = of_.beyond;
    }
    if (of_.bits.empty()) return;
    const std::int64_t bytes = (of_.tree() + 7) / 8;
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(of_.rows * bytes), 0);
    for (std::int64_t row = 0; row < of_.rows; ++row)
      for (std::int64_t bit = 0; bit < 8 * bytes; ++bit)  // bits behind the tree are 1: who reads them is wrong
        if (bit >= of_.tree() || of_.bits[static_cast<std::size_t>(row)][static_cast<std::size_t>(bit)])
          mask[static_cast<std::size_t>(row * bytes + bit / 8)] |= static_cast<std::uint8_t>(1 << bit % 8);
    b.tree_mask = tensor(DType::u8, mask, {of_.rows, bytes});
    b.tree_lens = indices({0, of_.tree()});
  }
  void fill_table(std::mt19937_64& random) {
    std::vector<std::int64_t> pages;
    for (std::int64_t column = 0; column < columns_; ++column)
      if (of_.needs(column)) pages.push_back(static_cast<std::int64_t>(pages.size()));
    std::shuffle(pages.begin(), pages.end(), random);
    const auto count = static_cast<std::int64_t>(pages.size());
    c_.cache.k = elements(type_, {count, of_.page_size, 1, kDim});
    c_.cache.v = elements(type_, {count, of_.page_size, 1, kDim});
    c_.batch.block_table =
        tensor(DType::i64, std::vector<std::int64_t>(static_cast<std::size_t>(2 * columns_), -1), {2, columns_});
    for (std::int64_t column = 0; column < columns_; ++column) {
      entry(column) = wild(random());
      if (!of_.needs(column)) continue;
      entry(column) = pages.back();
      pages.pop_back();
    }
  }
  void fill_rows(std::mt19937_64& random) {
    Batch& b = c_.batch;
    std::normal_distribution<float> normal;
    const auto fill = [&](const Tensor& t, std::int64_t row) {
      const std::int64_t size = t.stride[t.rank - 3];
      for (std::int64_t i = row * size; i < (row + 1) * size; ++i) semantics::store(t.data, t.dtype, i, normal(random));
    };
    b.query = elements(type_, {of_.rows, kHeads, kDim});
    b.output = elements(type_, {of_.rows, kHeads, kDim});
    b.lse = elements(DType::f32, {of_.rows, kHeads});
    for (std::int64_t row = 0; row < of_.rows; ++row) fill(b.query, row);
    if (of_.cached < of_.num_keys) b.key = elements(type_, {of_.rows, 1, kDim}), b.value = elements(type_, {of_.rows, 1, kDim});
    for (std::int64_t key = 0; key < of_.num_keys; ++key) {
      if (key >= of_.cached) {
        for (const Tensor* t : {&b.key, &b.value}) fill(*t, of_.rows - of_.num_keys + key);
      } else if (of_.sees_some(key)) {
        for (const Tensor* t : {&c_.cache.k, &c_.cache.v})
          fill(*t, entry(key / of_.page_size) * of_.page_size + key % of_.page_size);
      }
    }
  }

  PageCase of_;
  std::int64_t columns_;
  DType type_;
  Case c_;
};

}  // namespace quire::test
