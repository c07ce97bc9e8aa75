// SPDX-License-Identifier: Apache-2.0
// See step_rules.h.
#include "distributed/step_rules.h"

#include <bit>

#include "batch/fields.h"
#include "text/formatted.h"

namespace quire::distributed {

/// The first tensor that a sharded call does not take: new rows, or more about what a row sees than lengths say.
std::string_view not_taken(const Batch& batch) {
  std::string_view first = batch.key.present() ? "key" : "";
  const auto look = [&](const batch::TensorField& f, const Tensor& t) {
    if (first.empty() && f.of_step() && f.presence == batch::Presence::optional && !f.of_rules() && t.present()) first = f.member;
  };
  batch::for_each_tensor(look, batch::BatchPart{batch});
  return first;
}

Status refuse(const Communicator& group, const ContextShard& shard, const Batch& batch, const Options& options,
              const ShardedSettings& settings) {
  if (const Findings findings = check_shard(shard); !findings.ok()) return findings.status();
  if (shard.rank != group.rank() || shard.world != group.world())
    return {Code::invalid_argument, formatted("shard: rank {} of {}, expected rank {} of {} as the group", shard.rank,
                                              shard.world, group.rank(), group.world())};
  if (const std::string_view name = not_taken(batch); !name.empty())
    return {Code::unsupported,
            formatted("{}: given; a sharded call reads every key from the cache of the rank that holds it: append first", name)};
  if (batch.padding != Padding::refused) return {Code::unsupported, "padding: a sharded call takes batches without padding rows"};
  if (!options.causal) return {Code::unsupported, "options.causal: false; a sharded call takes causal requests"};
  if (options.attention_chunk || options.prefix_len)
    return {Code::unsupported, "options: attention_chunk or prefix_len; a sharded call takes an order and a window alone"};
  if (options.alibi_slopes.present() && !shard.contiguous() && shard.world > 1)
    return {Code::unsupported,
            "alibi_slopes: interleaved keys do not keep their distances in the cache; shard contiguously (span)"};
  const bool may_be_narrow = batch.query.dtype == DType::f16 || batch.query.dtype == DType::bf16;
  if (settings.partials != DType::none && settings.partials != DType::f32 &&
      !(may_be_narrow && settings.partials == batch.query.dtype))
    return {Code::invalid_argument, formatted("settings.partials: {}, expected f32{}", name(settings.partials),
                                              may_be_narrow ? formatted(" or {} as query", name(batch.query.dtype)) : "")};
  return {};
}

Status check_tensors(const Batch& own, const Batch& batch, const KVCache& cache, const Options& options,
                     const PartialLayout& layout, std::byte* received, const ShardedSettings& settings, std::int32_t world) {
  if (const Findings findings = check(own, cache, options, Depth::metadata); !findings.ok()) return findings.status();
  if ((settings.own_heads || settings.swap_heads) && layout.heads % world != 0)
    return {Code::invalid_argument, formatted("query: {} heads on {} ranks, expected a multiple", layout.heads, world)};
  const PartialLayout merged = settings.own_heads ? layout.with_heads(layout.heads / world) : layout;
  return check_merge_many(merged.outs(received, 1), merged.lses(received, 1), batch.output, batch.lse, Depth::metadata,
                          batch.output_scale)
      .status();
}

Status agree(Communicator& group, const ContextShard& shard, const Batch& batch, const KVCache& cache, const Options& options,
             const HostLengths& lengths, const PartialLayout& layout, const ShardedSettings& settings) {
  const auto digest = [](std::span<const std::int64_t> values) {
    std::uint64_t hash = 14695981039346656037U;  // FNV-1a
    for (const std::int64_t v : values) hash = (hash ^ static_cast<std::uint64_t>(v)) * 1099511628211U;
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
                                                       {"cache dtype of V", static_cast<std::int64_t>(cache.v.dtype)},
                                                       {"output dtype", static_cast<std::int64_t>(batch.output.dtype)},
                                                       {"alibi_slopes (given)", options.alibi_slopes.present()},
                                                       {"k_scale (given)", cache.k_scale.present()},
                                                       {"v_scale (given)", cache.v_scale.present()},
                                                       {"query_start_loc (digest)", digest(lengths.query_start_loc)},
                                                       {"seq_lens (digest)", digest(lengths.seq_lens)},
                                                       {"softmax_scale (bits)", bits(options.softmax_scale)},
                                                       {"logits_soft_cap (bits)", bits(options.logits_soft_cap)},
                                                       {"sliding_window", options.sliding_window.value_or(-1)},
                                                       {"partials dtype", static_cast<std::int64_t>(layout.dtype)},
                                                       {"own_heads", settings.own_heads},
                                                       {"swap_heads", settings.swap_heads}};
  std::vector<std::string> names;
  std::vector<std::int64_t> mine;
  for (const auto& [name, value] : said) names.emplace_back(name), mine.push_back(value);
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(group.world()));
  if (Status s = group.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all))); !s.ok()) return s;
  return check_ranks(names, all).status();
}

}  // namespace quire::distributed
