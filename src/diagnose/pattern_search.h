// SPDX-License-Identifier: Apache-2.0
// Prices in bits: of a condition (common words are cheap, numbers cost their choice) and of the exceptions to a rule; and the
// search for the cheapest rules, as many as there are separate sets of wrong cells.
#pragma once

#include <vector>

#include "diagnose/pattern_columns.h"

namespace quire::diagnose_detail {

/// Price of one condition; `log_choices` is log2 of the number of values to choose from.
double price(Attribute attribute, Test test, std::int64_t value, double log_choices);
/// Price of the remainders first .. last by `modulus`.
double price_of_remainders(Attribute attribute, std::int64_t modulus, std::int64_t first, std::int64_t last,
                           std::int64_t page_size);

/// Price of a list of `count` of the batch's `choices` requests: as many bits as tell it from every other such list.
double price_of_requests(std::size_t count, std::size_t choices);
/// Price of the run first .. last; `log_lengths` is log2 of the number of lengths that it may have.
double price_of_run(Attribute attribute, std::int64_t first, std::int64_t last, double log_choices, double log_lengths);

/// Number of bits that tell the wrong cells from the right ones among wrong + right cells.
double surprise(const Tally& tally);

/// A fault may hardly show in a cell of its scope, but never shows outside: wrong cells outside of a rule weigh this much more.
inline constexpr double kOutside = 3;

/// Surprise of the exceptions to a rule, in bits.
class Score {
 public:
  /// `scale`: weight of a cell, below 1 if cells err together. `local`: cells outside the rule are left to other rules, and
  /// exceptions inside weigh more. `outside`: weight of wrong cells outside, if not local.
  Score(Tally total, double scale, bool local, double outside);
  /// Number of bits that tell which cells are wrong, given the counts inside and outside of the rule.
  double data(const Tally& inside) const;
  /// The part of data() that a further condition can save.
  double savable(const Tally& inside) const { return local_ ? scale_ * kLocalWeight * surprise(inside) : data(inside); }
  /// Whether wrong cells are more frequent inside than in all.
  bool enriched(const Tally& inside) const { return inside.wrong * total_.right > inside.right * total_.wrong; }
  const Tally& total() const { return total_; }

 private:
  static constexpr double kLocalWeight = 1.5;

  Tally total_;
  double scale_, outside_;
  bool local_;
  double per_wrong_ = 0, per_right_ = 0;
};

/// A conjunction and what it selects of the compared cells.
struct Rule {
  std::vector<Condition> row_conditions, head_conditions;
  std::vector<std::vector<Condition>> also;  ///< other conditions on the row that select the same ones, cheapest first
  Mask rows, heads;
  Tally inside;
  double bits = 0;      ///< price of all conditions
  double row_bits = 0;  ///< price of the conditions on the row
  double data = 0;      ///< surprise that is left
  double cost() const { return bits + data; }
};

/// Rules that together describe the wrong cells, in the order in which they were found; empty if no rule does.
std::vector<Rule> find_rules(const Columns& columns, const Cells& cells);

/// Says the rule's rows in the cheapest words that select the same ones (pattern_rephrase.cpp).
void rephrase(const Columns& columns, Rule& rule);

}  // namespace quire::diagnose_detail
