// SPDX-License-Identifier: Apache-2.0
// Views: a cache as pages of one token each, one KV head of a call, and lists in host memory.
#include "sparse/views.h"

#include <algorithm>

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

/// A scale of one for all, one for each head, or one for each token and head.
Tensor scale_of_head(const Tensor& scale, std::int64_t head) {
  if (scale.rank == 3) return sliced(scale, 2, head, 1);
  return scale.rank == 1 && scale.shape[0] > 1 ? sliced(scale, 0, head, 1) : scale;
}

/// The cache as pages of one token each.
KVCache tokens_of(KVCache cache) {
  const std::int64_t pages = semantics::grid_pages(*semantics::slot_grid(cache), cache);
  const KVCache whole = cache;
  for (Tensor* t : {&cache.k, &cache.v, &cache.k_scale, &cache.v_scale, &cache.k_block_scale, &cache.v_block_scale}) {
    if (t->rank < 3) continue;
    const bool of_blocks = t == &cache.k_block_scale || t == &cache.v_block_scale;
    const int token_axis = t->rank == 4 && !of_blocks && cache.layout == CacheLayout::hnd ? 2 : 1;
    const semantics::TokenSteps steps = of_blocks ? semantics::block_scale_steps(*t) : semantics::token_steps(*t, cache.layout);
    const std::int64_t stride = semantics::grid_stride(steps, whole);
    t->shape[0] = pages, t->shape[token_axis] = 1;
    t->stride[0] = t->stride[token_axis] = stride;
  }
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
  part.cache.k_block_scale = sliced(all.cache.k_block_scale, 2, head, 1);
  part.cache.v_block_scale = sliced(all.cache.v_block_scale, 2, head, 1);
  part.batch.block_table = picked(ids, 1, head);
  part.batch.seq_lens = num_keys.rank == 2 ? picked(num_keys, 1, head) : num_keys;
  return part;
}

/// The list of owner `i`, of KV head `head` where heads have lists.
semantics::IndexView list_of(const Tensor& ids, std::int64_t i, std::int64_t head) {
  const std::int64_t at = i * ids.stride[0] + (ids.rank == 3 ? head * ids.stride[1] : 0);
  return {static_cast<const std::byte*>(ids.data) + at * itemsize(ids.dtype), ids.dtype, ids.stride[ids.rank - 1]};
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
  const Tensor& ids = lists.ids;
  const std::int64_t n = ids.shape[0], heads = ids.rank == 3 ? ids.shape[1] : 1;
  count(batch, lists);
  const std::int64_t most = num_keys_.empty() ? 0 : *std::max_element(num_keys_.begin(), num_keys_.end());
  const std::int64_t tokens = lists.unit == ListUnit::page ? page_size(cache) : 1, width = (most + tokens - 1) / tokens;
  copy_ids(cache, lists, width);
  made_.ids = ids.rank == 3 ? Tensor::contiguous(ids_.data(), DType::i64, n, heads, width)
                            : Tensor::contiguous(ids_.data(), DType::i64, n, width);
  made_.num_keys = ids.rank == 3 ? Tensor::contiguous(num_keys_.data(), DType::i64, n, heads)
                                 : Tensor::contiguous(num_keys_.data(), DType::i64, n);
  if (lists.owner == ListOwner::request) return;
  const std::int64_t owned = num_request_rows(batch);
  row_starts_.resize(static_cast<std::size_t>(n + 1));
  for (std::int64_t i = 0; i <= n; ++i) row_starts_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(std::min(i, owned));
  made_.row_starts = Tensor::contiguous(row_starts_.data(), DType::i32, n + 1);
}

void HostLists::count(const Batch& batch, const KeyLists& lists) {
  const Tensor &ids = lists.ids, &given = lists.num_keys;
  const bool rows = lists.owner == ListOwner::row;
  const std::int64_t heads = ids.rank == 3 ? ids.shape[1] : 1;
  const semantics::IndexView starts = semantics::index_view(batch.query_start_loc);
  num_keys_.assign(static_cast<std::size_t>(ids.shape[0] * heads), 0);
  const std::int64_t owned = rows ? num_request_rows(batch) : ids.shape[0];
  for (std::int64_t i = 0; i < owned; ++i) {
    if (!rows && starts[i + 1] == starts[i]) continue;
    for (std::int64_t h = 0; h < heads; ++h) {
      std::int64_t& keys = num_keys_[static_cast<std::size_t>(i * heads + h)];
      if (given.present()) {
        keys = semantics::load_index(given.data, given.dtype, i * given.stride[0] + (given.rank == 2 ? h * given.stride[1] : 0));
        continue;
      }
      const semantics::IndexView list = list_of(ids, i, h);
      while (keys < ids.shape[ids.rank - 1] && list[keys] >= 0) ++keys;
    }
  }
}

void HostLists::copy_ids(const KVCache& cache, const KeyLists& lists, std::int64_t width) {
  const bool slots = lists.unit == ListUnit::slot;
  const std::int64_t tokens = page_size(cache), heads = lists.ids.rank == 3 ? lists.ids.shape[1] : 1;
  const semantics::SlotGrid grid = slots ? *semantics::slot_grid(cache) : semantics::SlotGrid{};
  ids_.assign(num_keys_.size() * static_cast<std::size_t>(width), -1);
  for (std::size_t l = 0; l < num_keys_.size(); ++l) {
    const semantics::IndexView list =
        list_of(lists.ids, static_cast<std::int64_t>(l) / heads, static_cast<std::int64_t>(l) % heads);
    const std::int64_t in_use = slots ? num_keys_[l] : (num_keys_[l] + tokens - 1) / tokens;
    for (std::int64_t j = 0; j < in_use; ++j) {
      const std::int64_t id = list[j];
      ids_[l * static_cast<std::size_t>(width) + static_cast<std::size_t>(j)] =
          slots ? id / tokens * grid.per_page + id % tokens * grid.per_token : id;
    }
  }
}

}  // namespace quire::sparse
