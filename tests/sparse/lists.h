// SPDX-License-Identifier: Apache-2.0
// Random key lists of a case, poison on every slot that no list holds, and what attention over the lists gives.
//
// The expectation shares nothing with src/sparse: it gathers listed keys from the cache by the equations of the layouts
// (cache.hpp), one KV head at a time, and asks reference() of a cache in which each row has a page of its own. A second softmax,
// here, checks that reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "quire/sparse.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "semantics/dtype.h"
#include "semantics/page_walk.h"

namespace quire::test {

inline Case case_of(const std::string& text) {
  const Result<ProblemLine> line = parse_problem_line(text);
  EXPECT_TRUE(line.ok()) << line.status().message();
  Result<Case> made = make_case(line.value());
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made.value());
}

/// Form of random lists.
struct Form {
  ListUnit unit = ListUnit::slot;
  ListOwner owner = ListOwner::row;
  bool by_head = false;
  std::int64_t width = 8;
  bool counted = true;  ///< num_keys is given
  DType index = DType::i32;
  std::int64_t unused = -1;  ///< value of entries that are not in use
  std::int64_t least = 0;    ///< entries of the shortest list
};

/// Lists of a case, and for each row and KV head the slots that are seen, in order.
struct Lists {
  KeyLists view;
  std::vector<std::int64_t> ids, num_keys;
  std::vector<std::int32_t> narrow_ids, narrow_num_keys;
  std::vector<std::vector<std::int64_t>> slots;  ///< [row * num_kv_heads + head]
};

inline std::int64_t element_of(const KVCache& cache, const Tensor& t, bool is_k, std::int64_t slot, std::int64_t head,
                               std::int64_t dim) {
  const std::int64_t page = slot / page_size(cache), offset = slot % page_size(cache);
  const auto& s = t.stride;
  if (cache.layout == CacheLayout::nhd) return page * s[0] + offset * s[1] + head * s[2] + dim * s[3];
  if (cache.layout == CacheLayout::hnd) return page * s[0] + head * s[1] + offset * s[2] + dim * s[3];
  const std::int64_t x = packed_x(t.dtype);
  return is_k ? page * s[0] + head * s[1] + dim / x * s[2] + offset * s[3] + dim % x * s[4]
              : page * s[0] + head * s[1] + dim * s[2] + offset * s[3];
}

/// Rows of the batch, with their request and the keys that they see without a list.
struct RowOf {
  std::int64_t request, visible;
};
inline std::vector<RowOf> rows_of(const Case& c) {
  std::vector<RowOf> rows;
  for (std::int64_t r = 0; r < c.batch.seq_lens.shape[0]; ++r) {
    const Request q = request_of(c.batch, c.options, r);
    for (std::int64_t i = 0; i < q.query_len; ++i)
      rows.push_back({r, q.causal ? std::max<std::int64_t>(0, q.context_len + i + 1) : q.seq_len()});
  }
  return rows;
}

/// Random lists of `form`: any order but that a page which is partly visible stands last, any length from none to the width.
inline Lists random_lists(const Case& c, const Form& form, std::uint32_t seed) {
  std::mt19937 random(seed);
  Lists made;
  const std::int64_t tokens = page_size(c.cache), heads = form.by_head ? num_kv_heads(c.cache) : 1;
  const std::vector<RowOf> rows = rows_of(c);
  const bool of_rows = form.owner == ListOwner::row;
  const std::int64_t n = of_rows ? c.batch.query.shape[0] : c.batch.seq_lens.shape[0];
  made.ids.assign(static_cast<std::size_t>(n * heads * form.width), form.unused);
  made.num_keys.assign(static_cast<std::size_t>(n * heads), form.counted ? 1000000 : 0);
  made.slots.resize(rows.size() * static_cast<std::size_t>(num_kv_heads(c.cache)));
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    while (!of_rows && at < static_cast<std::int64_t>(rows.size()) && rows[static_cast<std::size_t>(at)].request < i) ++at;
    if (of_rows) at = i;
    if (at >= static_cast<std::int64_t>(rows.size()) || (!of_rows && rows[static_cast<std::size_t>(at)].request != i)) continue;
    const RowOf row = rows[static_cast<std::size_t>(at)];
    const semantics::IndexView table = semantics::index_row(c.batch.block_table, row.request);
    for (std::int64_t h = 0; h < heads; ++h) {
      const bool pages = form.unit == ListUnit::page;
      const std::int64_t unit = pages ? tokens : 1, choices = (row.visible + unit - 1) / unit;
      std::vector<std::int64_t> chosen(static_cast<std::size_t>(choices));
      for (std::size_t j = 0; j < chosen.size(); ++j) chosen[j] = static_cast<std::int64_t>(j);
      std::shuffle(chosen.begin(), chosen.end(), random);
      const auto choice = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(form.width + 1 - form.least));
      chosen.resize(std::min(chosen.size(), static_cast<std::size_t>(form.least + choice)));
      if (pages && row.visible % tokens != 0)
        std::stable_partition(chosen.begin(), chosen.end(), [&](std::int64_t j) { return j != choices - 1; });
      std::vector<std::int64_t> slots;
      for (std::size_t j = 0; j < chosen.size(); ++j) {
        const std::int64_t first = chosen[j] * unit;
        for (std::int64_t p = first; p < std::min(first + unit, row.visible); ++p)
          slots.push_back(table[p / tokens] * tokens + p % tokens);
        made.ids[static_cast<std::size_t>((i * heads + h) * form.width) + j] =
            pages ? table[chosen[j]] : table[first / tokens] * tokens + first % tokens;
      }
      made.num_keys[static_cast<std::size_t>(i * heads + h)] = static_cast<std::int64_t>(slots.size());
      for (std::size_t t = 0; t < rows.size(); ++t)
        for (std::int64_t k = 0; k < num_kv_heads(c.cache); ++k)
          if ((of_rows ? static_cast<std::int64_t>(t) == i : rows[t].request == i) && (!form.by_head || k == h))
            made.slots[t * static_cast<std::size_t>(num_kv_heads(c.cache)) + static_cast<std::size_t>(k)] = slots;
    }
  }
  made.view.unit = form.unit, made.view.owner = form.owner;
  made.narrow_ids.assign(made.ids.begin(), made.ids.end());
  made.narrow_num_keys.assign(made.num_keys.begin(), made.num_keys.end());
  const bool wide = form.index == DType::i64;
  void* const ids = wide ? static_cast<void*>(made.ids.data()) : made.narrow_ids.data();
  void* const counts = wide ? static_cast<void*>(made.num_keys.data()) : made.narrow_num_keys.data();
  made.view.ids = form.by_head ? Tensor::contiguous(ids, form.index, n, heads, form.width)
                               : Tensor::contiguous(ids, form.index, n, form.width);
  if (form.counted)
    made.view.num_keys =
        form.by_head ? Tensor::contiguous(counts, form.index, n, heads) : Tensor::contiguous(counts, form.index, n);
  return made;
}

inline float& token_scale(const Case& c, const Tensor& scale, std::int64_t slot, std::int64_t head) {
  const std::int64_t page = slot / page_size(c.cache), offset = slot % page_size(c.cache);
  return static_cast<float*>(scale.data)[page * scale.stride[0] + offset * scale.stride[1] + head * scale.stride[2]];
}

/// NaN in K and V wherever no list of the head holds the slot.
inline void poison_unlisted(const Case& c, const Lists& lists) {
  const std::int64_t heads = num_kv_heads(c.cache),
                     rows = static_cast<std::int64_t>(lists.slots.size()) / std::max<std::int64_t>(1, heads);
  for (std::int64_t h = 0; h < heads; ++h) {
    std::set<std::int64_t> kept;
    for (std::int64_t t = 0; t < rows; ++t)
      kept.insert(lists.slots[static_cast<std::size_t>(t * heads + h)].begin(),
                  lists.slots[static_cast<std::size_t>(t * heads + h)].end());
    for (std::int64_t slot = 0; slot < num_pages(c.cache) * page_size(c.cache); ++slot) {
      if (kept.contains(slot)) continue;
      for (const Tensor* scale : {&c.cache.k_scale, &c.cache.v_scale})
        if (scale->rank == 3) token_scale(c, *scale, slot, h) = std::nanf("");
      for (std::int64_t d = 0; d < head_dim(c.cache); ++d)
        semantics::store(c.cache.k.data, c.cache.k.dtype, element_of(c.cache, c.cache.k, true, slot, h, d), std::nanf(""));
      for (std::int64_t d = 0; d < v_head_dim(c.cache); ++d)
        semantics::store(c.cache.v.data, c.cache.v.dtype, element_of(c.cache, c.cache.v, false, slot, h, d), std::nanf(""));
    }
  }
}

inline Tensor heads_of(Tensor t, std::int64_t first, std::int64_t count) {
  if (!t.present()) return t;
  t.data = static_cast<std::byte*>(t.data) + first * t.stride[1] * itemsize(t.dtype);
  t.shape[1] = count;
  return t;
}

inline Tensor one_scale(Tensor t, std::int64_t head) {
  if (t.rank == 3) return t;  // gathered
  if (t.rank != 1 || t.shape[0] == 1) return t;
  t.data = static_cast<float*>(t.data) + head * t.stride[0];
  t.shape[0] = 1;
  return t;
}

/// One KV head, with a page for each row that holds the keys of its list.
struct Gathered {
  std::vector<std::byte> k, v;
  std::vector<float> k_scales, v_scales;
  std::vector<std::int32_t> starts, lens, table;
  Batch batch;
  KVCache cache;
  Options options;
};

inline Gathered gathered(const Case& c, const Lists& lists, std::int64_t head) {
  Gathered g;
  const std::int64_t heads = num_kv_heads(c.cache), group = c.batch.query.shape[1] / heads;
  const std::int64_t rows = static_cast<std::int64_t>(lists.slots.size()) / heads, dk = head_dim(c.cache),
                     dv = v_head_dim(c.cache);
  const std::int64_t item = itemsize(c.cache.k.dtype);
  std::int64_t most = 1;
  for (const auto& slots : lists.slots) most = std::max(most, static_cast<std::int64_t>(slots.size()));
  g.k.resize(static_cast<std::size_t>(rows * most * dk * item)), g.v.resize(static_cast<std::size_t>(rows * most * dv * item));
  g.starts.push_back(0);
  for (std::int64_t t = 0; t < rows; ++t) {
    const auto& slots = lists.slots[static_cast<std::size_t>(t * heads + head)];
    g.starts.push_back(static_cast<std::int32_t>(t + 1)), g.table.push_back(static_cast<std::int32_t>(t));
    g.lens.push_back(static_cast<std::int32_t>(slots.size()));
    const auto copy = [&](std::vector<std::byte>& to, const Tensor& from, bool is_k, std::int64_t dims) {
      for (std::size_t j = 0; j < slots.size(); ++j)
        for (std::int64_t d = 0; d < dims; ++d)
          std::memcpy(to.data() + ((t * most + static_cast<std::int64_t>(j)) * dims + d) * item,
                      static_cast<const std::byte*>(from.data) + element_of(c.cache, from, is_k, slots[j], head, d) * item,
                      static_cast<std::size_t>(item));
    };
    copy(g.k, c.cache.k, true, dk), copy(g.v, c.cache.v, false, dv);
    for (const auto& [scale, to] : {std::pair{&c.cache.k_scale, &g.k_scales}, std::pair{&c.cache.v_scale, &g.v_scales}}) {
      to->resize(static_cast<std::size_t>((t + 1) * most), 1.0f);
      for (std::size_t j = 0; scale->rank == 3 && j < slots.size(); ++j)
        (*to)[static_cast<std::size_t>(t * most) + j] = token_scale(c, *scale, slots[j], head);
    }
  }
  g.cache.k = Tensor::contiguous(g.k.data(), c.cache.k.dtype, rows, most, 1, dk);
  g.cache.v = Tensor::contiguous(g.v.data(), c.cache.v.dtype, rows, most, 1, dv);
  g.cache.k_scale = one_scale(c.cache.k_scale, head), g.cache.v_scale = one_scale(c.cache.v_scale, head);
  if (c.cache.k_scale.rank == 3) g.cache.k_scale = Tensor::contiguous(g.k_scales.data(), DType::f32, rows, most, 1);
  if (c.cache.v_scale.rank == 3) g.cache.v_scale = Tensor::contiguous(g.v_scales.data(), DType::f32, rows, most, 1);
  g.batch.query = heads_of(c.batch.query, head * group, group);
  g.batch.output = heads_of(c.batch.output, head * group, group);
  g.batch.lse = heads_of(c.batch.lse, head * group, group);
  for (Tensor* t : {&g.batch.query, &g.batch.output, &g.batch.lse})
    if (t->present()) t->shape[0] = rows;
  g.batch.q_scale = one_scale(c.batch.q_scale, head), g.batch.output_scale = c.batch.output_scale;
  g.batch.query_start_loc = Tensor::contiguous(g.starts.data(), DType::i32, rows + 1);
  g.batch.seq_lens = Tensor::contiguous(g.lens.data(), DType::i32, rows);
  g.batch.block_table = Tensor::contiguous(g.table.data(), DType::i32, rows, 1);
  g.options = c.options;
  g.options.causal = false;
  if (g.options.sinks.present()) {
    g.options.sinks.data = static_cast<float*>(g.options.sinks.data) + head * group * g.options.sinks.stride[0];
    g.options.sinks.shape[0] = group;
  }
  return g;
}

/// sum p V / sum p of one row and query head of the case, straight from its cache, in fp64.
inline std::vector<double> softmax_of(const Case& c, const std::vector<std::int64_t>& slots, std::int64_t row,
                                      std::int64_t q_head) {
  const std::int64_t heads = num_kv_heads(c.cache), head = q_head / (c.batch.query.shape[1] / heads);
  const std::int64_t dk = head_dim(c.cache), dv = v_head_dim(c.cache);
  const auto at = [](const Tensor& t, std::int64_t i) { return static_cast<double>(semantics::load(t.data, t.dtype, i)); };
  const auto scale = [&](const Tensor& t) {
    return !t.present() || t.rank == 3 ? 1.0 : at(t, t.rank == 1 && t.shape[0] > 1 ? head * t.stride[0] : 0);
  };
  std::vector<double> scores;
  for (const std::int64_t slot : slots) {
    double dot = 0;
    for (std::int64_t d = 0; d < dk; ++d)
      dot += at(c.batch.query, row * c.batch.query.stride[0] + q_head * c.batch.query.stride[1] + d * c.batch.query.stride[2]) *
             at(c.cache.k, element_of(c.cache, c.cache.k, true, slot, head, d));
    dot *= scale(c.batch.q_scale) * scale(c.cache.k_scale);
    if (c.cache.k_scale.rank == 3) dot *= static_cast<double>(token_scale(c, c.cache.k_scale, slot, head));
    dot *= c.options.softmax_scale ? static_cast<double>(*c.options.softmax_scale) : 1 / std::sqrt(static_cast<double>(dk));
    if (c.options.logits_soft_cap) dot = *c.options.logits_soft_cap * std::tanh(dot / *c.options.logits_soft_cap);
    scores.push_back(dot);
  }
  std::vector<double> out(static_cast<std::size_t>(dv), 0.0);
  const bool sink = c.options.sinks.present();
  const double of_sink = sink ? at(c.options.sinks, q_head * c.options.sinks.stride[0]) : 0;
  double most = sink ? of_sink : -INFINITY, sum = 0;
  for (const double s : scores) most = std::max(most, s);
  if (sink) sum += std::exp(of_sink - most);
  for (std::size_t j = 0; j < slots.size(); ++j) {
    double weight = std::exp(scores[j] - most);
    sum += weight;
    if (c.cache.v_scale.rank == 3) weight *= static_cast<double>(token_scale(c, c.cache.v_scale, slots[j], head));
    for (std::int64_t d = 0; d < dv; ++d)
      out[static_cast<std::size_t>(d)] += weight * at(c.cache.v, element_of(c.cache, c.cache.v, false, slots[j], head, d));
  }
  const bool stored = c.batch.output.dtype == DType::fp8_e4m3fn;
  const double unit = scale(c.cache.v_scale) / (stored ? at(c.batch.output_scale, 0) : 1);
  for (double& o : out) {
    o *= sum > 0 ? unit / sum : 0;
    if (stored) o = std::clamp(o, -448.0, 448.0);
  }
  return out;
}

/// Empty if output and lse of the case are those of attention over the lists.
inline std::string judged(const Case& c, const Lists& lists) {
  const std::int64_t heads = num_kv_heads(c.cache), group = c.batch.query.shape[1] / heads;
  for (std::int64_t h = 0; h < heads; ++h) {
    const Gathered g = gathered(c, lists, h);
    const Result<Reference> expected = reference(g.batch, g.cache, g.options);
    if (!expected.ok()) return expected.status().message();
    for (std::int64_t t = 0; t < expected->num_tokens; ++t)
      for (std::int64_t q = 0; q < group; ++q) {
        const std::vector<double> second = softmax_of(c, lists.slots[static_cast<std::size_t>(t * heads + h)], t, h * group + q);
        for (std::size_t d = 0; d < second.size(); ++d) {
          const double first = expected->out[static_cast<std::size_t>(t * group + q) * second.size() + d];
          if (!(std::abs(first - second[d]) <= 1e-9 * (1 + std::abs(first))))
            return "two references differ: " + std::to_string(first) + " and " + std::to_string(second[d]);
        }
      }
    const Comparison compared = compare(g.batch.output, g.batch.lse, expected.value());
    if (!compared.ok) return "KV head " + std::to_string(h) + ": " + compared.text;
  }
  return "";
}

}  // namespace quire::test
