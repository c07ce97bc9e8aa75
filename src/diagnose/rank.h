// Every fault of the catalogue as a hypothesis, ranked by the share of the error that it explains.
#pragma once

#include <string>
#include <vector>

#include "diagnose/evidence.h"
#include "quire/diagnose.hpp"

namespace quire::cause {

/// One fault with the parameters that fit best, or the reason why it cannot have happened here.
struct Hypothesis {
  std::vector<const fault::Fault*> faults;  ///< one, or two of a combination in the order of planting
  std::string detail;
  std::string why_not;  ///< not empty: it cannot show on this batch
  Fit fit;
};

/// Best first; the ones that cannot show last. Combinations of two are tried, greedily, only if no single fault is good enough:
/// the best few are planted first, and every other one on top.
std::vector<Hypothesis> rank(const fault::Facts& facts, const Evidence& evidence);

/// The largest share that these faults, planted in this order with the parameters that fit best, explain; -1 if they cannot show.
double best_share(const fault::Facts& facts, const Evidence& evidence, const std::vector<const fault::Fault*>& faults);

/// From here on a hypothesis is called the cause.
inline constexpr double kCause = 0.9;

}  // namespace quire::cause
