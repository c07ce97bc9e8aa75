// cuda::append() and cuda::merge(): check the metadata, enqueue. With a ledger append() looks at the slots too, and waits.

#include "backend/cuda/current_device.h"
#include "backend/cuda/entry.h"
#include "backend/cuda/launches.h"
#include "backend/gpu/resolve.h"
#include "device/runtime.h"
#include "device/staging.h"
#include "semantics/page_walk.h"
#include "text/formatted.h"

namespace quire::cuda {
namespace {

Result<int> device_of(const Tensor& t) { return device::kCudaRuntime.ordinal_of(t.data); }

Status record(const Tensor& slot_mapping, const AppendOptions& options) {
  const std::int64_t count = slot_mapping.shape[0];
  if (static_cast<std::int64_t>(options.tags.size()) < count)
    return {Code::invalid_argument,
            formatted("append: a ledger needs one tag per token: {} tags for {} tokens", options.tags.size(), count)};
  device::Staging staging;
  Tensor on_host = slot_mapping;
  if (Status s = staging.stage(on_host); !s.ok()) return s;
  const semantics::IndexView slots = semantics::index_view(on_host);
  for (std::int64_t t = 0; t < count; ++t)
    if (slots[t] >= 0) options.ledger->record(slots[t], options.tags[static_cast<std::size_t>(t)]);
  return {};
}

}  // namespace

Status append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
              const AppendOptions& options) {
  const Depth depth = options.ledger != nullptr ? Depth::tables : Depth::metadata;
  if (const Findings findings = check_append(cache, key, value, slot_mapping, depth); !findings.ok()) return findings.status();
  if (slot_mapping.shape[0] == 0 || cache.k.num_elements() == 0) return {};
  const Result<int> ordinal = device_of(cache.k);
  if (!ordinal.ok()) return ordinal.status();
  const CurrentDevice current(ordinal.value());
  if (!current.status().ok()) return current.status();
  if (options.ledger != nullptr)
    if (Status s = record(slot_mapping, options); !s.ok()) return s;
  const gpu::AppendArgs args = gpu::append_args(cache, key, value, slot_mapping);
  return status_of(launch_append(args, static_cast<cudaStream_t>(options.stream)), "append: launching the kernel");
}

Status merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
             const Tensor& lse, const MergeOptions& merge_options) {
  if (const Findings findings = check_merge(out_a, lse_a, out_b, lse_b, out, lse, Depth::metadata); !findings.ok())
    return findings.status();
  if (out.num_elements() == 0) return {};
  const Result<int> ordinal = device_of(out_a);
  if (!ordinal.ok()) return ordinal.status();
  const CurrentDevice current(ordinal.value());
  if (!current.status().ok()) return current.status();
  const gpu::MergeArgs args = gpu::merge_args(out_a, lse_a, out_b, lse_b, out, lse);
  return status_of(launch_merge(args, static_cast<cudaStream_t>(merge_options.stream)), "merge: launching the kernel");
}

}  // namespace quire::cuda
