// SPDX-License-Identifier: Apache-2.0
// attend_sharded(): the rank's own attention in f32, one exchange, one merge in rank order.
//
// Partial results lie head by head: outputs [num_tokens, v_head_dim], then lse [num_tokens]. A rank's share of the heads is then
// contiguous, so the same buffer serves all-gather and all-to-all.
#include <array>
#include <bit>
#include <exception>

#include "quire/distributed.hpp"
#include "quire/workspace.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

std::vector<std::int64_t> values_of(const Tensor& t) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(t.shape[0]));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * t.stride[0];
    values[i] =
        t.dtype == DType::i64 ? static_cast<const std::int64_t*>(t.data)[at] : static_cast<const std::int32_t*>(t.data)[at];
  }
  return values;
}

/// Partial results of `heads` heads, one block after the other, `parts` times.
struct Layout {
  std::int64_t num_tokens, heads, head_dim;  // head_dim of values
  std::int64_t block() const { return num_tokens * (head_dim + 1); }
  Tensor outs(float* buffer, std::int64_t parts) const {
    Tensor t = Tensor::contiguous(buffer, DType::f32, parts, num_tokens, heads, head_dim);
    t.stride = {heads * block(), head_dim, block(), 1};
    return t;
  }
  Tensor lses(float* buffer, std::int64_t parts) const {
    Tensor t = Tensor::contiguous(buffer + num_tokens * head_dim, DType::f32, parts, num_tokens, heads);
    t.stride = {heads * block(), 1, block()};
    return t;
  }
};

/// The tensor without its first axis, of extent 1.
Tensor only(Tensor t) {
  --t.rank;
  std::copy(t.shape.begin() + 1, t.shape.end(), t.shape.begin());
  std::copy(t.stride.begin() + 1, t.stride.end(), t.stride.begin());
  return t;
}

Tensor heads_of(Tensor t, int axis, std::int64_t first, std::int64_t count) {
  t.data = static_cast<std::byte*>(t.data) + first * t.stride[static_cast<std::size_t>(axis)] * itemsize(t.dtype);
  t.shape[static_cast<std::size_t>(axis)] = count;
  return t;
}

/// Refuses what this call cannot express, before a tensor is looked at.
Status refuse(const Communicator& group, const ContextShard& shard, const Batch& batch, const Options& options) {
  if (const Findings findings = check_shard(shard); !findings.ok()) return findings.status();
  if (shard.rank != group.rank() || shard.world != group.world())
    return {Code::invalid_argument, formatted("shard: rank {} of {}, expected rank {} of {} as the group", shard.rank,
                                              shard.world, group.rank(), group.world())};
  if (batch.query.memory != Memory::cpu) return {Code::unsupported, "attend_sharded: query is on a device, expected host memory"};
  for (const auto& [tensor, name] : {std::pair{&batch.key, "key"},
                                     {&batch.cached_lens, "cached_lens"},
                                     {&batch.causal, "causal"},
                                     {&batch.q_begin, "q_begin"},
                                     {&batch.key_begin, "key_begin"}})
    if (tensor->present())
      return {
          Code::unsupported,
          formatted("{}: given; a sharded call reads every key from the cache of the rank that holds it: append first", name)};
  if (batch.padding != Padding::refused) return {Code::unsupported, "padding: a sharded call takes batches without padding rows"};
  if (!options.causal) return {Code::unsupported, "options.causal: false; a sharded call takes causal requests"};
  if (options.alibi_slopes.present() && !shard.contiguous() && shard.world > 1)
    return {Code::unsupported,
            "alibi_slopes: interleaved keys do not keep their distances in the cache; shard contiguously (span)"};
  return {};
}

/// Applies the rules of a batch whose output is the memory of partial results, and the rules of a merge into the caller's
/// output.
Status check_tensors(const Batch& batch, const KVCache& cache, const Options& options, const Tensor& outs, const Tensor& lses,
                     const ShardedSettings& settings, std::int32_t world) {
  Batch own = batch;
  own.output = only(outs);
  own.lse = only(lses);
  own.output_scale = Tensor{};
  if (const Findings findings = check(own, cache, options, Depth::metadata); !findings.ok()) return findings.status();
  const std::int64_t heads = outs.shape[2];
  if ((settings.own_heads || settings.swap_heads) && heads % world != 0)
    return {Code::invalid_argument, formatted("query: {} heads on {} ranks, expected a multiple", heads, world)};
  const std::int64_t merged = settings.own_heads ? heads / world : heads;
  return check_merge_many(heads_of(outs, 2, 0, merged), heads_of(lses, 2, 0, merged), batch.output, batch.lse, Depth::metadata,
                          batch.output_scale)
      .status();
}

/// Facts of all ranks about the step.
Status agree(Communicator& group, const ContextShard& shard, const Batch& batch, const KVCache& cache, const Options& options,
             const ShardedSettings& settings) {
  const auto digest = [](const Tensor& t) {
    std::uint64_t hash = 14695981039346656037U;  // FNV-1a
    for (const std::int64_t v : values_of(t)) hash = (hash ^ static_cast<std::uint64_t>(v)) * 1099511628211U;
    return static_cast<std::int64_t>(hash);
  };
  const auto bits = [](const std::optional<float>& v) { return v ? std::int64_t{std::bit_cast<std::int32_t>(*v)} : INT64_MIN; };
  const std::pair<const char*, std::int64_t> said[] = {{"interleave", shard.interleave},
                                                       {"span", shard.span},
                                                       {"num_tokens", batch.query.shape[0]},
                                                       {"num_q_heads", batch.query.shape[1]},
                                                       {"head_dim", batch.query.shape[2]},
                                                       {"v_head_dim", v_head_dim(cache)},
                                                       {"num_kv_heads", num_kv_heads(cache)},
                                                       {"page_size", page_size(cache)},
                                                       {"query dtype", static_cast<std::int64_t>(batch.query.dtype)},
                                                       {"cache dtype", static_cast<std::int64_t>(cache.k.dtype)},
                                                       {"query_start_loc (digest)", digest(batch.query_start_loc)},
                                                       {"seq_lens (digest)", digest(batch.seq_lens)},
                                                       {"softmax_scale (bits)", bits(options.softmax_scale)},
                                                       {"logits_soft_cap (bits)", bits(options.logits_soft_cap)},
                                                       {"sliding_window", options.sliding_window.value_or(-1)},
                                                       {"own_heads", settings.own_heads},
                                                       {"swap_heads", settings.swap_heads}};
  std::vector<std::string> names;
  std::vector<std::int64_t> mine;
  for (const auto& [name, value] : said) names.emplace_back(name), mine.push_back(value);
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(group.world()));
  if (Status s = group.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all))); !s.ok()) return s;
  return check_ranks(names, all).status();
}

/// Computes this rank's partial result into `out` and `lse`.
Status attend_to_own_keys(const ContextShard& shard, const Batch& batch, const KVCache& cache, const Options& options,
                          Executor* executor, const Tensor& out, const Tensor& lse) {
  Result<LocalLengths> local =
      local_lengths(shard, values_of(batch.query_start_loc), values_of(batch.seq_lens), options.sliding_window);
  if (!local.ok()) return local.status();
  LocalLengths& lengths = local.value();
  const auto count = static_cast<std::int64_t>(lengths.seq_lens.size());
  const Tensor& table = batch.block_table;
  std::vector<std::int64_t> rows;
  for (const std::int64_t request : lengths.request)
    for (std::int64_t j = 0; j < table.shape[1]; ++j) {
      const std::int64_t at = request * table.stride[0] + j * table.stride[1];
      rows.push_back(table.dtype == DType::i64 ? static_cast<const std::int64_t*>(table.data)[at]
                                               : static_cast<const std::int32_t*>(table.data)[at]);
    }
  Batch own;
  own.query = batch.query;
  own.q_scale = batch.q_scale;
  own.output = out;
  own.lse = lse;
  own.query_start_loc = Tensor::contiguous(lengths.query_start_loc.data(), DType::i64, count + 1);
  own.seq_lens = Tensor::contiguous(lengths.seq_lens.data(), DType::i64, count);
  own.block_table = Tensor::contiguous(rows.data(), DType::i64, count, table.shape[1]);
  own.causal = Tensor::contiguous(lengths.causal.data(), DType::u8, count);
  if (!lengths.q_begin.empty()) own.q_begin = Tensor::contiguous(lengths.q_begin.data(), DType::i64, count);
  if (!lengths.key_begin.empty()) own.key_begin = Tensor::contiguous(lengths.key_begin.data(), DType::i64, count);
  Options own_options = options;
  if (shard.rank != 0) own_options.sinks = Tensor{};  // one logit in the denominator: one rank counts it
  const Result<Plan> made = plan(own, cache, own_options, {.num_threads = executor != nullptr ? executor->num_threads() : 0});
  if (!made.ok()) return made.status();
  Workspace workspace;
  return attend(made.value(), own, cache, own_options, workspace.at_least(workspace_bytes(made.value())), {.executor = executor});
}

/// Gathers the merged heads of every rank into one output of all heads.
Status gather_heads(Communicator& group, const Layout& own, std::span<float> share, const Batch& batch, Executor* executor) {
  std::vector<float> all(share.size() * static_cast<std::size_t>(group.world()));
  if (Status s = group.all_gather(std::as_bytes(share), std::as_writable_bytes(std::span(all))); !s.ok()) return s;
  const MergeOptions how{.executor = executor, .output_scale = batch.output_scale};
  for (std::int32_t k = 0; k < group.world(); ++k) {  // a stack of one part is a conversion to the output's type
    float* const from = all.data() + static_cast<std::size_t>(k) * share.size();
    const Tensor lse = batch.lse.present() ? heads_of(batch.lse, 1, k * own.heads, own.heads) : Tensor{};
    const Tensor out = heads_of(batch.output, 1, k * own.heads, own.heads);
    if (Status s = merge_many(own.outs(from, 1), own.lses(from, 1), out, lse, how); !s.ok()) return s;
  }
  return {};
}

Status exchange_and_merge(Communicator& group, const Layout& all, std::vector<float>& partial, const Batch& batch,
                          const ShardedSettings& settings) {
  const std::int64_t world = group.world();
  const MergeOptions how{.executor = settings.executor, .output_scale = batch.output_scale};
  const Layout own{all.num_tokens, all.heads / world, all.head_dim};
  if (!settings.swap_heads) {
    std::vector<float> received(partial.size() * static_cast<std::size_t>(world));
    if (Status s = group.all_gather(std::as_bytes(std::span(partial)), std::as_writable_bytes(std::span(received))); !s.ok())
      return s;
    Tensor outs = all.outs(received.data(), world), lses = all.lses(received.data(), world);
    if (settings.own_heads) {
      outs = heads_of(outs, 2, group.rank() * own.heads, own.heads);
      lses = heads_of(lses, 2, group.rank() * own.heads, own.heads);
    }
    return merge_many(outs, lses, batch.output, batch.lse, how);
  }
  std::vector<float> received(partial.size());
  if (Status s = group.all_to_all(std::as_bytes(std::span(partial)), std::as_writable_bytes(std::span(received))); !s.ok())
    return s;
  const Tensor outs = own.outs(received.data(), world), lses = own.lses(received.data(), world);
  if (settings.own_heads) return merge_many(outs, lses, batch.output, batch.lse, how);
  const std::span<float> share(partial.data(), partial.size() / static_cast<std::size_t>(world));
  if (Status s =
          merge_many(outs, lses, only(own.outs(share.data(), 1)), only(own.lses(share.data(), 1)), {.executor = how.executor});
      !s.ok())
    return s;
  return gather_heads(group, own, share, batch, settings.executor);
}

Status attend_on_rank(Communicator& group, const ContextShard& shard, const Batch& batch, const KVCache& cache,
                      const Options& options, const ShardedSettings& settings) {
  if (Status s = refuse(group, shard, batch, options); !s.ok()) return s;
  if (batch.query.rank != 3 || batch.output.rank != 3) return check(batch, cache, options, Depth::metadata).status();
  const Layout layout{batch.query.shape[0], batch.query.shape[1], batch.output.shape[2]};
  std::vector<float> partial(static_cast<std::size_t>(layout.heads * layout.block()));
  const Tensor outs = layout.outs(partial.data(), 1), lses = layout.lses(partial.data(), 1);
  if (Status s = check_tensors(batch, cache, options, outs, lses, settings, shard.world); !s.ok()) return s;
  if (settings.check_ranks)
    if (Status s = agree(group, shard, batch, cache, options, settings); !s.ok()) return s;
  if (Status s = attend_to_own_keys(shard, batch, cache, options, settings.executor, only(outs), only(lses)); !s.ok()) return s;
  return exchange_and_merge(group, layout, partial, batch, settings);
}

}  // namespace

Status attend_sharded(Communicator& group, const ContextShard& shard, const Batch& batch, const KVCache& cache,
                      const Options& options, const ShardedSettings& settings) {
  Status status;
  try {
    status = attend_on_rank(group, shard, batch, cache, options, settings);
  } catch (const std::exception&) {  // bad_alloc, or length_error for sizes that no memory has
    status = {Code::out_of_memory, "attend_sharded: no memory for partial results"};
  }
  // Every rank finds a broken Q-D05 itself; the other ranks are told of any other failure.
  if (!status.ok() && status.code() != Code::rank_failed && status.rule() != "Q-D05") group.fail(status.message());
  return status;
}

}  // namespace quire
