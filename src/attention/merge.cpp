// Stage: attention. merge() goes to where the partial results are.
#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "quire/attention.hpp"
#if QUIRE_HAS_CUDA
#include "backend/cuda/entry.h"
#endif

namespace quire {

Status merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
             const Tensor& lse, const MergeOptions& merge_options) {
#if QUIRE_HAS_CUDA
  if (attention::backend_for(out_a.memory) == Backend::cuda)
    return cuda::merge(out_a, lse_a, out_b, lse_b, out, lse, merge_options);
#endif
  return cpu::merge(out_a, lse_a, out_b, lse_b, out, lse, merge_options);
}

}  // namespace quire
