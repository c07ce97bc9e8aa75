// SPDX-License-Identifier: Apache-2.0
// Turns the results of the search into the data of a diagnosis. Prints nothing.
#pragma once

#include <string>
#include <vector>

#include "diagnose/census.h"
#include "diagnose/rank.h"
#include "quire/tools/diagnose.hpp"

namespace quire::diagnose_detail {

/// A separate set of wrong cells, and the hypotheses about its cause.
struct Part {
  Pattern pattern;
  std::vector<Hypothesis> ranking;
  double largest_error = 0, largest_tolerance = 0;
  std::string observed_text;           ///< "1.69", "NaN or infinity"
  bool everything = false;             ///< the hypotheses concern all wrong cells, although `pattern` is the first of several
  std::vector<std::string> not_tried;  ///< see Ranking
  /// Right cells that the cause changes by less than their tolerance, if it is certain; else those that stay right, if one that
  /// explains every wrong cell is refuted by others.
  std::vector<std::size_t> unmoved;
};

/// All results of a diagnosis, before their text is written.
struct Found {
  const Case& c;
  const Facts& facts;
  const Facts& names;  ///< the batch of the caller: patterns and wrong rows are in its requests and positions
  const Observed& observed;
  Localisation& where;
  const TimeLimit& limit;
  std::vector<Pattern> patterns;
  std::vector<Part> parts;  ///< one, or one per pattern
  std::string padding;      ///< finding about padding rows, or empty
  std::vector<RowCensus> census, pairs;
};

/// diagnose() of a case; a rank's own batch may have other requests than the call that it serves, whose facts are `names`.
Result<Diagnosis> diagnosed(const Case& c, const DiagnoseOptions& options, const Facts* names = nullptr);

/// Fills what follows from `found`; verdict, problem and profile are set.
void describe(const Found& found, Diagnosis& diagnosis);

}  // namespace quire::diagnose_detail
