// SPDX-License-Identifier: Apache-2.0
// Prices in bits: of a condition (common words are cheap, numbers cost their choice) and of the exceptions to a rule.
#pragma once

#include "diagnose/pattern_columns.h"

namespace quire::diagnose_detail {

/// Of one condition; `log_choices` is log2 of how many values there are to choose from.
double price(Attribute attribute, Test test, std::int64_t value, double log_choices);
/// Of the remainders first .. last by `modulus`.
double price_of_remainders(Attribute attribute, std::int64_t modulus, std::int64_t first, std::int64_t last,
                           std::int64_t page_size);

/// The bits that say which are which among wrong + right cells.
double surprise(const Tally& tally);

/// A fault may hardly show in a cell of its scope, but never shows outside: wrong cells outside of a rule weigh this much more.
inline constexpr double kOutside = 3;

/// How surprising exceptions are.
class Score {
 public:
  /// `scale`: what a cell counts, below 1 if cells err together. `local`: cells outside the rule are left to other rules, and
  /// exceptions inside weigh more. `outside`: what wrong cells outside weigh, if not local.
  Score(Tally total, double scale, bool local, double outside);
  /// The bits that say which cells are wrong, given how many are inside and outside of the rule.
  double data(const Tally& inside) const;
  /// The part of data() that a further condition can save.
  double savable(const Tally& inside) const { return local_ ? scale_ * kLocalWeight * surprise(inside) : data(inside); }
  /// Wrong cells are more frequent inside than in all.
  bool enriched(const Tally& inside) const { return inside.wrong * total_.right > inside.right * total_.wrong; }
  const Tally& total() const { return total_; }

 private:
  static constexpr double kLocalWeight = 1.5;

  Tally total_;
  double scale_, outside_;
  bool local_;
  double per_wrong_ = 0, per_right_ = 0;
};

}  // namespace quire::diagnose_detail
