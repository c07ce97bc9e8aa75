// SPDX-License-Identifier: Apache-2.0
// Known faults of attention whose contexts are spread over ranks: each as ranks that attend and merge with one mistake.
#pragma once

#include <string_view>
#include <vector>

#include "quire/batch.hpp"
#include "quire/shards.hpp"
#include "quire/faults.hpp"
#include "quire/status.hpp"

namespace quire {

/// All rank faults; ids are unique, and none is in faults(). FaultInfo::text completes "ranks that ...".
const std::vector<FaultInfo>& rank_faults();

/// Writes batch.output (and batch.lse, if present) as ranks with this fault would, computed in fp64 and rounded once. The batch
/// and the cache are those of the whole requests. `shard` gives the owners of positions; its rank does not matter. An empty id
/// writes the results of ranks without a fault. Errors: invalid_argument for an unknown id, unsupported (with the reason) if the
/// fault cannot show on this batch, and the findings of check() at depth tables and of check_shard().
Status attend_with_rank_fault(const Batch& batch, const KVCache& cache, const Options& options, const ContextShard& shard,
                              std::string_view id);

}  // namespace quire
