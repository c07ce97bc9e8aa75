// SPDX-License-Identifier: Apache-2.0
// Collects findings for one call: counts every one, lists the first few of each rule, writes their text.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "quire/contract.hpp"

namespace quire::contract {

enum class RuleId : int {
#define QUIRE_RULE(tag, depth, statement, why, example) tag,
#include "contract/rules.inc"
#undef QUIRE_RULE
  count
};
inline constexpr std::size_t kNumRules = static_cast<std::size_t>(RuleId::count);

class Report {
 public:
  /// One finding. The text is "<id> <tensor>[index]...: <value> outside <range>" if `expected` reads "in <range>",
  /// otherwise "...: <value>, expected <expected>"; a hint follows in parentheses.
  void add(RuleId rule, std::string_view tensor, std::initializer_list<std::int64_t> index, std::string value,
           std::string expected, std::string_view hint = {});

  /// If the rule's listing is full, counts one more finding and returns true: its text need not be made.
  bool counted(RuleId rule) noexcept;

  /// Whether no rule is broken so far.
  bool clean() const noexcept { return findings_.total == 0; }
  bool broken(RuleId rule) const noexcept { return counts_[slot(rule)] > 0; }
  bool broken(std::initializer_list<RuleId> rules) const noexcept;

  /// The rules that read data could not be applied.
  void fail(Status status);

  /// The findings in rule order.
  Findings take();

 private:
  static std::size_t slot(RuleId rule) noexcept { return static_cast<std::size_t>(rule); }

  std::array<std::int64_t, kNumRules> counts_{};
  Findings findings_;
};

}  // namespace quire::contract
