// SPDX-License-Identifier: Apache-2.0
// The CPU backend as the attention stage calls it. Arguments as in quire/attention.hpp; every rule is checked here.
#pragma once

#include "quire/attention.hpp"

namespace quire::cpu {

/// Whether this build has the plan's kernel, and this machine its instructions.
Status runs_here(const Plan& plan);
/// `checked`: check() at Depth::tables finds nothing, and nor do the rules of the workspace and runs_here(), as the caller has
/// seen in its own way.
Status attend(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
              const AttendOptions& attend_options, bool checked = false);
/// Checks what attend() checks before it writes, and writes nothing.
Status prepare(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
               const AttendOptions& attend_options);
Status append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
              const AppendOptions& options);
Status merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
             const Tensor& lse, const MergeOptions& merge_options);
Status merge_many(const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse,
                  const MergeOptions& merge_options);

}  // namespace quire::cpu
