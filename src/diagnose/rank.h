// SPDX-License-Identifier: Apache-2.0
// Every fault of the catalogue and every proposal of a mechanism as a hypothesis, with and without the scope of a pattern, ranked
// by what they explain and break.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnose/evidence.h"
#include "diagnose/mechanisms/mechanism.h"

namespace quire::diagnose_detail {

/// A hypothesis with the parameters that fit best, or the reason why it cannot show on this batch.
struct Hypothesis {
  std::string mechanism;  ///< id of diagnose.md; two joined by " + " for a combination
  std::string fault;      ///< id of faults.md, or empty; two joined by " + "
  std::string text, detail, next;
  std::string why_not;  ///< not empty: it cannot show on this batch
  Fit fit;
  double share = 0;      ///< explained share less damage, in the better of the two scopes
  bool scoped = false;   ///< holds inside the scope of the pattern only: elsewhere right cells refute it
  bool certain = false;  ///< see is_certain()
  bool whole = false;    ///< explains every number of every wrong cell, whatever right cells say
  bool beside = false;   ///< certain, or would be if it held for rows with a wrong cell alone
  bool tied = false;     ///< stands beside a certain one that has another remedy: the cause is one of them
  bool likely = false;   ///< explains most, breaks no right cell, and claims nothing that cannot be proved
  bool alike = false;    ///< explains every cell, but no number: zeros and NaN are what many causes give
  bool combined = false;
  int place = 0;  ///< place among equals: with evidence in the batch, a known mistake, anything else
  std::vector<std::function<void(Model&)>> plants;  ///< one, or the two of a combination; valid as long as the scene

  /// Right exhibits that it would break where it is said to hold.
  std::int64_t broken() const { return scoped ? fit.broken_inside : fit.broken; }
  Model model(const Facts& facts) const {
    Model m(facts);
    for (const auto& plant : plants) plant(m);
    return m;
  }
};

struct Ranking {
  std::vector<Hypothesis> hypotheses;  ///< best first; those that cannot show come last
  /// Faults and mechanisms that time left no room for, each once. If there are any, no hypothesis is certain.
  std::vector<std::string> not_tried;
};

/// Tries combinations of two, greedily, only if no single hypothesis is certain.
Ranking rank(const Scene& scene, const Evidence& evidence, const Pattern* scope, const TimeLimit& limit);

/// Opens a few wrong cells of the evidence, for mechanisms.
Scene make_scene(const Facts& facts, const Observed& observed, const Localisation& where, const Evidence& evidence);

/// Share that a scope must explain more, because a scope is one more assumption.
inline constexpr double kScopePenalty = 0.01;

}  // namespace quire::diagnose_detail
