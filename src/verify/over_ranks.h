// SPDX-License-Identifier: Apache-2.0
// Targets whose contexts are spread over ranks: any target's attention on each rank's keys with Quire's merge, and rank faults.
#pragma once

#include <string>
#include <vector>

#include "quire/verify.hpp"
#include "verify/power.h"

namespace quire::verify_detail {

/// The target as ranks use it: each attends to its own keys, in a cache that holds NaN elsewhere, with an f32 part and lse;
/// merge_many() combines the parts. An entry of one rank: the target itself.
Target over_ranks(const Target& target, const ContextShard& shard);

/// "over 3 ranks, interleaved by 2"; empty for one rank.
std::string text_of(const ContextShard& shard);

/// Runs every fault of rank_faults() on the entries that are spread over ranks, through checks of values, until one notices it.
std::vector<MutantResult> measure_rank_power(const std::vector<PowerCase>& cases, const PowerOptions& options);

}  // namespace quire::verify_detail
