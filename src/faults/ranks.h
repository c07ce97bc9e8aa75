// SPDX-License-Identifier: Apache-2.0
// Ranks that share a context, in fp64, with beliefs that can be changed: who folds in which key, and what a merge makes of parts.
//
// A RankModel holds the truth. A fault replaces one of its functions. Positions are those of the whole requests: a rank of the
// model reads the whole cache, and folds in the keys that are dealt to it. Shares nothing with src/distributed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "faults/model.h"
#include "quire/faults.hpp"

namespace quire::faults_detail {

/// The deal of positions: in runs of `interleave` tokens by turns, or rank k [k * span, (k + 1) * span) if span > 0, the last
/// rank also what follows.
struct Deal {
  std::int64_t world = 1, interleave = 1, span = 0;

  std::int64_t owner(std::int64_t position) const;
  /// Positions below this one that its owner holds.
  std::int64_t index(std::int64_t position) const;
  /// Positions below `length` that a rank holds.
  std::int64_t held(std::int64_t rank, std::int64_t length) const;
};

/// Weights that a merge gives to the parts: out = sum_k of[k] out_k.
struct Shares {
  std::vector<double> of;
  double lse = 0;
};

/// exp(factor (lse_k - lse)), normalised, with weights that multiply the parts; all are 1 if there are none. An empty part weighs
/// nothing.
Shares shares_of(std::span<const double> lse, std::span<const double> weights = {}, double factor = 1);

struct RankModel {
  RankModel(const Facts& facts, const Deal& deal);  ///< the truth; keeps a reference to `facts`

  const Facts* facts;
  Deal deal;
  /// Keys that a rank folds in, of those that the row sees; `keys` holds these before and the rank's own after.
  std::function<void(const Row&, std::int64_t rank, std::vector<Key>& keys)> keys;
  /// Tells whether a rank counts the sink.
  std::function<bool(std::int64_t rank)> sink;
  /// The share of every part in the result, from their lse; lse[k] = -inf is an empty part, whose out is 0.
  std::function<Shares(std::span<const double> lse)> shares;
  /// The head whose parts are merged into an output head.
  std::function<std::int64_t(std::int64_t head)> head;
  /// Position that scores believe a key to have (ALiBi).
  std::function<std::int64_t(const Row&, std::int64_t rank, std::int64_t position)> distance_from;
};

/// A way in which a fault could have happened.
struct RankSuspect {
  std::string detail;  ///< "rank 3's part is missing"; completes no sentence
  std::function<void(RankModel&)> plant;
};

struct RankFault {
  FaultInfo info;
  bool of_merge = true;  ///< true: changes the merge of parts; false: changes the keys that a rank attends to
  /// Returns the suspects; the first is planted as a mutant. Empty: the fault cannot show here, and `why_not` says why.
  std::function<std::vector<RankSuspect>(const Facts&, const Deal&)> suspects;
  std::string why_not;
};
const std::vector<RankFault>& rank_fault_catalogue();

/// The part of one rank: its normalised output and lse, as the model believes.
RowResult part_of_rank(const RankModel& model, std::int64_t rank, const RowHead& at);
/// The result that ranks write for one row and head.
RowResult merged_row(const RankModel& model, const RowHead& at);

}  // namespace quire::faults_detail
