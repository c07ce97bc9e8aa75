// SPDX-License-Identifier: Apache-2.0
// See summary.h.
#include "report/summary.h"

#include <algorithm>

namespace quire::report {

void MatrixSummary::add(const CaseResult& c) {
  ++cases;
  ++(c.status == CaseStatus::pass ? passed : c.status == CaseStatus::fail ? failed : refused);
  seconds += c.seconds;
  for (const CheckResult& check : c.checks) worst_ratio = std::max(worst_ratio, check.worst_ratio);
  if (c.status == CaseStatus::refused) return;
  num_elements += c.num_elements;
  num_compared += c.num_compared;
}

std::vector<MatrixSummary> summaries(const Verdict& v) {
  std::vector<MatrixSummary> list;
  for (const CaseResult& c : v.cases) {
    auto at = std::ranges::find(list, c.matrix, &MatrixSummary::name);
    if (at == list.end()) at = list.insert(at, MatrixSummary{.name = c.matrix});
    at->add(c);
  }
  return list;
}

std::int64_t count(const Verdict& v, CaseStatus status) { return std::ranges::count(v.cases, status, &CaseResult::status); }

std::int64_t killed(const std::vector<MutantResult>& power) { return std::ranges::count(power, true, &MutantResult::killed); }
std::int64_t could_be_killed(const std::vector<MutantResult>& power) {
  return std::ranges::count_if(power, [](const MutantResult& m) { return m.asked && m.can_show; });
}

}  // namespace quire::report
