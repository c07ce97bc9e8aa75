// SPDX-License-Identifier: Apache-2.0
// contents_are_finite(): what check() asks the device before it copies a cache.

#include "backend/gpu/current_device.h"
#include "backend/gpu/entry.h"
#include "backend/gpu/resolve.h"

namespace quire::gpu {

Result<bool> contents_are_finite(const Vendor& vendor, const Batch& batch, const KVCache& cache, const Options& options) {
  if (batch.query.num_elements() == 0) return true;  // a call without query rows reads no key
  const Result<int> ordinal = vendor.runtime->ordinal_of(batch.query.data);
  if (!ordinal.ok()) return ordinal.status();
  const CurrentDevice current(vendor, ordinal.value());
  if (!current.status().ok()) return current.status();
  // Wait for all writes to the tensors; their stream is unknown here.
  if (Status s = vendor.runtime->synchronize(); !s.ok()) return s;
  const Result<bool> found = vendor.find_bad_contents(batch_args(batch, cache, options, /*outcome=*/nullptr));
  if (!found.ok()) return found.status();
  return !found.value();
}

}  // namespace quire::gpu
