// SPDX-License-Identifier: Apache-2.0
// Rules of a sharded step: refusals before a tensor is read, and facts on which its ranks must agree.
#pragma once

#include "distributed/partials.h"
#include "quire/distributed.hpp"

namespace quire::distributed {

/// Refuses what a sharded call cannot express.
Status refuse(const Communicator& group, const ContextShard& shard, const Batch& batch, const Options& options,
              const ShardedSettings& settings);

/// The rules of the rank's own batch, whose output and lse are partial results, and of the output, as what they merge into.
Status check_tensors(const Batch& own, const Batch& batch, const KVCache& cache, const Options& options,
                     const PartialLayout& layout, std::byte* received, const ShardedSettings& settings, std::int32_t world);

/// Facts of all ranks about the step (Q-D05).
Status agree(Communicator& group, const ContextShard& shard, const Batch& batch, const KVCache& cache, const Options& options,
             const HostLengths& lengths, const PartialLayout& layout, const ShardedSettings& settings);

}  // namespace quire::distributed
