// SPDX-License-Identifier: Apache-2.0
// Helpers of the capture tests: every tensor of a case by name, element decoding, a brute-force list of what may be read.
//
// The brute force repeats the equations of batch.hpp row by row and key by key and shares no code with make_case.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "quire/tools/capture.hpp"
#include "semantics/dtype.h"

namespace quire::test {

inline std::vector<std::pair<std::string, Tensor>> tensors_of(const Case& c) {
  std::vector<std::pair<std::string, Tensor>> all = {{"query", c.batch.query},
                                                     {"output", c.batch.output},
                                                     {"query_start_loc", c.batch.query_start_loc},
                                                     {"seq_lens", c.batch.seq_lens},
                                                     {"block_table", c.batch.block_table},
                                                     {"cached_lens", c.batch.cached_lens},
                                                     {"key", c.batch.key},
                                                     {"value", c.batch.value},
                                                     {"slot_mapping", c.batch.slot_mapping},
                                                     {"lse", c.batch.lse},
                                                     {"request_ids", c.batch.request_ids},
                                                     {"causal", c.batch.causal},
                                                     {"q_begin", c.batch.q_begin},
                                                     {"key_begin", c.batch.key_begin},
                                                     {"spans", c.batch.spans},
                                                     {"prefix_lens", c.batch.prefix_lens},
                                                     {"tree_mask", c.batch.tree_mask},
                                                     {"tree_lens", c.batch.tree_lens},
                                                     {"k_cache", c.cache.k},
                                                     {"v_cache", c.cache.v},
                                                     {"k_scale", c.cache.k_scale},
                                                     {"v_scale", c.cache.v_scale},
                                                     {"alibi_slopes", c.options.alibi_slopes},
                                                     {"sinks", c.options.sinks},
                                                     {"observed", c.observed},
                                                     {"observed_lse", c.observed_lse}};
  return all;
}

inline std::size_t bytes_of(const Tensor& t) { return static_cast<std::size_t>(t.num_elements() * itemsize(t.dtype)); }

/// FNV-1a over the bytes of all tensors in the order above.
inline std::uint64_t hash_of(const Case& c) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const auto& [name, t] : tensors_of(c)) {
    const auto* data = static_cast<const unsigned char*>(t.data);
    for (std::size_t i = 0; i < bytes_of(t); ++i) hash = (hash ^ data[i]) * 0x100000001B3u;
  }
  return hash;
}

inline std::int64_t index_at(const Tensor& t, std::int64_t i) {
  return t.dtype == DType::i64 ? static_cast<const std::int64_t*>(t.data)[i] : static_cast<const std::int32_t*>(t.data)[i];
}

inline float float_at(const Tensor& t, std::int64_t i) { return semantics::load(t.data, t.dtype, i); }

/// Index of one cache element, from the documented shapes of the layouts.
inline std::int64_t cache_index(const Case& c, bool keys, std::int64_t page, std::int64_t head, std::int64_t token,
                                std::int64_t d) {
  const Tensor& t = keys ? c.cache.k : c.cache.v;
  const auto& n = t.shape;
  switch (c.cache.layout) {
    case CacheLayout::nhd: return ((page * n[1] + token) * n[2] + head) * n[3] + d;
    case CacheLayout::hnd: return ((page * n[1] + head) * n[2] + token) * n[3] + d;
    case CacheLayout::packed:
      if (!keys) return ((page * n[1] + head) * n[2] + d) * n[3] + token;
      return (((page * n[1] + head) * n[2] + d / n[4]) * n[3] + token) * n[4] + d % n[4];
  }
  return -1;
}

/// Elements that a correct kernel may read, found by brute force.
struct Readable {
  std::vector<bool> slot;   ///< [num_pages * page_size]
  std::vector<bool> token;  ///< rows of key and value
  std::vector<bool> entry;  ///< entries of block_table
};

inline Readable readable(const Case& c, const Problem& p) {
  Readable out;
  const std::int64_t width = c.batch.block_table.shape[1];
  out.slot.assign(static_cast<std::size_t>(num_pages(c.cache) * p.page_size), false);
  out.entry.assign(static_cast<std::size_t>(c.batch.block_table.num_elements()), false);
  std::int64_t row = 0;
  out.token.reserve(static_cast<std::size_t>(c.batch.query.shape[0]));
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    for (std::int64_t i = 0; i < p.reqs[r].query_len; ++i, ++row) {
      const std::int64_t q_pos = p.reqs[r].context_len + i;
      out.token.push_back(q_pos >= p.reqs[r].cached_len);
      for (std::int64_t k = 0; k <= q_pos; ++k) {
        if (p.sliding_window && q_pos - k >= *p.sliding_window) continue;
        if (k >= p.reqs[r].cached_len) continue;
        const std::int64_t entry = static_cast<std::int64_t>(r) * width + k / p.page_size,
                           page = index_at(c.batch.block_table, entry);
        EXPECT_TRUE(page >= 0 && page < num_pages(c.cache)) << "request " << r << " position " << k;
        out.slot[static_cast<std::size_t>(page * p.page_size + k % p.page_size)] = true;
        out.entry[static_cast<std::size_t>(entry)] = true;
      }
    }
  }
  out.token.resize(static_cast<std::size_t>(c.batch.query.shape[0]), false);  // padding rows
  return out;
}

}  // namespace quire::test
