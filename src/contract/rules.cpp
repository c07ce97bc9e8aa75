// SPDX-License-Identifier: Apache-2.0
// The rule table as data, and how findings become text and status.
#include <algorithm>
#include <string>
#include <utility>

#include "contract/report.h"
#include "text/formatted.h"

namespace quire {
namespace {

constexpr Rule kRules[] = {
#define QUIRE_RULE(tag, depth, statement, why, example) Rule{"Q-" #tag, Depth::depth, statement, why, example},
#include "contract/rules.inc"
#undef QUIRE_RULE
};

std::ptrdiff_t order(const Finding& finding) {
  return std::find_if(std::begin(kRules), std::end(kRules), [&](const Rule& rule) { return rule.id == finding.rule; }) -
         std::begin(kRules);
}

std::string text_of(const Finding& finding, std::string_view hint) {
  std::string where = finding.tensor;
  for (std::int64_t i : finding.index) where += formatted("[{}]", i);
  const bool is_range = finding.expected.starts_with("in ");
  const std::string rest = is_range ? " outside " + finding.expected.substr(3) : ", expected " + finding.expected;
  return formatted("{} {}: {}{}{}", finding.rule, where, finding.value, rest, hint.empty() ? "" : formatted(" ({})", hint));
}

}  // namespace

std::span<const Rule> rules() noexcept { return kRules; }

Status Findings::status() const {
  if (total == 0) return {};
  if (items.empty()) return failure.ok() ? Status(Code::out_of_memory, "check: out of memory") : failure;
  const Finding& first = items.front();
  const std::string more = total > 1 ? formatted(" (and {} more)", total - 1) : "";
  return {Code::contract_violation, first.message + more, first.rule};
}

namespace contract {

void Report::add(RuleId rule, std::string_view tensor, std::initializer_list<std::int64_t> index, std::string value,
                 std::string expected, std::string_view hint) {
  if (counted(rule)) return;
  ++counts_[slot(rule)];
  ++findings_.total;
  Finding finding{std::string(kRules[slot(rule)].id), std::string(tensor), index, std::move(value), std::move(expected), {}};
  finding.message = text_of(finding, hint);
  findings_.items.push_back(std::move(finding));
}

bool Report::counted(RuleId rule) noexcept {
  if (counts_[slot(rule)] < Findings::kMaxPerRule) return false;
  ++counts_[slot(rule)];
  ++findings_.total;
  return true;
}

bool Report::broken(std::initializer_list<RuleId> rules) const noexcept {
  return std::any_of(rules.begin(), rules.end(), [this](RuleId rule) { return broken(rule); });
}

void Report::fail(Status status) {
  ++findings_.total;
  findings_.failure = std::move(status);
}

Findings Report::take() {
  std::stable_sort(findings_.items.begin(), findings_.items.end(),
                   [](const Finding& a, const Finding& b) { return order(a) < order(b); });
  return std::move(findings_);
}

}  // namespace contract
}  // namespace quire
