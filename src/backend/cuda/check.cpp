// cuda::contents_are_finite(): what check() asks the device before it copies a cache.

#include "backend/cuda/current_device.h"
#include "backend/cuda/entry.h"
#include "backend/cuda/launches.h"
#include "backend/gpu/resolve.h"
#include "device/runtime.h"

namespace quire::cuda {

Result<bool> contents_are_finite(const Batch& batch, const KVCache& cache, const Options& options) {
  if (batch.query.num_elements() == 0) return true;  // without query rows no key is seen
  const Result<int> ordinal = device::kCudaRuntime.ordinal_of(batch.query.data);
  if (!ordinal.ok()) return ordinal.status();
  const CurrentDevice current(ordinal.value());
  if (!current.status().ok()) return current.status();
  // Whatever was going to write the tensors must have done so; its stream is not known here.
  if (Status s = device::kCudaRuntime.synchronize(); !s.ok()) return s;
  bool found = false;
  const gpu::AttendArgs args = gpu::batch_args(batch, cache, options, /*outcome=*/nullptr);
  if (Status s = status_of(find_bad_contents(args, found), "check: asking the device about contents"); !s.ok()) return s;
  return !found;
}

}  // namespace quire::cuda
