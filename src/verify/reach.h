// SPDX-License-Identifier: Apache-2.0
// Reach of a run: the range of each attribute over the cases that were served. A verdict says nothing about batches beyond.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "quire/problem.hpp"
#include "quire/verify.hpp"

namespace quire::verify_detail {

class ReachCount {
 public:
  void add(const ProblemLine& line);

  /// Returns the reach; it has no ranges if no line was added.
  Reach reach() const;

 private:
  void range(const char* name, double value);

  std::map<std::string, std::pair<double, double>> ranges_;  ///< empty: no line was added
  std::set<std::string> seen_;                               ///< types, layouts, forms, indices and options of the lines
};

}  // namespace quire::verify_detail
