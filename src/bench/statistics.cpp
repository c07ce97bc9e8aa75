// SPDX-License-Identifier: Apache-2.0
// See statistics.h.
#include "bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace quire::benchmark {
namespace {

constexpr double kOutside = 0.05;  // both tails together
constexpr std::size_t kFewest = 6;

/// The largest k for which the median of n independent values lies between the k-th smallest and the k-th largest with 95 %:
/// the number of values below the median is binomial(n, 1/2) (David & Nagaraja, Order Statistics, 7.1).
std::size_t rank_of(std::size_t n) {
  double term = std::pow(0.5, static_cast<double>(n));  // P(none below)
  double tail = term;
  std::size_t k = 0;
  while (2 * tail <= kOutside && k < n / 2) {
    ++k;
    term *= static_cast<double>(n - k + 1) / static_cast<double>(k);
    tail += term;
  }
  return k;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Interval interval_of(const std::vector<double>& blocks) {
  if (blocks.empty()) return {};
  std::vector<double> sorted = blocks;
  std::sort(sorted.begin(), sorted.end());
  Interval interval{median(sorted), sorted.front(), sorted.back(), static_cast<std::int64_t>(sorted.size())};
  if (sorted.size() < kFewest) {
    const double length = interval.high - interval.low;
    interval.low = std::max(0.0, interval.low - length);
    interval.high += length;
    return interval;
  }
  const std::size_t k = std::max<std::size_t>(1, rank_of(sorted.size()));
  interval.low = sorted[k - 1];
  interval.high = sorted[sorted.size() - k];
  return interval;
}

}  // namespace quire::benchmark
