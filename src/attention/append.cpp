// Stage: attention. append() goes to where the cache is.
#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "quire/attention.hpp"
#if QUIRE_HAS_CUDA
#include "backend/cuda/entry.h"
#endif

namespace quire {

Status append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
              const AppendOptions& options) {
#if QUIRE_HAS_CUDA
  if (attention::backend_for(cache.k.memory) == Backend::cuda) return cuda::append(cache, key, value, slot_mapping, options);
#endif
  return cpu::append(cache, key, value, slot_mapping, options);
}

}  // namespace quire
