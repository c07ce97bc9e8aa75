// SPDX-License-Identifier: Apache-2.0
// Prices order rules that select the same cells by how people say it; they never outweigh clear evidence.
#include "diagnose/pattern_search.h"

#include <array>
#include <cmath>

namespace quire::diagnose_detail {
namespace {

// All prices are in bits, like the exceptions of pattern_search.h, and were found by trial on the development captures
// (tests/diagnose/foreign). A price that is too high makes a rule lose to a longer or less exact rule in other words; one that is
// too low makes a rule win whose words nobody would choose.
constexpr double kCondition = 2;  // base price of every condition
constexpr double kPage = 3;       // discount for remainders of the page size, on which code often depends
constexpr double kRows = 3;       // discount for a run of the rows of a request, which has a name of its own: "rows 5-9"

// Prices in the order of Attribute: `request`, the word that people choose first, costs least; `token` (output row) costs most.
double price_of(Attribute attribute) {
  constexpr std::array<double, kAttributes> kPrices = {1, 6, 4, 5, 3, 3.5, 4, 2.5, 3, 4, 4, 4, 3, 2, 4, 3};
  return kPrices[static_cast<std::size_t>(attribute)];
}

/// Price of a condition with a name of its own (decode rows, prefill rows, first and last rows, no context, more than one key);
/// -1 for all others.
double price_of_name(Attribute attribute, Test test, std::int64_t value) {
  const bool one = test == Test::is || test == Test::to;
  switch (attribute) {
    case Attribute::query_len:
      if (one && value == 1) return 1;
      return test == Test::from && value == 2 ? 1.5 : -1;
    case Attribute::rows_from_end:
      if (one && value == 0) return 2;
      return test == Test::from && value == 1 ? 3 : -1;
    case Attribute::row:
      if (one && value == 0) return 2.5;
      return test == Test::from && value == 1 ? 3 : -1;
    case Attribute::context_len:
      if (one && value == 0) return 2.5;
      return test == Test::from && value == 1 ? 2.5 : -1;
    case Attribute::num_keys: return test == Test::from && value == 2 ? 3 : -1;
    default: return -1;
  }
}

/// Bounds in code are round numbers.
double discount(std::int64_t bound) { return bound <= 0 ? 0 : bound % 64 == 0 ? 2 : bound % 16 == 0 ? 1 : 0; }

double entropy_part(double part, double all) { return part <= 0 ? 0 : part * std::log2(all / part); }

}  // namespace

double price(Attribute attribute, Test test, std::int64_t value, double log_choices) {
  const double name = price_of_name(attribute, test, value);
  if (name >= 0) return kCondition + name;
  const double base = kCondition + price_of(attribute) + log_choices;
  switch (test) {
    case Test::is: return base + (attribute == Attribute::page || attribute <= Attribute::token ? 0 : 1);
    case Test::from: return base + 1 - discount(value);
    case Test::to: return base + 1 - discount(value + 1);
    case Test::between: return base + log_choices;
    case Test::not_reads: return base + 4;
    default: return base;
  }
}

double price_of_remainders(Attribute attribute, std::int64_t modulus, std::int64_t first, std::int64_t last,
                           std::int64_t page_size) {
  const bool one_thought = first == last || (first == 1 && last == modulus - 1);  // "no multiple of m" is one
  const double run = one_thought ? 0 : 2;
  return kCondition + price_of(attribute) + 3 + run + std::log2(static_cast<double>(modulus)) -
         (modulus == page_size ? kPage : 0);
}

double price_of_requests(std::size_t count, std::size_t choices) {
  const auto log2_factorial = [](std::size_t n) { return std::lgamma(static_cast<double>(n) + 1) / std::log(2.0); };
  const double lists = log2_factorial(choices) - log2_factorial(count) - log2_factorial(choices - count);
  return kCondition + price_of(Attribute::request) + lists;
}

double price_of_run(Attribute attribute, std::int64_t first, std::int64_t last, double log_choices, double log_lengths) {
  const double name = attribute == Attribute::row ? kRows : 0;
  return kCondition + price_of(attribute) - name + log_choices + log_lengths - discount(first) - discount(last + 1);
}

double surprise(const Tally& t) { return entropy_part(t.wrong, t.wrong + t.right) + entropy_part(t.right, t.wrong + t.right); }

Score::Score(Tally total, double scale, bool local, double outside)
    : total_(total), scale_(scale), outside_(outside), local_(local) {
  const double all = total.wrong + total.right;
  if (total.wrong > 0) per_wrong_ = std::log2(all / total.wrong);
  if (total.right > 0) per_right_ = std::log2(all / total.right);
}

double Score::data(const Tally& inside) const {
  const Tally outside = total_ - inside;
  if (!local_) return scale_ * (surprise(inside) + outside_ * surprise(outside));
  return scale_ * (kLocalWeight * surprise(inside) + outside.wrong * per_wrong_ + outside.right * per_right_);
}

}  // namespace quire::diagnose_detail
