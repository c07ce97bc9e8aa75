// SPDX-License-Identifier: Apache-2.0
// Axes of the contract: what a batch may have, in one list. The reach of a run names the values that no served case had, and
// shared.h what failing cases have in common. A verdict says nothing about batches beyond.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quire/problem.hpp"
#include "quire/tools/verify.hpp"

namespace quire::verify_detail {

/// A value of an axis.
struct AxisValue {
  std::string fields;  ///< members of Batch, KVCache and Options that have the value, by the names of fields.inc
  std::string words;   ///< "k_scale head"
  std::function<bool(const ProblemLine&)> has;
  std::string without;  ///< `--supports` that asks for batches without the value, "kscale=none"; empty if there is none
};

/// Every value of every axis, also those that no problem line can have.
const std::vector<AxisValue>& axes();

class ReachCount {
 public:
  void add(const ProblemLine& line);
  /// Counts the strides of inputs with which a served case was asked.
  void add(Strides strides) { strides_ = std::max(strides_, strides); }

  /// Returns the reach; it has no ranges if no line was added.
  Reach reach() const;

 private:
  void range(const char* name, double value);

  std::map<std::string, std::pair<double, double>> ranges_;  ///< empty: no line was added
  std::set<std::string> seen_;                               ///< words of the values of the lines
  Strides strides_ = Strides::none;
};

}  // namespace quire::verify_detail
