// SPDX-License-Identifier: Apache-2.0
// append(), derive_cached_lens(), merge() and merge_many(): check the metadata, enqueue. With a ledger append() checks the slots
// too, and waits.

#include <tuple>

#include "backend/gpu/current_device.h"
#include "backend/gpu/entry.h"
#include "backend/gpu/resolve.h"
#include "semantics/page_walk.h"
#include "text/formatted.h"

namespace quire::gpu {
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
  return vendor.enqueue_append(append_args(cache, key, value, slot_mapping), options.stream);
}

Status derive_cached_lens(const Vendor& vendor, const Tensor& query_start_loc, const Tensor& seq_lens, const Tensor& cached_lens,
                          void* stream) {
  const std::int64_t reqs = seq_lens.rank == 1 ? seq_lens.shape[0] : 0;
  for (const auto& [tensor, name, length] : {std::tuple{&query_start_loc, "query_start_loc", reqs + 1},
                                             {&seq_lens, "seq_lens", reqs},
                                             {&cached_lens, "cached_lens", reqs}})
    if (tensor->rank != 1 || tensor->shape[0] != length || (tensor->dtype != DType::i32 && tensor->dtype != DType::i64) ||
        tensor->memory != seq_lens.memory)
      return {Code::invalid_argument,
              formatted("derive_cached_lens: {} is {} in {} memory, expected i32 or i64 [{}] in {} memory", name,
                        to_string(*tensor), quire::name(tensor->memory), length, quire::name(seq_lens.memory))};
  if (reqs == 0) return {};
  const Result<int> ordinal = vendor.runtime->ordinal_of(seq_lens.data);
  if (!ordinal.ok()) return ordinal.status();
  const CurrentDevice current(vendor, ordinal.value());
  if (!current.status().ok()) return current.status();
  return vendor.enqueue_cached_lens({.num_reqs = reqs,
                                     .query_start_loc = semantics::index_view(query_start_loc),
                                     .seq_lens = semantics::index_view(seq_lens),
                                     .cached_lens = cached_lens.data,
                                     .stride = cached_lens.stride[0],
                                     .wide = cached_lens.dtype == DType::i64},
                                    stream);
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
