// SPDX-License-Identifier: Apache-2.0
// See shared.h. Values of axes that no passing case has are candidates; the fewest that cover all failing cases are named.
#include "verify/shared.h"

#include <algorithm>
#include <set>

#include "text/formatted.h"
#include "verify/reach.h"

namespace quire::verify_detail {
namespace {

constexpr std::size_t kFewest = 3;  ///< failing cases that a sentence is made for; fewer cases are read one by one

/// A property, and the failing cases that have it.
struct Candidate {
  std::string words, without;
  std::vector<bool> has;
  std::int64_t covers(const std::vector<bool>& open) const {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < open.size(); ++i) count += open[i] && has[i] ? 1 : 0;
    return count;
  }
};

/// Lines of cases that have rows: a case without rows passes, whatever else it has.
std::vector<ProblemLine> lines_of(const std::vector<CaseResult>& cases, CaseStatus status) {
  std::vector<ProblemLine> lines;
  for (const CaseResult& c : cases)
    if (const Result<ProblemLine> line = parse_problem_line(c.line); c.status == status && c.num_elements > 0 && line.ok())
      lines.push_back(line.value());
  return lines;
}

/// Properties of failing cases that no passing case has. Values that one `--supports` removes are one property, named by their
/// field.
std::vector<Candidate> candidates(const std::vector<ProblemLine>& failing, const std::vector<ProblemLine>& passing) {
  std::vector<Candidate> list;
  std::set<std::string> done;
  for (const AxisValue& value : axes()) {
    const bool grouped = !value.without.empty();
    if (grouped && !done.insert(value.without).second) continue;
    const auto has = [&](const ProblemLine& line) {
      return grouped ? std::ranges::any_of(axes(), [&](const AxisValue& v) { return v.without == value.without && v.has(line); })
                     : value.has(line);
    };
    if (std::ranges::any_of(passing, has)) continue;
    Candidate c{grouped ? value.fields : value.words, value.without, {}};
    for (const ProblemLine& line : failing) c.has.push_back(has(line));
    list.push_back(std::move(c));
  }
  return list;
}

/// The check that failing cases fail, if all of them fail the same one; else empty.
std::string only_check(const std::vector<CaseResult>& cases) {
  std::set<std::string> failed;
  for (const CaseResult& c : cases)
    for (const CheckResult& check : c.checks)
      if (check.state == CheckState::fail) failed.insert(check.check);
  return failed.size() == 1 ? *failed.begin() : "";
}

std::string with_advice(std::string sentence, const std::string& supports) {
  if (!supports.empty()) sentence += formatted("; if the target takes none, ask with --supports \"{}\"", supports);
  return sentence;
}

}  // namespace

std::string what_failures_share(const std::vector<CaseResult>& cases) {
  const std::vector<ProblemLine> failing = lines_of(cases, CaseStatus::fail), passing = lines_of(cases, CaseStatus::pass);
  const std::size_t count = failing.size();
  if (count < kFewest) return {};
  const std::string check = only_check(cases);
  if (check == "strided_inputs" || check == "lse")
    return with_advice(formatted("all {} failing cases fail {} alone", count, check), check == "lse" ? "lse=0" : "strides=none");
  if (passing.empty()) return {};
  std::vector<Candidate> list = candidates(failing, passing);
  std::vector<bool> open(count, true);
  std::string words, supports;
  for (auto left = static_cast<std::int64_t>(count); left > 0;) {
    const auto best = std::ranges::max_element(list, {}, [&](const Candidate& c) { return c.covers(open); });
    if (best == list.end() || best->covers(open) == 0) return {};
    left -= best->covers(open);
    for (std::size_t i = 0; i < count; ++i) open[i] = open[i] && !best->has[i];
    words += (words.empty() ? "" : " or ") + best->words;
    if (!best->without.empty()) supports += (supports.empty() ? "" : " ") + best->without;
  }
  return with_advice(formatted("all {} failing cases have {}, and no passing case has", count, words), supports);
}

}  // namespace quire::verify_detail
