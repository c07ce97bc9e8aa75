// SPDX-License-Identifier: Apache-2.0
// Attention from the equations of docs/design.md, key by key in fp64, with a function for each thing that a kernel may get wrong.
// It shares nothing with src/diagnose and src/faults but the decoding of elements. Batches are causal, with an nhd cache.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "diagnose/census_util.h"

namespace quire::test {

/// A row, and where it stands.
struct EquationRow {
  std::int64_t token = 0, head = 0, request = 0, index = 0, rows = 0;  ///< index: of the row in its request, which has `rows`
  std::int64_t seq_len = 0, cached_len = 0, position = 0;
  std::int64_t context_len() const { return seq_len - rows; }
};

class Equation {
 public:
  explicit Equation(Case& c) : c_(c) {
    query = [this](const EquationRow& r, std::int64_t d) { return query_at(r.token, r.head, d); };
    key = [this](const EquationRow& r, std::int64_t k, std::int64_t d) { return stored(r, k, d, /*value=*/false); };
    value = [this](const EquationRow& r, std::int64_t k, std::int64_t d) { return stored(r, k, d, /*value=*/true); };
    const std::int64_t length = c.options.attention_chunk.value_or(std::int64_t{1} << 40);
    chunk_of = [length](const EquationRow&, std::int64_t position) { return position / length; };
    prefix = [this](const EquationRow& r) { return prefix_len(r.request); };
    spans = [this](const EquationRow& r) { return spans_of(r.request); };
    sees = [this](const EquationRow& r, std::int64_t k) { return is_visible(r, k); };
    weight = [](double w) { return w; };
    sum = [](double so_far, double exact) { return so_far + exact; };
    store = [](const EquationRow&, std::int64_t, double x) { return x; };
  }

  std::function<double(const EquationRow&, std::int64_t d)> query;
  std::function<double(const EquationRow&, std::int64_t k, std::int64_t d)> key, value;
  std::function<std::int64_t(const EquationRow&, std::int64_t position)> chunk_of;
  std::function<std::int64_t(const EquationRow&)> prefix;
  std::function<std::vector<Span>(const EquationRow&)> spans;
  std::function<bool(const EquationRow&, std::int64_t k)> sees;  ///< visibility by the three above, and by the window
  std::function<double(double)> weight;                          ///< exp(score - largest score), before it meets V
  std::function<double(double so_far, double exact)> sum;        ///< the denominator, key by key
  std::function<double(const EquationRow&, std::int64_t d, double x)> store;

  const Tensor& k_cache() const { return c_.cache.k; }
  std::int64_t page_size() const { return c_.cache.k.shape[1]; }
  std::int64_t columns() const { return c_.batch.block_table.shape[1]; }
  std::int64_t num_q_heads() const { return c_.batch.query.shape[1]; }
  std::int64_t kv_head(std::int64_t head) const { return head / (num_q_heads() / c_.cache.k.shape[2]); }
  std::int64_t first_row(std::int64_t request) const { return i32_at(c_.batch.query_start_loc, request); }
  std::int64_t page(std::int64_t request, std::int64_t column) const { return page_of(c_, request, column); }
  double query_at(std::int64_t token, std::int64_t head, std::int64_t d) const {
    const Tensor& q = c_.batch.query;
    return semantics::load(q.data, q.dtype, token * q.stride[0] + head * q.stride[1] + d * q.stride[2]);
  }
  /// The scale of a cached token: its own, its head's, or that of all.
  double scale_at(bool of_value, std::int64_t at_page, std::int64_t slot, std::int64_t head) const {
    const Tensor& t = of_value ? c_.cache.v_scale : c_.cache.k_scale;
    if (!t.present()) return 1;
    const std::int64_t of_token = at_page * t.stride[0] + slot * t.stride[1] + head * t.stride[2];
    return semantics::load(t.data, t.dtype, t.rank == 3 ? of_token : t.num_elements() > 1 ? head : 0);
  }
  double code(bool of_value, std::int64_t at_page, std::int64_t slot, std::int64_t head, std::int64_t d) const {
    return element(of_value ? c_.cache.v : c_.cache.k, {}, at_page, slot, head, d);
  }
  double cached(bool of_value, std::int64_t at_page, std::int64_t slot, std::int64_t head, std::int64_t d) const {
    return scale_at(of_value, at_page, slot, head) * code(of_value, at_page, slot, head, d);
  }
  double cached_at(const EquationRow& r, bool of_value, std::int64_t k, std::int64_t d) const {
    return cached(of_value, page(r.request, k / page_size()), k % page_size(), kv_head(r.head), d);
  }
  double new_row(bool of_value, std::int64_t token, std::int64_t head, std::int64_t d) const {
    const Tensor& t = of_value ? c_.batch.value : c_.batch.key;
    return semantics::load(t.data, t.dtype, token * t.stride[0] + head * t.stride[1] + d * t.stride[2]);
  }
  double stored(const EquationRow& r, std::int64_t k, std::int64_t d, bool of_value) const {
    if (k < r.cached_len) return cached_at(r, of_value, k, d);
    return new_row(of_value, first_row(r.request) + k - r.context_len(), kv_head(r.head), d);
  }

  std::int64_t prefix_len(std::int64_t request) const {
    return c_.batch.prefix_lens.present() ? i32_at(c_.batch.prefix_lens, request) : c_.options.prefix_len.value_or(0);
  }
  std::vector<Span> spans_of(std::int64_t request) const {
    std::vector<Span> list;
    for (std::int64_t i = 0; c_.batch.spans.present() && i < c_.batch.spans.shape[1]; ++i) {
      const std::int64_t at = (request * c_.batch.spans.shape[1] + i) * 2;
      list.push_back({i32_at(c_.batch.spans, at), i32_at(c_.batch.spans, at + 1)});
    }
    return list;
  }

  bool tree_bit(std::int64_t token, std::int64_t bit) const {
    const Tensor& t = c_.batch.tree_mask;
    return (static_cast<const std::uint8_t*>(t.data)[token * t.stride[0] + bit / 8 * t.stride[1]] >> (bit % 8) & 1) != 0;
  }

  /// Writes the observed output.
  void write() {
    const Tensor& o = c_.batch.output;
    c_.observed = copy_of(c_, o);
    for (std::int64_t token = 0; token < o.shape[0]; ++token)
      for (std::int64_t head = 0; head < o.shape[1]; ++head) {
        const EquationRow r = row(token, head);
        const std::vector<double> out = average(r);
        for (std::int64_t d = 0; d < o.shape[2]; ++d)
          semantics::store(c_.observed.data, o.dtype, (token * o.shape[1] + head) * o.shape[2] + d,
                           static_cast<float>(store(r, d, out[static_cast<std::size_t>(d)])));
      }
  }

 private:
  bool is_visible(const EquationRow& r, std::int64_t k) const {
    const std::int64_t tree_len = c_.batch.tree_lens.present() ? i32_at(c_.batch.tree_lens, r.request) : 0;
    if (k >= r.seq_len - tree_len) return tree_bit(r.token, k - r.seq_len + tree_len);
    bool together = false;
    for (const Span& s : spans(r))
      together = together || (k >= s.begin && k < s.end && r.position >= s.begin && r.position < s.end);
    if (k > r.position && !together) return false;
    if (k < prefix(r)) return true;
    const bool near = !c_.options.sliding_window || r.position - k < *c_.options.sliding_window;
    return near && chunk_of(r, k) == chunk_of(r, r.position);
  }

  EquationRow row(std::int64_t token, std::int64_t head) const {
    EquationRow r{token, head, request_of(c_, token)};
    r.index = token - first_row(r.request);
    r.rows = first_row(r.request + 1) - first_row(r.request);
    r.seq_len = i32_at(c_.batch.seq_lens, r.request);
    r.cached_len = c_.batch.key.present() ? i32_at(c_.batch.cached_lens, r.request) : r.seq_len;
    r.position = position_of(c_, token);
    return r;
  }

  std::vector<double> average(const EquationRow& r) const {
    const std::int64_t dims = c_.batch.query.shape[2];
    const double scale = c_.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(dims)));
    std::vector<std::int64_t> keys;
    std::vector<double> scores, out(static_cast<std::size_t>(c_.batch.output.shape[2]));
    for (std::int64_t k = 0; k < r.seq_len; ++k) {
      if (!sees(r, k)) continue;
      double dot = 0;
      for (std::int64_t d = 0; d < dims; ++d) dot += query(r, d) * key(r, k, d);
      keys.push_back(k);
      scores.push_back(scale * dot);
    }
    if (keys.empty()) return out;
    const double largest = *std::max_element(scores.begin(), scores.end());
    double denominator = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const double exact = std::exp(scores[i] - largest), p = weight(exact);
      denominator = sum(denominator, exact);
      for (std::size_t d = 0; d < out.size(); ++d) out[d] += p * value(r, keys[i], static_cast<std::int64_t>(d));
    }
    for (double& x : out) x /= denominator;
    return out;
  }

  Case& c_;
};

}  // namespace quire::test
