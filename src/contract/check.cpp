// SPDX-License-Identifier: Apache-2.0
// The entry points: which rule families apply to which call, and in what order.
#include <algorithm>
#include <array>
#include <exception>
#include <utility>
#include <vector>

#include "batch/caught.h"
#include "batch/fields.h"
#include "contract/context.h"
#include "contract/values.h"
#include "device/runtime.h"
#include "device/staging.h"
#include "quire/shards.hpp"

namespace quire {
namespace {

using contract::Context;
using contract::NamedTensor;
using contract::Report;

/// Names of the tensors that every attend call has.
constexpr auto kRequired = [] {
  constexpr auto required = [](const batch::TensorField& f) { return f.presence != batch::Presence::optional; };
  std::array<std::string_view, std::count_if(std::begin(batch::kTensors), std::end(batch::kTensors), required)> names;
  std::size_t n = 0;
  for (const batch::TensorField& f : batch::kTensors)
    if (required(f)) names[n++] = f.name;
  return names;
}();

Status stage(device::Staging& staging, Tensor& t) { return contract::placed(t) ? staging.stage(t) : Status(); }

/// Host copies of a call's tensors on a device, made when rules are about to read them.
class HostCopies {
 public:
  explicit HostCopies(const Context& c)
      : batch_(c.batch), cache_(c.cache), options_(c.options), context_{batch_,   cache_,  options_, c.ledger,
                                                                        c.report, c.sizes, c.tags} {}

  /// Index tensors and small float tensors.
  void copy_tables() {
    copy([](const batch::TensorField& f, const Tensor& t) { return !holds_elements(f, t); });
  }
  /// Scales of tokens and blocks count as elements.
  void copy_elements() { copy(holds_elements); }
  Context& context() { return context_; }

 private:
  static bool holds_elements(const batch::TensorField& f, const Tensor& t) {
    switch (f.kind) {
      case batch::Kind::index:
      case batch::Kind::flags:
      case batch::Kind::bits:
      case batch::Kind::floats: return false;
      case batch::Kind::scale: return t.rank >= 3;
      case batch::Kind::rows:
      case batch::Kind::cache:
      case batch::Kind::block_scale: return true;
    }
    return true;
  }

  /// Copies what is read and chosen.
  template <typename Chosen>
  void copy(Chosen&& chosen) {
    bool staged = true;
    const auto copy_one = [&](const batch::TensorField& f, Tensor& t) {
      if (!staged || f.access == batch::Access::written || !chosen(f, t)) return;
      Status s = stage(staging_, t);
      // Rules leave out what they cannot read; a call that mixes memories still has its readable tensors judged.
      staged = s.ok();
      if (!staged) context_.report.fail(std::move(s));
    };
    batch::for_each_tensor(copy_one, batch::Call{batch_, cache_, options_});
  }

  device::Staging staging_;
  Batch batch_;
  KVCache cache_;
  Options options_;
  Context context_;
};

void apply_value_rules(Context& c) {
  apply_table_rules(c);
  apply_scale_rules(c);
  apply_batch_slot_rules(c);
  apply_ledger_rules(c);
}

/// Whether the device reports that the content rules would find nothing. The device is asked only if no rule was broken before:
/// every address that the content rules read is then in bounds. If the device cannot answer, the host applies the rules.
bool finite_on_device(const Context& c) {
  const device::Runtime* runtime = device::runtime_of(c.cache.k.memory);
  if (runtime == nullptr || !c.report.clean()) return false;
  const Result<bool> answer = runtime->contents_are_finite(c.batch, c.cache, c.options);
  return answer.ok() && answer.value();
}

/// Lists every tensor of an attend call, present or not.
std::array<NamedTensor, batch::kNumTensors> tensors_of(const Context& c) {
  std::array<NamedTensor, batch::kNumTensors> tensors;
  std::size_t n = 0;
  batch::for_each_tensor([&](const batch::TensorField& f, const Tensor& t) { tensors[n++] = {f.name, &t}; }, c);
  return tensors;
}

void apply_to_batch(Context& c, Depth depth) {
  const auto tensors = tensors_of(c);
  apply_tensor_rules(c.report, tensors, kRequired, c.cache.k);
  apply_shape_rules(c, tensors);
  apply_option_rules(c);
  if (depth < Depth::tables) return;
  if (c.cache.k.memory == Memory::cpu) {
    apply_value_rules(c);
    if (depth < Depth::contents) return;
    apply_distinct_slot_rules(c);
    apply_content_rules(c);
    return;
  }
  HostCopies copies(c);
  copies.copy_tables();
  apply_value_rules(copies.context());
  if (depth < Depth::contents) return;
  const bool compares_digests = c.ledger != nullptr && c.ledger->has_digests();
  const bool finite = !compares_digests && finite_on_device(c);
  apply_distinct_slot_rules(copies.context());
  if (finite) return;
  copies.copy_elements();
  apply_content_rules(copies.context());
}

void apply_append_value_rules(Context& c) {
  apply_scale_rules(c);
  apply_slot_value_rules(c);
  apply_append_ledger_rules(c);
}

void apply_to_append(Context& c, Depth depth) {
  const std::array<NamedTensor, 9> tensors{{{"cache.k", &c.cache.k},
                                            {"cache.v", &c.cache.v},
                                            {"k_scale", &c.cache.k_scale},
                                            {"v_scale", &c.cache.v_scale},
                                            {"k_block_scale", &c.cache.k_block_scale},
                                            {"v_block_scale", &c.cache.v_block_scale},
                                            {"key", &c.batch.key},
                                            {"value", &c.batch.value},
                                            {"slot_mapping", &c.batch.slot_mapping}}};
  constexpr std::string_view required[] = {"cache.k", "cache.v", "key", "value", "slot_mapping"};
  apply_tensor_rules(c.report, tensors, required, c.cache.k);
  apply_cache_shape_rules(c, contract::new_row_dtype(c.batch));
  // The rows of key stand in for those of query; the cache says how long each is.
  c.sizes.head_dim = c.sizes.cache_head_dim;
  if (contract::well_formed(c.batch.key) && c.batch.key.rank == 3) c.sizes.num_tokens = c.batch.key.shape[0];
  if (contract::has_latent_rows(c))
    contract::apply_latent_append_rules(c);
  else
    apply_new_row_shape_rule(c);
  apply_index_dtype_rule(c);
  apply_scale_shape_rules(c);
  apply_append_rules(c);
  if (depth < Depth::tables) return;
  if (c.cache.k.memory == Memory::cpu) {
    apply_append_value_rules(c);
    return;
  }
  HostCopies copies(c);
  copies.copy_tables();
  apply_append_value_rules(copies.context());
}

void apply_to_merge(contract::Merging m, Depth depth, Report& report) {
  const NamedTensor tensors[] = {m.out_a, m.lse_a, m.out_b, m.lse_b, m.out, m.lse, m.output_scale};
  constexpr std::string_view required[] = {"out_a", "lse_a", "out_b", "lse_b", "out"};
  apply_tensor_rules(report, tensors, required, *m.out_a.tensor);
  apply_merge_rules(m, report);
  if (depth < Depth::contents) return;
  device::Staging staging;
  Tensor read[] = {*m.lse_a.tensor, *m.lse_b.tensor, *m.output_scale.tensor};
  for (Tensor& t : read)
    if (Status s = stage(staging, t); !s.ok()) return report.fail(std::move(s));
  m.lse_a.tensor = &read[0];
  m.lse_b.tensor = &read[1];
  m.output_scale.tensor = &read[2];
  apply_merge_value_rules(m, report);
}

void apply_to_merge_many(contract::MergingMany m, Depth depth, Report& report) {
  const NamedTensor tensors[] = {m.outs, m.lses, m.out, m.lse, m.output_scale};
  constexpr std::string_view required[] = {"outs", "lses", "out"};
  apply_tensor_rules(report, tensors, required, *m.outs.tensor);
  apply_merge_many_rules(m, report);
  if (depth < Depth::contents) return;
  device::Staging staging;
  Tensor read[] = {*m.lses.tensor, *m.output_scale.tensor};
  for (Tensor& t : read)
    if (Status s = stage(staging, t); !s.ok()) return report.fail(std::move(s));
  m.lses.tensor = &read[0];
  m.output_scale.tensor = &read[1];
  apply_merge_many_value_rules(m, report);
}

/// Reports that the search for findings failed, which must not look like "no findings".
template <typename Apply>
Findings collect(Apply&& apply) noexcept {
  try {
    Report report;
    apply(report);
    return report.take();
  } catch (...) {
    Findings failed;
    failed.total = 1;
    failed.failure = batch::caught("check");
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

Findings contract::check_values(const Batch& batch, const KVCache& cache, const Options& options) noexcept {
  return collect([&](Report& report) {
    Context context{batch, cache, options, /*ledger=*/nullptr, report};
    const Tensor& query = batch.query;
    context.sizes = {query.shape[0],   query.shape[1],   query.shape[2],      batch.query_start_loc.shape[0] - 1,
                     num_pages(cache), page_size(cache), num_kv_heads(cache), head_dim(cache),
                     v_head_dim(cache)};
    apply_value_rules(context);
  });
}

Findings contract::check_cache(const KVCache& cache, const SlotLedger* ledger) noexcept {
  return collect([&](Report& report) {
    const Batch none;
    const Options options;
    Context context{none, cache, options, ledger, report};
    constexpr std::string_view required[] = {"cache.k", "cache.v"};
    std::vector<NamedTensor> tensors;
    batch::for_each_tensor([&](const batch::TensorField& f, const Tensor& t) { tensors.push_back({f.name, &t}); },
                           batch::CachePart{cache});
    apply_tensor_rules(report, tensors, required, cache.k);
    apply_cache_shape_rules(context, DType::none);
    apply_scale_shape_rules(context);
    apply_append_ledger_rules(context);
  });
}

Findings check_workspace(const Batch& batch, const KVCache& cache, const Options& options, std::span<const std::byte> workspace) {
  return collect([&](Report& report) {
    const Context context{batch, cache, options, /*ledger=*/nullptr, report};
    contract::apply_workspace_rule(report, tensors_of(context), workspace, batch.query.memory);
  });
}

Findings check_append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping, Depth depth,
                      const SlotLedger* ledger, std::span<const WriteTag> tags) {
  return collect([&](Report& report) {
    Batch batch;
    batch.key = key;
    batch.value = value;
    batch.slot_mapping = slot_mapping;
    const Options options;
    Context context{batch, cache, options, ledger, report};
    context.tags = tags;
    apply_to_append(context, depth);
  });
}

Findings check_shard_ledger(const ContextShard& shard, const Batch& batch, const KVCache& cache, const Options& options,
                            const SlotLedger& ledger) {
  if (Findings broken = check_shard(shard); !broken.ok()) return broken;
  return collect([&](Report& report) {
    Context context{batch, cache, options, &ledger, report};
    apply_to_batch(context, Depth::metadata);
    if (!report.clean()) return;
    HostCopies copies(context);
    copies.copy_tables();
    contract::apply_shard_ledger_rules(copies.context(), shard);
  });
}

Findings check_merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
                     const Tensor& lse, Depth depth, const Tensor& output_scale) {
  return collect([&](Report& report) {
    apply_to_merge({{"out_a", &out_a},
                    {"lse_a", &lse_a},
                    {"out_b", &out_b},
                    {"lse_b", &lse_b},
                    {"out", &out},
                    {"lse", &lse},
                    {"output_scale", &output_scale}},
                   depth, report);
  });
}

Findings check_merge_many(const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse, Depth depth,
                          const Tensor& output_scale) {
  return collect([&](Report& report) {
    apply_to_merge_many({{"outs", &outs}, {"lses", &lses}, {"out", &out}, {"lse", &lse}, {"output_scale", &output_scale}}, depth,
                        report);
  });
}

}  // namespace quire
