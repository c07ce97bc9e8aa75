// SPDX-License-Identifier: Apache-2.0
// append(), merge() and merge_many(): check the metadata, enqueue. With a ledger append() looks at the slots too, and waits.

#include "backend/gpu/current_device.h"
#include "backend/gpu/entry.h"
#include "backend/gpu/resolve.h"
#include "device/staging.h"
#include "semantics/page_walk.h"

namespace quire::gpu {
namespace {

Status record(const Tensor& slot_mapping, const AppendOptions& options) {
  const std::int64_t count = slot_mapping.shape[0];
  device::Staging staging;
  Tensor on_host = slot_mapping;
  if (Status s = staging.stage(on_host); !s.ok()) return s;
  const semantics::IndexView slots = semantics::index_view(on_host);
  for (std::int64_t t = 0; t < count; ++t)
    if (slots[t] >= 0) options.ledger->record(slots[t], options.tags[static_cast<std::size_t>(t)]);
  return {};
}

}  // namespace

Status append(const Vendor& vendor, const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
              const AppendOptions& options) {
  const Depth depth = options.ledger != nullptr ? Depth::tables : Depth::metadata;
  const Findings findings = check_append(cache, key, value, slot_mapping, depth, options.ledger, options.tags);
  if (!findings.ok()) return findings.status();
  if (slot_mapping.shape[0] == 0 || cache.k.num_elements() == 0) return {};
  const Result<int> ordinal = vendor.runtime->ordinal_of(cache.k.data);
  if (!ordinal.ok()) return ordinal.status();
  const CurrentDevice current(vendor, ordinal.value());
  if (!current.status().ok()) return current.status();
  if (options.ledger != nullptr)
    if (Status s = record(slot_mapping, options); !s.ok()) return s;
  return vendor.enqueue_append(append_args(cache, key, value, slot_mapping), options.stream);
}

Status merge(const Vendor& vendor, const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b,
             const Tensor& out, const Tensor& lse, const MergeOptions& merge_options) {
  if (const Findings findings = check_merge(out_a, lse_a, out_b, lse_b, out, lse, Depth::metadata, merge_options.output_scale);
      !findings.ok())
    return findings.status();
  if (out.num_elements() == 0) return {};
  const Result<int> ordinal = vendor.runtime->ordinal_of(out_a.data);
  if (!ordinal.ok()) return ordinal.status();
  const CurrentDevice current(vendor, ordinal.value());
  if (!current.status().ok()) return current.status();
  return vendor.enqueue_merge(merge_args(out_a, lse_a, out_b, lse_b, out, lse, merge_options.output_scale), merge_options.stream);
}

Status merge_many(const Vendor& vendor, const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse,
                  const MergeOptions& merge_options) {
  if (const Findings findings = check_merge_many(outs, lses, out, lse, Depth::metadata, merge_options.output_scale);
      !findings.ok())
    return findings.status();
  if (out.num_elements() == 0) return {};
  const Result<int> ordinal = vendor.runtime->ordinal_of(outs.data);
  if (!ordinal.ok()) return ordinal.status();
  const CurrentDevice current(vendor, ordinal.value());
  if (!current.status().ok()) return current.status();
  return vendor.enqueue_merge_many(merge_many_args(outs, lses, out, lse, merge_options.output_scale), merge_options.stream);
}

}  // namespace quire::gpu
