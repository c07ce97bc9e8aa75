// SPDX-License-Identifier: Apache-2.0
// A row of attention over chosen slots of the cache, computed from the equations: what a kernel writes that reads these. It
// shares nothing with src/diagnose and src/faults but the decoding of elements.
#pragma once

#include <algorithm>
#include <vector>

#include "diagnose/diagnose_util.h"

namespace quire::test {

/// A slot that a row reads, and the position that biases of scores use.
struct Pick {
  std::int64_t page = 0, offset = 0, position = 0;
};

inline std::int64_t i32_at(const Tensor& t, std::int64_t i) { return static_cast<const std::int32_t*>(t.data)[i]; }

inline std::int64_t request_of(const Case& c, std::int64_t token) {
  std::int64_t r = 0;
  while (i32_at(c.batch.query_start_loc, r + 1) <= token) ++r;
  return r;
}

inline std::int64_t page_of(const Case& c, std::int64_t request, std::int64_t column) {
  return i32_at(c.batch.block_table, request * c.batch.block_table.stride[0] + column);
}

/// Position of a row of a causal batch.
inline std::int64_t position_of(const Case& c, std::int64_t token) {
  const std::int64_t r = request_of(c, token);
  return i32_at(c.batch.seq_lens, r) - i32_at(c.batch.query_start_loc, r + 1) + token;
}

/// What the right computation reads, all from the cache.
inline std::vector<Pick> right_picks(const Case& c, std::int64_t token) {
  const std::int64_t r = request_of(c, token), last = position_of(c, token), size = c.cache.k.shape[1];
  const std::int64_t first = c.options.sliding_window ? std::max<std::int64_t>(0, last - *c.options.sliding_window + 1) : 0;
  std::vector<Pick> picks;
  for (std::int64_t k = first; k <= last; ++k) picks.push_back({page_of(c, r, k / size), k % size, k});
  return picks;
}

inline double element(const Tensor& t, const Tensor& scale, std::int64_t page, std::int64_t offset, std::int64_t head,
                      std::int64_t d) {
  const double factor = scale.present() ? semantics::load(scale.data, scale.dtype, scale.num_elements() > 1 ? head : 0) : 1.0;
  return factor *
         semantics::load(t.data, t.dtype, page * t.stride[0] + offset * t.stride[1] + head * t.stride[2] + d * t.stride[3]);
}

/// Writes a row, all heads of it, that multiplies the weight of each of `keys` with the V of the slot at the same place of
/// `values`: an nhd cache, keys that are not new.
inline void write_row(Case& c, std::int64_t token, const std::vector<Pick>& keys, const std::vector<Pick>& values) {
  const Tensor &q = c.batch.query, &o = c.observed;
  const std::int64_t heads = q.shape[1], d = q.shape[2], dv = o.shape[2], group = heads / c.cache.k.shape[2];
  const double scale = c.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(d)));
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t kv = h / group;
    const auto of_head = [&](const Tensor& t) { return static_cast<double>(static_cast<const float*>(t.data)[h]); };
    std::vector<double> scores;
    for (const Pick& p : keys) {
      double dot = 0;
      for (std::int64_t i = 0; i < d; ++i)
        dot += semantics::load(q.data, q.dtype, (token * heads + h) * d + i) *
               element(c.cache.k, c.cache.k_scale, p.page, p.offset, kv, i);
      double score = scale * dot;
      if (c.options.logits_soft_cap) score = *c.options.logits_soft_cap * std::tanh(score / *c.options.logits_soft_cap);
      if (c.options.alibi_slopes.present())
        score += of_head(c.options.alibi_slopes) * static_cast<double>(p.position - position_of(c, token));
      scores.push_back(score);
    }
    double max = *std::max_element(scores.begin(), scores.end()), sum = 0;
    if (c.options.sinks.present()) max = std::max(max, of_head(c.options.sinks)), sum = std::exp(of_head(c.options.sinks) - max);
    std::vector<double> out(static_cast<std::size_t>(dv));
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const double weight = std::exp(scores[k] - max);
      sum += weight;
      for (std::int64_t i = 0; i < dv; ++i)
        out[static_cast<std::size_t>(i)] += weight * element(c.cache.v, c.cache.v_scale, values[k].page, values[k].offset, kv, i);
    }
    for (std::int64_t i = 0; i < dv; ++i)
      semantics::store(o.data, o.dtype, (token * heads + h) * dv + i, static_cast<float>(out[static_cast<std::size_t>(i)] / sum));
  }
}

inline void write_row(Case& c, std::int64_t token, const std::vector<Pick>& picks) { write_row(c, token, picks, picks); }

}  // namespace quire::test
