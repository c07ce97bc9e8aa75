// SPDX-License-Identifier: Apache-2.0
// A census in which K is right and V lies elsewhere, or the reverse: where it lies, as a rule over the batch, and the words for
// it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnose/census.h"

namespace quire::diagnose_detail {

struct PairRule {
  std::string text;  ///< "those of position k +3"
  /// Where the side that moved is read for a position whose right place, in the cache, is `place`. Absent of single slots
  /// without a rule: a number for each key explains anything.
  std::function<void(const Facts&, const Row&, std::int64_t position, Place& place)> change;
};

/// The first rule over pages, positions, requests and slots that all rows follow; else a list of what each of them read. `rows`
/// are not empty, and agree in what moved.
PairRule pair_rule(const Facts& facts, const std::vector<RowCensus>& rows);

/// The rows in which this side moved.
std::vector<RowCensus> rows_of(const std::vector<RowCensus>& pairs, Sides moved);

/// "rows 1 and 2 read V, but not K, from other slots: those of position k +3": a sentence for each side that moved.
std::vector<std::string> pair_words(const Facts& facts, const std::vector<RowCensus>& pairs);

}  // namespace quire::diagnose_detail
