// A diagnosis in words and as JSON (docs/diagnose.md).
#pragma once

#include <string>
#include <vector>

#include "diagnose/rank.h"
#include "quire/diagnose.hpp"

namespace quire::cause {

/// Everything that was found out, before it is put into words.
struct Found {
  const Case& c;
  const fault::Facts& facts;
  const Observed& observed;
  const Localisation& where;
  const Evidence& evidence;
  const std::vector<Hypothesis>& ranking;
};

/// Fills suspicions, text and json of a diagnosis whose verdict and wrong_tokens are set.
void describe(const Found& found, Diagnosis& diagnosis);

/// "row 5336 (request 9: query_len 1, context_len 929, seq_len 930)" and the like, for all wrong rows.
std::vector<std::string> describe_wrong_rows(const fault::Facts& facts, const Localisation& where);

/// "5-8, 11, 20-31" from ascending numbers; at most `most` runs.
std::string runs(const std::vector<std::int64_t>& numbers, std::size_t most = 6);

}  // namespace quire::cause
