// SPDX-License-Identifier: Apache-2.0
// A diagnosis in words and as JSON (diagnose.md).
#pragma once

#include <string>
#include <vector>

#include "diagnose/rank.h"
#include "quire/diagnose.hpp"

namespace quire::cause {

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
  const fault::Facts& facts;
  const Observed& observed;
  const Localisation& where;
  std::vector<Pattern> patterns;
  std::vector<Part> parts;  ///< one, or one per pattern
  std::string padding;      ///< what is wrong with rows that belong to no request, or empty
};

/// Fills suspicions, patterns, observations, text and json of a diagnosis whose verdict and wrong_tokens are set.
void describe(const Found& found, Diagnosis& diagnosis);

/// The JSON of a diagnosis whose other fields are set.
std::string json_of(const Found& found, const Diagnosis& diagnosis);

/// What the wrong rows of one request have in common.
struct WrongRequest {
  std::int64_t req = 0;
  std::vector<std::int64_t> tokens;
  std::vector<bool> heads;
  std::int64_t elements = 0, rows = 0, first_dim = 1 << 30, last_dim = -1, nonfinite = 0;
  bool lse = false;
  double largest_error = 0;
};
std::vector<WrongRequest> wrong_requests(const fault::Facts& facts, const Localisation& where);
std::string heads_text(const std::vector<bool>& wrong);

/// "5-8, 11, 20-31" from ascending numbers; at most `most` runs.
std::string runs(const std::vector<std::int64_t>& numbers, std::size_t most = 6);

}  // namespace quire::cause
