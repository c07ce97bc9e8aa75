// SPDX-License-Identifier: Apache-2.0
// What a run asked: the range of each attribute over the cases that were served. Beyond it, nothing was seen.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quire/problem.hpp"

namespace quire::conformance {

class Reach {
 public:
  void add(const ProblemLine& line);

  bool empty() const { return cases_ == 0; }
  /// Lines of "  rows of a request    1 to 4200", and which values of types, layouts and options were not tested.
  std::string text() const;
  /// "rows of a request" -> (least, largest).
  const std::map<std::string, std::pair<double, double>>& ranges() const { return ranges_; }
  /// "layout packed", "sinks", ...: what no served case had.
  std::vector<std::string> never() const;

 private:
  void range(const char* name, double value);
  void option(const char* name, bool present);

  std::int64_t cases_ = 0;
  std::map<std::string, std::pair<double, double>> ranges_;
  std::map<std::string, std::int64_t> options_;
  std::set<std::string> seen_;
};

}  // namespace quire::conformance
