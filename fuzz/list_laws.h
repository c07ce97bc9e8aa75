// SPDX-License-Identifier: Apache-2.0
// Laws of key lists, for any batch and any lists whatsoever. A check returns the broken law as text, or "".
//
//   1. check_sparse() is memory-safe at every depth, and clean at depth tables only if it is clean at depth metadata.
//   2. If it is clean, plan_sparse() and attend_sparse() succeed, and with finite contents the output agrees with the fp64
//      reference over a cache that holds the listed keys and no other.
//   3. If it is not, plan_sparse() refuses, with the status of the findings.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "batch_from_bytes.h"
#include "quire/sparse.hpp"
#include "quire/tools/diagnose.hpp"

namespace quire::fuzz {

/// Slots of the keys that list `i` holds for a KV head. Only for lists that are sound.
inline std::vector<std::int64_t> listed_slots(const KeyLists& lists, std::int64_t page_size, std::int64_t i, std::int64_t head) {
  const Tensor &ids = lists.ids, &counts = lists.num_keys;
  const std::int64_t first = i * ids.stride[0] + (ids.rank == 3 ? head * ids.stride[1] : 0), width = ids.shape[ids.rank - 1];
  const auto entry = [&](std::int64_t j) {
    return semantics::load_index(ids.data, ids.dtype, first + j * ids.stride[ids.rank - 1]);
  };
  std::int64_t count = 0;
  if (counts.present())
    count =
        semantics::load_index(counts.data, counts.dtype, i * counts.stride[0] + (counts.rank == 2 ? head * counts.stride[1] : 0));
  else
    while (count < width && entry(count) >= 0) ++count;
  std::vector<std::int64_t> slots;
  const bool of_pages = lists.unit == ListUnit::page;
  for (std::int64_t k = 0; k < count; ++k)
    slots.push_back(of_pages ? entry(k / page_size) * page_size + k % page_size : entry(k));
  return slots;
}

/// One KV head of a batch, with a page for each row that holds the keys of its list: what the lists mean, without lists.
class Gathered {
 public:
  Batch batch;
  KVCache cache;
  Options options;

  Gathered(const Batch& b, const KVCache& c, const Options& o, const KeyLists& lists, std::int64_t head) : options(o) {
    const std::int64_t rows = b.query.shape[0], group = b.query.shape[1] / num_kv_heads(c), tokens = page_size(c);
    std::int64_t request = 0, most = 1;
    std::vector<std::vector<std::int64_t>> slots;
    starts_.push_back(0);
    for (std::int64_t t = 0; t < rows; ++t) {
      const auto start_after = [&](std::int64_t r) {
        return semantics::load_index(b.query_start_loc.data, b.query_start_loc.dtype, (r + 1) * b.query_start_loc.stride[0]);
      };
      while (start_after(request) <= t) ++request;
      slots.push_back(listed_slots(lists, tokens, lists.owner == ListOwner::row ? t : request, head));
      most = std::max(most, static_cast<std::int64_t>(slots.back().size()));
      starts_.push_back(static_cast<std::int32_t>(t + 1));
      lens_.push_back(static_cast<std::int32_t>(slots.back().size()));
      table_.push_back(static_cast<std::int32_t>(t));
    }
    cache.k = gathered(c, slots, head, most, semantics::k_strides(c), c.k, head_dim(c), k_);
    cache.v = gathered(c, slots, head, most, semantics::v_strides(c), c.v, v_head_dim(c), v_);
    cache.k_scale = of_head(c.k_scale, head), cache.v_scale = of_head(c.v_scale, head);
    batch.query = heads_of(b.query, head * group, group);
    batch.output = heads_of(b.output, head * group, group);
    batch.lse = heads_of(b.lse, head * group, group);
    batch.query_start_loc = Tensor::contiguous(starts_.data(), DType::i32, rows + 1);
    batch.seq_lens = Tensor::contiguous(lens_.data(), DType::i32, rows);
    batch.block_table = Tensor::contiguous(table_.data(), DType::i32, rows, 1);
    options.causal = false;
    if (!options.sinks.present()) return;
    options.sinks.data = static_cast<float*>(options.sinks.data) + head * group * options.sinks.stride[0];
    options.sinks.shape[0] = group;
  }
  Gathered(const Gathered&) = delete;

 private:
  static Tensor gathered(const KVCache& c, const std::vector<std::vector<std::int64_t>>& slots, std::int64_t head,
                         std::int64_t most, const semantics::KvStrides& strides, const Tensor& from, std::int64_t dims,
                         std::vector<std::byte>& to) {
    const std::int64_t item = itemsize(from.dtype), tokens = page_size(c), rows = static_cast<std::int64_t>(slots.size());
    to.resize(static_cast<std::size_t>(rows * most * dims * item));
    std::byte* row = to.data();
    for (const std::vector<std::int64_t>& of_row : slots) {
      std::byte* at = row;
      for (const std::int64_t slot : of_row)
        for (std::int64_t d = 0; d < dims; ++d, at += item)
          std::memcpy(at,
                      static_cast<const std::byte*>(from.data) +
                          (strides.row(slot / tokens, head, slot % tokens) + strides.element(d)) * item,
                      static_cast<std::size_t>(item));
      row += most * dims * item;
    }
    return Tensor::contiguous(to.data(), from.dtype, rows, most, 1, dims);
  }
  static Tensor heads_of(Tensor t, std::int64_t first, std::int64_t count) {
    if (!t.present()) return t;
    if (t.data != nullptr) t.data = static_cast<std::byte*>(t.data) + first * t.stride[1] * itemsize(t.dtype);  // null: no rows
    t.shape[1] = count;
    return t;
  }
  static Tensor of_head(Tensor t, std::int64_t head) {
    if (t.rank != 1 || t.shape[0] == 1) return t;
    t.data = static_cast<float*>(t.data) + head * t.stride[0];
    t.shape[0] = 1;
    return t;
  }

  std::vector<std::byte> k_, v_;
  std::vector<std::int32_t> starts_, lens_, table_;
};

/// attend_sparse() of a call that check_sparse() finds clean. `compared`: counts outputs that were held against the reference.
inline std::string attend_lists_law(const FuzzBatch& f, const Batch& batch, const Options& options, Executor& executor,
                                    std::int64_t& compared) {
  SparseSettings settings;
  settings.plan.num_threads = 1;
  const Result<Sparse> planned = plan_sparse(batch, f.cache, options, f.lists, settings);
  if (!planned.ok()) return "lists clean, but plan_sparse: " + planned.status().message();
  std::vector<float> memory(workspace_bytes(planned.value()) / sizeof(float) + 32, std::nanf(""));
  void* start = memory.data();
  std::size_t room = memory.size() * sizeof(float);
  const std::size_t bytes = workspace_bytes(planned.value());
  std::align(64, bytes, start, room);
  const Status status = attend_sparse(planned.value(), batch, f.cache, options, f.lists, {static_cast<std::byte*>(start), bytes},
                                      {.executor = &executor});
  if (!status.ok()) return "lists clean, but attend_sparse: " + status.message();
  // Gathered copies elements, of which rows of fp8_ds_mla and bytes of 4-bit codes hold several.
  const bool of_elements = f.cache.k.dtype != DType::fp8_ds_mla && !is_four_bit(f.cache.k.dtype) && !is_four_bit(f.cache.v.dtype);
  const bool compares = of_elements && f.tame_values && check(batch, f.cache, options, Depth::contents).ok();
  for (std::int64_t head = 0; compares && head < num_kv_heads(f.cache); ++head) {
    const Gathered expected(batch, f.cache, options, f.lists, head);
    const Result<Reference> right = reference(expected.batch, expected.cache, expected.options);
    if (!right.ok()) return "lists clean, but reference: " + right.status().message();
    const Comparison comparison = compare(expected.batch.output, expected.batch.lse, right.value());
    if (!comparison.ok) return "lists clean, but wrong: " + comparison.text;
    ++compared;
  }
  return {};
}

inline std::string broken_list_law(const FuzzBatch& f, Executor& executor, std::int64_t& clean, std::int64_t& compared) {
  if (!f.lists.ids.present()) return {};
  const Batch batch = f.batch_of_lists();
  const Options options = f.options_of_lists();
  const Findings metadata = check_sparse(batch, f.cache, options, f.lists, Depth::metadata);
  const Findings tables = check_sparse(batch, f.cache, options, f.lists);
  if (tables.ok() && !metadata.ok()) return "check_sparse: a deeper check found less";  // a broken batch is reported alone
  if (tables.ok()) {
    ++clean;
    return attend_lists_law(f, batch, options, executor, compared);
  }
  const Result<Sparse> planned = plan_sparse(batch, f.cache, options, f.lists);
  if (planned.ok()) return "plan_sparse accepts what check_sparse refuses: " + tables.items.front().message;
  const bool of_description = batch.query.memory != Memory::cpu && planned.status().message() == metadata.status().message();
  if (planned.status().message() != tables.status().message() && !of_description)
    return "plan_sparse: another text: " + planned.status().message();
  return {};
}

}  // namespace quire::fuzz
