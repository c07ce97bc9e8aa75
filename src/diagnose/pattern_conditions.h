// SPDX-License-Identifier: Apache-2.0
// Candidates: for each kind of condition the one that describes the wrong cells most cheaply.
#pragma once

#include <map>
#include <utility>

#include "diagnose/pattern_search.h"

namespace quire::diagnose_detail {

struct Candidate {
  Condition condition;
  double bits = 0;  ///< price of this condition
  double cost = 0;  ///< bits and the surprise that is left
  Tally inside;
};

/// The best candidate of every kind: an attribute, a test and a modulus.
class Candidates {
 public:
  explicit Candidates(const Score& score) : score_(score) {}

  /// make() gives the values of the condition; it is called only if the candidate is the best of its kind so far.
  template <typename Make>
  void offer(Attribute attribute, Test test, std::int64_t modulus, const Tally& inside, double bits, Make&& make) {
    if (inside.wrong <= 0 || !score_.enriched(inside)) return;
    const double cost = bits + score_.data(inside);
    const auto [at, first] = best_.try_emplace({static_cast<int>(attribute) * 8 + static_cast<int>(test), modulus});
    if (first || cost < at->second.cost) at->second = {{attribute, test, make()}, bits, cost, inside};
  }
  const Score& score() const { return score_; }
  std::vector<Candidate> cheapest_first() const;

 private:
  const Score& score_;
  std::map<std::pair<int, std::int64_t>, Candidate> best_;
};

/// Conditions on the row; `of_row` is the evidence in the rows and heads that other conditions leave.
void offer_rows(const Columns& columns, const std::vector<Tally>& of_row, Candidates& candidates);
/// Conditions on the head.
void offer_heads(const Facts& facts, const std::vector<Tally>& of_head, Candidates& candidates);
/// Conditions on an axis whose every index is a value: intervals, remainders, a few indices.
void offer_axis(Attribute attribute, const std::vector<Tally>& of_index, Candidates& candidates);

/// The bound by its name where no value of the batch lies between it and `below`: "more than one row", "any context".
std::int64_t named_bound(Attribute attribute, std::int64_t below, std::int64_t bound);

inline constexpr std::size_t kRequests = 8, kPages = 4, kHeads = 4;  ///< most values listed by number
inline constexpr std::int64_t kRemainders = 16;                      ///< most remainders listed, except of the page size

/// Whether the remainders first .. last by `modulus` come and go at least three times over ascending values, of which `seen`
/// tells those that count: else a bound, or a run, says the same without an accident of the numbers.
template <typename Seen>
bool alternates(const std::vector<std::int64_t>& values, std::int64_t modulus, std::int64_t first, std::int64_t last,
                Seen&& seen) {
  constexpr int kLeast = 3;
  int changes = 0, before = -1;
  for (std::size_t i = 0; i < values.size() && changes < kLeast; ++i) {
    if (!seen(i)) continue;
    const std::int64_t rest = remainder(values[i], modulus);
    const int in = rest >= first && rest <= last ? 1 : 0;
    changes += before >= 0 && in != before ? 1 : 0;
    before = in;
  }
  return changes >= kLeast;
}

/// log2, at least 1.
double log_count(std::size_t count);

}  // namespace quire::diagnose_detail
