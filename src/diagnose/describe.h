// SPDX-License-Identifier: Apache-2.0
// From what was found out to the data of a diagnosis.
#pragma once

#include <string>
#include <vector>

#include "diagnose/rank.h"
#include "quire/diagnose.hpp"

namespace quire::diagnose_detail {

/// One separate set of wrong cells and what could have made it.
struct Part {
  Pattern pattern;
  std::vector<Hypothesis> ranking;
  double largest_error = 0, largest_tolerance = 0;
  std::string observed_text;  ///< "1.69", "NaN or infinity"
  bool everything = false;    ///< all wrong cells, although `pattern` is but the first of several
};

/// Everything that was found out, before it is put into words.
struct Found {
  const Case& c;
  const faults_detail::Facts& facts;
  const Observed& observed;
  const Localisation& where;
  std::vector<Pattern> patterns;
  std::vector<Part> parts;  ///< one, or one per pattern
  std::string padding;      ///< what is wrong with rows that belong to no request, or empty
};

/// Fills what follows from `found`; verdict, problem and profile are set.
void describe(const Found& found, Diagnosis& diagnosis);

}  // namespace quire::diagnose_detail
