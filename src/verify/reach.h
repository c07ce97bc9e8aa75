// SPDX-License-Identifier: Apache-2.0
// What a run asked: the range of each attribute over the cases that were served. Beyond it, nothing was seen.
#pragma once

#include <cstdint>
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

  /// No ranges if no line was added.
  Reach reach() const;

 private:
  void range(const char* name, double value);
  void option(const char* name, bool present);

  std::map<std::string, std::pair<double, double>> ranges_;  ///< empty: no line was added
  std::map<std::string, std::int64_t> options_;
  std::set<std::string> seen_;
};

}  // namespace quire::verify_detail
