// Stage: attention. append() goes to where the cache is.
#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "quire/attention.hpp"

namespace quire {

Status append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
              const AppendOptions& options) {
  if (const gpu::Vendor* vendor = attention::vendor_of(cache.k.memory))
    return gpu::append(*vendor, cache, key, value, slot_mapping, options);
  return cpu::append(cache, key, value, slot_mapping, options);
}

}  // namespace quire
