// SPDX-License-Identifier: Apache-2.0
// Views: a cache as pages of one token each, one KV head of a call, and lists in host memory.
#include "sparse/views.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "semantics/page_walk.h"
#include "semantics/slot_grid.h"

namespace quire::sparse {
namespace {

/// Elements [begin, begin + count) of an axis; an absent tensor stays absent.
Tensor sliced(Tensor t, int axis, std::int64_t begin, std::int64_t count) {
  if (t.rank <= axis) return t;
  t.data = static_cast<std::byte*>(t.data) + begin * t.stride[axis] * itemsize(t.dtype);
  t.shape[axis] = count;
  return t;
}

/// Element `at` of an axis, which goes away.
Tensor picked(Tensor t, int axis, std::int64_t at) {
  t = sliced(t, axis, at, 1);
  for (int i = axis; i + 1 < t.rank; ++i) t.shape[i] = t.shape[i + 1], t.stride[i] = t.stride[i + 1];
  --t.rank;
  return t;
}

int head_axis(CacheLayout layout) { return layout == CacheLayout::nhd ? 2 : 1; }

/// A scale of one for all, or one for each head.
Tensor scale_of_head(const Tensor& scale, std::int64_t head) {
  return scale.rank == 1 && scale.shape[0] > 1 ? sliced(scale, 0, head, 1) : scale;
}

/// The cache as pages of one token each.
KVCache tokens_of(KVCache cache) {
  const std::optional<semantics::SlotGrid> grid = semantics::slot_grid(cache);
  const std::int64_t pages = semantics::grid_pages(*grid, cache);
  const int token_axis = cache.layout == CacheLayout::hnd ? 2 : 1;
  const auto view = [&](Tensor& t, std::int64_t stride) {
    t.shape[0] = pages, t.shape[token_axis] = 1;
    t.stride[0] = t.stride[token_axis] = stride;
  };
  view(cache.k, grid->k_stride);
  view(cache.v, grid->v_stride);
  return cache;
}

/// Rows, sinks, scales and lists of one KV head.
Part of_head(const Part& all, const Tensor& ids, const Tensor& num_keys, std::int64_t head) {
  Part part = all;
  const std::int64_t group = all.batch.query.shape[1] / num_kv_heads(all.cache);
  for (Tensor* t : {&part.batch.query, &part.batch.output, &part.batch.lse}) *t = sliced(*t, 1, head * group, group);
  part.options.sinks = sliced(all.options.sinks, 0, head * group, group);
  part.batch.q_scale = scale_of_head(all.batch.q_scale, head);
  for (Tensor* t : {&part.cache.k, &part.cache.v}) *t = sliced(*t, head_axis(all.cache.layout), head, 1);
  part.cache.k_scale = scale_of_head(all.cache.k_scale, head);
  part.cache.v_scale = scale_of_head(all.cache.v_scale, head);
  part.batch.block_table = picked(ids, 1, head);
  part.batch.seq_lens = num_keys.rank == 2 ? picked(num_keys, 1, head) : num_keys;
  return part;
}

}  // namespace

std::vector<Part> parts_of(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists, bool causal) {
  Part all;
  all.cache = lists.unit == ListUnit::slot ? tokens_of(cache) : cache;
  all.options = {.softmax_scale = options.softmax_scale,
                 .logits_soft_cap = options.logits_soft_cap,
                 .sinks = options.sinks,
                 .causal = causal};
  all.batch.query = batch.query;
  all.batch.output = batch.output;
  all.batch.lse = batch.lse;
  all.batch.q_scale = batch.q_scale;
  all.batch.output_scale = batch.output_scale;
  all.batch.padding = batch.padding;
  all.batch.query_start_loc = lists.owner == ListOwner::row ? lists.row_starts : batch.query_start_loc;
  all.batch.block_table = lists.ids;
  all.batch.seq_lens = lists.num_keys;
  if (lists.ids.rank == 2) return {all};
  std::vector<Part> parts;
  for (std::int64_t h = 0; h < num_kv_heads(cache); ++h) parts.push_back(of_head(all, lists.ids, lists.num_keys, h));
  return parts;
}

HostLists::HostLists(const Batch& batch, const KVCache& cache, const KeyLists& lists) : made_(lists) {
  const Tensor &ids = lists.ids, &given = lists.num_keys;
  const std::int64_t n = ids.shape[0], width = ids.shape[ids.rank - 1], heads = ids.rank == 3 ? ids.shape[1] : 1;
  const std::int64_t tokens = page_size(cache);
  const bool slots = lists.unit == ListUnit::slot;
  const semantics::SlotGrid grid = slots ? *semantics::slot_grid(cache) : semantics::SlotGrid{};
  ids_.assign(static_cast<std::size_t>(n * heads * width), -1);
  num_keys_.assign(static_cast<std::size_t>(n * heads), 0);
  const semantics::IndexView starts = semantics::index_view(batch.query_start_loc);
  const bool rows = lists.owner == ListOwner::row;
  const std::int64_t owned = rows ? num_request_rows(batch) : n;
  for (std::int64_t i = 0; i < owned; ++i) {
    if (!rows && starts[i + 1] == starts[i]) continue;
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto list = static_cast<std::size_t>(i * heads + h);
      const std::int64_t at = i * ids.stride[0] + (ids.rank == 3 ? h * ids.stride[1] : 0), step = ids.stride[ids.rank - 1];
      std::int64_t& keys = num_keys_[list];
      const auto id = [&](std::int64_t j) { return semantics::load_index(ids.data, ids.dtype, at + j * step); };
      if (given.present())
        keys = semantics::load_index(given.data, given.dtype, i * given.stride[0] + (given.rank == 2 ? h * given.stride[1] : 0));
      else
        while (keys < width && id(keys) >= 0) ++keys;
      const std::int64_t in_use = slots ? keys : (keys + tokens - 1) / tokens;
      for (std::int64_t j = 0; j < in_use; ++j)
        ids_[list * static_cast<std::size_t>(width) + static_cast<std::size_t>(j)] =
            slots ? id(j) / tokens * grid.per_page + id(j) % tokens * grid.per_token : id(j);
    }
  }
  made_.ids = ids.rank == 3 ? Tensor::contiguous(ids_.data(), DType::i64, n, heads, width)
                            : Tensor::contiguous(ids_.data(), DType::i64, n, width);
  made_.num_keys = ids.rank == 3 ? Tensor::contiguous(num_keys_.data(), DType::i64, n, heads)
                                 : Tensor::contiguous(num_keys_.data(), DType::i64, n);
  if (!rows) return;
  row_starts_.resize(static_cast<std::size_t>(n + 1));
  for (std::int64_t i = 0; i <= n; ++i) row_starts_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(std::min(i, owned));
  made_.row_starts = Tensor::contiguous(row_starts_.data(), DType::i32, n + 1);
}

}  // namespace quire::sparse
