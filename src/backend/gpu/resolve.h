// SPDX-License-Identifier: Apache-2.0
// Host side of every GPU backend: from the public types to what kernels are given. Touches no device, so it is tested without
// one.
#pragma once

#include <cstddef>

#include "backend/gpu/args.h"
#include "backend/gpu/generic_args.h"
#include "plan/work.h"
#include "quire/plan.hpp"

namespace quire::gpu {

/// `list` indexes plan.work().lists; `workspace` is device memory of workspace_bytes(plan).
GenericArgs attend_args(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::byte* workspace,
                        std::size_t list);

/// Sets all numbers of a work list to those of `list`: the plan's, or what stands in for it. The memory stays the plan's.
void set_list(WorkList& work, const plan_detail::DeviceList& list, std::int64_t num_kv_heads);

/// Arguments of a check without a call: no plan, no work list. `outcome` is device memory.
GenericArgs batch_args(const Batch& batch, const KVCache& cache, const Options& options, Outcome* outcome);

/// Arguments of append(), which has no outcome: slots outside the cache are skipped.
AppendArgs append_args(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping);

MergeArgs merge_args(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
                     const Tensor& lse, const Tensor& output_scale = {});
MergeManyArgs merge_many_args(const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse,
                              const Tensor& output_scale);

/// Status of an outcome whose lengths and tables break no rule and stay within the plan's bounds, for attend_status().
Status judge(const Outcome& outcome, const Plan& plan, const Batch& batch);

}  // namespace quire::gpu
