// SPDX-License-Identifier: Apache-2.0
// The keys of a case that a shard holds, in pages of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "quire/shards.hpp"
#include "quire/tools/capture.hpp"
#include "semantics/dtype.h"

namespace quire::test {

/// A case's keys as one rank holds them, in pages of its own, with NaN where it holds none.
struct RankCache {
  RankCache(const Case& c, const ContextShard& shard, std::int64_t page) : page_size(page) {
    const Tensor& k = c.cache.k;  // nhd
    const std::int64_t heads = k.shape[2], dim = k.shape[3], reqs = c.batch.seq_lens.shape[0];
    std::int64_t pages = 1;
    for (std::int64_t r = 0; r < reqs; ++r) pages = std::max(pages, shard.local_length(length(c, r)) / page + 1);
    memory.assign(static_cast<std::size_t>(2 * reqs * pages * page * heads * dim * itemsize(k.dtype)), std::byte{0xFF});
    cache.k = Tensor::contiguous(memory.data(), k.dtype, reqs * pages, page, heads, dim);
    cache.v = Tensor::contiguous(memory.data() + memory.size() / 2, k.dtype, reqs * pages, page, heads, dim);
    cache.k_scale = c.cache.k_scale;
    cache.v_scale = c.cache.v_scale;
    for (std::int64_t r = 0; r < reqs; ++r)
      for (std::int64_t j = 0; j < pages; ++j) table.push_back(static_cast<std::int32_t>(reqs * pages - 1 - (r * pages + j)));
    for (std::int64_t r = 0; r < reqs; ++r)
      for (std::int64_t p = 0; p < length(c, r); ++p) {
        if (!shard.holds(p)) continue;
        const std::int64_t j = shard.local_index(p);
        const std::int64_t slot = table[static_cast<std::size_t>(r * pages + j / page)] * page + j % page;
        const std::int64_t from_page = static_cast<const std::int32_t*>(
            c.batch.block_table.data)[r * c.batch.block_table.stride[0] + p / k.shape[1] * c.batch.block_table.stride[1]];
        copy_row(cache.k, slot, c.cache.k, from_page, p % k.shape[1]);
        copy_row(cache.v, slot, c.cache.v, from_page, p % k.shape[1]);
      }
    block_table = Tensor::contiguous(table.data(), DType::i32, reqs, pages);
  }

  static std::int64_t length(const Case& c, std::int64_t r) { return static_cast<const std::int32_t*>(c.batch.seq_lens.data)[r]; }
  void copy_row(const Tensor& to, std::int64_t slot, const Tensor& from, std::int64_t page, std::int64_t offset) const {
    for (std::int64_t h = 0; h < to.shape[2]; ++h)
      for (std::int64_t d = 0; d < to.shape[3]; ++d)
        semantics::store(
            to.data, to.dtype, (slot * to.shape[2] + h) * to.shape[3] + d,
            semantics::load(from.data, from.dtype,
                            page * from.stride[0] + offset * from.stride[1] + h * from.stride[2] + d * from.stride[3]));
  }

  std::int64_t page_size;
  std::vector<std::byte> memory;
  std::vector<std::int32_t> table;
  KVCache cache;
  Tensor block_table;
};

inline Case case_of(const std::string& line) {
  Result<ProblemLine> parsed = parse_problem_line(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  Result<Case> made = make_case(parsed.value());
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

inline ContextShard shard_of(std::int32_t rank, std::int32_t world, std::int64_t run, bool contiguous) {
  if (contiguous) return {.rank = rank, .world = world, .span = run};
  return {.rank = rank, .world = world, .interleave = run};
}

}  // namespace quire::test
