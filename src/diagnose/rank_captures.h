// SPDX-License-Identifier: Apache-2.0
// Captures of all ranks: their disagreements, the whole batch that they hold together, and each rank's own batch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/rank_diagnosis.hpp"

namespace quire::diagnose_detail {

/// Captures in the order of their ranks.
struct RankCaptures {
  std::vector<const Case*> cases;
  std::vector<RankNote> notes;
  std::size_t world() const { return cases.size(); }
};

/// Sorts the captures of one world by rank; fails unless there is one capture for every rank.
Result<RankCaptures> sorted_captures(std::span<const Case> captures);

/// Name of a rank in messages: "rank 2 (bad/rank2.safetensors)", without a file "rank 2".
std::string named(const Case& c, std::int64_t rank);

/// Facts that must be equal on every rank and are not (Q-D05): "Q-D05 seq_lens[1]: 30 on rank 2, expected 31 as on rank 0".
std::vector<std::string> disagreements_of(const RankCaptures& captures);

/// The whole requests in one cache (nhd), taken from the ranks that hold them. invalid_argument where a rank's table is too short
/// or names a page that the rank lacks.
Result<Case> whole_case(const RankCaptures& captures);

/// The batch that a rank attends to: its keys, its part as observed output if one was recorded.
Result<Case> own_case(const RankCaptures& captures, std::size_t rank);

/// Tells whether the capture holds the rank's own part.
bool has_part(const Case& c);

}  // namespace quire::diagnose_detail
