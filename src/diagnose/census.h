// SPDX-License-Identifier: Apache-2.0
// Who was read, and how often: softmax attention over keys c with counts w_c obeys sum_c w_c (num_c - out den_c) = 0 in every
// head and dim, so the counts of a wrong row are a null vector, and no hypothesis is needed. Candidates are the pages of the
// cache, this step's rows and the sink, and then the keys within the pages that do not fit as a whole. The same equations tell
// which V each weight was multiplied with if K was read as it should be, and the reverse.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "diagnose/census_units.h"
#include "diagnose/time_limit.h"

namespace quire::diagnose_detail {

struct RowCensus {
  std::int64_t token = 0, request = 0;
  Sides moved;  ///< what lies where the units say; the other side is that of the right key
  std::size_t heads = 0, equations = 0;
  std::size_t candidates = 0;           ///< units that weigh enough for the equations to tell how often they were read
  bool capped = false;                  ///< the cache holds more pages, or the request more rows of this step, than were asked
  double worst = 0;                     ///< largest error that the counts leave, in tolerances
  std::vector<CensusUnit> units;        ///< read, or to be read
  std::vector<int> counts;              ///< [unit] how often it was read
  std::map<std::int64_t, Place> pairs;  ///< position -> slot of the side that moved, where the other side is the right one

  /// Units that were read more often, or less often, than the right computation reads them.
  bool differs() const;
};

/// The censuses that are exact (every element within its tolerance), have one solution, and differ from the right computation:
/// at most one per request, of a few requests.
std::vector<RowCensus> take_census(const Facts& facts, const Observed& observed, const Localisation& where,
                                   const TimeLimit& limit);
/// Likewise, which V each weight met, and which K made the weight of each V: for each row one of them, or both where V in one
/// order is K in another.
std::vector<RowCensus> take_pairs(const Facts& facts, const Observed& observed, const Localisation& where,
                                  const TimeLimit& limit);

}  // namespace quire::diagnose_detail
