// Stage: attention. attend() and attend_status() go to the backend that the plan was made for.

#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "quire/attention.hpp"
#include "text/formatted.h"
#if QUIRE_HAS_CUDA
#include "backend/cuda/entry.h"
#endif

namespace quire {
namespace {

Status other_memory(const Plan& plan, const Batch& batch) {
  return {Code::invalid_argument, formatted("attend: the plan was made for the {} device {}, but query is in {} memory",
                                            name(plan.device.backend), plan.device.name, name(batch.query.memory))};
}

}  // namespace

Status attend(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
              const AttendOptions& attend_options) {
  const Backend backend = attention::backend_for(batch.query.memory);
  if (!has_backend(plan.device.backend))
    return {Code::unsupported, formatted("attend: the plan was made for device {}, but this build has no {} kernels",
                                         plan.device.name, name(plan.device.backend))};
  if (backend != plan.device.backend) return other_memory(plan, batch);
#if QUIRE_HAS_CUDA
  if (backend == Backend::cuda) return cuda::attend(plan, batch, cache, options, workspace, attend_options);
#endif
  return cpu::attend(plan, batch, cache, options, workspace, attend_options);
}

Status attend_status(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                     std::span<std::byte> workspace, const AttendOptions& attend_options) {
#if QUIRE_HAS_CUDA
  if (plan.device.backend == Backend::cuda) {
    if (attention::backend_for(batch.query.memory) != Backend::cuda) return other_memory(plan, batch);
    return cuda::attend_status(plan, batch, cache, options, workspace, attend_options);
  }
#endif
  (void)plan, (void)batch, (void)cache, (void)options, (void)workspace, (void)attend_options;
  return {};
}

}  // namespace quire
