// The entry points: which rule families apply to which call, and in what order.
#include <array>
#include <exception>
#include <utility>
#include <vector>

#include "contract/context.h"
#include "device/staging.h"

namespace quire {
namespace {

using contract::Context;
using contract::NamedTensor;
using contract::Report;

constexpr std::string_view kRequired[] = {"query", "output", "query_start_loc", "seq_lens", "block_table", "cache.k", "cache.v"};

Status stage(device::Staging& staging, Tensor& t) { return contract::placed(t) ? staging.stage(t) : Status(); }

/// Whether rules will look at the elements of queries, keys and values.
enum class Elements { unread, read };

/// Calls rules(context), where every tensor that they read is in host memory: the batch itself, or copies of device tensors.
template <typename Rules>
void read_where_it_lies(Context& c, Elements elements, Rules&& rules) {
  if (c.cache.k.memory == Memory::cpu) return rules(c);
  device::Staging staging;
  Batch batch = c.batch;
  KVCache cache = c.cache;
  Options options = c.options;
  std::vector<Tensor*> tensors = {&batch.query_start_loc, &batch.seq_lens,    &batch.block_table, &batch.cached_lens,
                                  &batch.slot_mapping,    &batch.request_ids, &cache.k_scale,     &cache.v_scale,
                                  &options.alibi_slopes,  &options.sinks};
  if (elements == Elements::read) tensors.insert(tensors.end(), {&batch.query, &batch.key, &batch.value, &cache.k, &cache.v});
  for (Tensor* t : tensors) {
    Status s = stage(staging, *t);
    if (s.ok()) continue;
    // Rules leave out what they cannot read; a call that mixes memories still has its readable tensors judged.
    c.report.fail(std::move(s));
    break;
  }
  Context on_host{batch, cache, options, c.ledger, c.report};
  on_host.sizes = c.sizes;
  rules(on_host);
}

void apply_to_batch(Context& c, Depth depth) {
  const Batch& b = c.batch;
  const std::array<NamedTensor, 17> tensors{{{"query", &b.query},
                                             {"output", &b.output},
                                             {"query_start_loc", &b.query_start_loc},
                                             {"seq_lens", &b.seq_lens},
                                             {"block_table", &b.block_table},
                                             {"cached_lens", &b.cached_lens},
                                             {"key", &b.key},
                                             {"value", &b.value},
                                             {"slot_mapping", &b.slot_mapping},
                                             {"lse", &b.lse},
                                             {"request_ids", &b.request_ids},
                                             {"cache.k", &c.cache.k},
                                             {"cache.v", &c.cache.v},
                                             {"k_scale", &c.cache.k_scale},
                                             {"v_scale", &c.cache.v_scale},
                                             {"alibi_slopes", &c.options.alibi_slopes},
                                             {"sinks", &c.options.sinks}}};
  apply_tensor_rules(c.report, tensors, kRequired, c.cache.k);
  apply_shape_rules(c, tensors);
  apply_option_rules(c);
  if (depth < Depth::tables) return;
  read_where_it_lies(c, depth == Depth::contents ? Elements::read : Elements::unread, [depth](Context& on_host) {
    apply_table_rules(on_host);
    apply_scale_rules(on_host);
    apply_batch_slot_rules(on_host);
    apply_ledger_rules(on_host);
    if (depth == Depth::contents) apply_content_rules(on_host);
  });
}

void apply_to_append(Context& c, Depth depth) {
  const std::array<NamedTensor, 7> tensors{{{"cache.k", &c.cache.k},
                                            {"cache.v", &c.cache.v},
                                            {"k_scale", &c.cache.k_scale},
                                            {"v_scale", &c.cache.v_scale},
                                            {"key", &c.batch.key},
                                            {"value", &c.batch.value},
                                            {"slot_mapping", &c.batch.slot_mapping}}};
  constexpr std::string_view required[] = {"cache.k", "cache.v", "key", "value", "slot_mapping"};
  apply_tensor_rules(c.report, tensors, required, c.cache.k);
  apply_cache_shape_rules(c, contract::descriptor_ok(c.batch.key) ? c.batch.key.dtype : DType::none);
  // The rows of key stand in for those of query; the cache says how long each is.
  c.sizes.head_dim = c.sizes.cache_head_dim;
  if (contract::well_formed(c.batch.key) && c.batch.key.rank == 3) c.sizes.num_tokens = c.batch.key.shape[0];
  apply_new_row_shape_rule(c);
  apply_index_dtype_rule(c);
  apply_scale_shape_rules(c);
  apply_append_rules(c);
  if (depth < Depth::tables) return;
  read_where_it_lies(c, Elements::unread, [](Context& on_host) {
    apply_scale_rules(on_host);
    apply_slot_value_rules(on_host);
  });
}

void apply_to_merge(contract::Merging m, Depth depth, Report& report) {
  const NamedTensor tensors[] = {m.out_a, m.lse_a, m.out_b, m.lse_b, m.out, m.lse};
  constexpr std::string_view required[] = {"out_a", "lse_a", "out_b", "lse_b", "out"};
  apply_tensor_rules(report, tensors, required, *m.out_a.tensor);
  apply_merge_rules(m, report);
  if (depth < Depth::contents) return;
  device::Staging staging;
  Tensor lse[] = {*m.lse_a.tensor, *m.lse_b.tensor};
  for (Tensor& t : lse)
    if (Status s = stage(staging, t); !s.ok()) return report.fail(std::move(s));
  m.lse_a.tensor = &lse[0];
  m.lse_b.tensor = &lse[1];
  apply_merge_value_rules(m, report);
}

/// Memory may run out while findings are collected; that must not look like "no findings".
template <typename Apply>
Findings collect(Apply&& apply) noexcept {
  try {
    Report report;
    apply(report);
    return report.take();
  } catch (const std::exception&) {
    Findings failed;
    failed.total = 1;
    return failed;
  }
}

}  // namespace

Findings check(const Batch& batch, const KVCache& cache, const Options& options, Depth depth, const SlotLedger* ledger) {
  return collect([&](Report& report) {
    Context context{batch, cache, options, ledger, report};
    apply_to_batch(context, depth);
  });
}

Findings check_append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping, Depth depth) {
  return collect([&](Report& report) {
    Batch batch;
    batch.key = key;
    batch.value = value;
    batch.slot_mapping = slot_mapping;
    const Options options;
    Context context{batch, cache, options, /*ledger=*/nullptr, report};
    apply_to_append(context, depth);
  });
}

Findings check_merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
                     const Tensor& lse, Depth depth) {
  return collect([&](Report& report) {
    apply_to_merge({{"out_a", &out_a}, {"lse_a", &lse_a}, {"out_b", &out_b}, {"lse_b", &lse_b}, {"out", &out}, {"lse", &lse}},
                   depth, report);
  });
}

}  // namespace quire
