// SPDX-License-Identifier: Apache-2.0
// Active sets over normal equations of the few candidates that have a count; columns are scaled to length 1 first.
#include "diagnose/null_vector.h"

#include <algorithm>
#include <cmath>

#include "quire/interrupt.hpp"

namespace quire::diagnose_detail {
namespace {

// Share of a diagonal that is added to it. Smaller lets a rounding error of 2^-53 make a pivot negative; larger bends counts that
// tolerances of f32 outputs still tell apart.
constexpr double kRidge = 1e-13;
constexpr double kNoise = 4.5;  // standard deviations that the best of some thousand candidates of pure noise hardly reaches

double product(std::span<const double> a, std::span<const double> b) {
  double sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= a.size(); i += 4)
    for (std::size_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  for (; i < a.size(); ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// A symmetric positive definite matrix [n][n] and its Cholesky factor.
class Factored {
 public:
  Factored(std::vector<double> matrix, std::size_t n) : a_(std::move(matrix)), n_(n) {
    for (std::size_t i = 0; i < n_; ++i) {
      if (i % 64 == 0) end_if_interrupted();
      for (std::size_t j = 0; j <= i; ++j) {
        const double rest = at(i, j) - product(row(i, j), row(j, j));
        at(i, j) = i == j ? std::sqrt(std::max(rest, kRidge)) : rest / at(j, j);
      }
    }
  }
  std::vector<double> solve(std::vector<double> b) const {
    for (std::size_t i = 0; i < n_; ++i) b[i] = (b[i] - product(row(i, i), std::span(b).first(i))) / at(i, i);
    for (std::size_t i = n_; i-- > 0;) {
      b[i] /= at(i, i);
      for (std::size_t j = 0; j < i; ++j) b[j] -= at(i, j) * b[i];
    }
    return b;
  }

 private:
  double& at(std::size_t i, std::size_t j) { return a_[i * n_ + j]; }
  double at(std::size_t i, std::size_t j) const { return a_[i * n_ + j]; }
  std::span<const double> row(std::size_t i, std::size_t count) const { return std::span(a_).subspan(i * n_, count); }

  std::vector<double> a_;
  std::size_t n_;
};

class ActiveSets {
 public:
  explicit ActiveSets(const NullSystem& s) : s_(s), counts_(s.start), banned_(s.candidates()) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < s.candidates(); ++i) {
      lengths_.push_back(length(s.column(i)));
      if (!(lengths_[i] > 0) || !(s.mass[i] > 0)) banned_[i] = true;
      if (banned_[i]) continue;
      ratios.push_back(lengths_[i] / s.mass[i]);
      if (counts_[i] > 0) active_.push_back(i);
    }
    if (ratios.empty()) return;
    const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
    std::nth_element(ratios.begin(), middle, ratios.end());
    condition_ = *middle;
    for (const std::size_t i : active_) add_products(i);
  }

  std::vector<double> run(std::size_t steps) {
    if (active_.empty()) return counts_;
    settle(s_.candidates());
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t next = best_candidate();
      if (next == s_.candidates()) break;
      active_.push_back(next);
      add_products(next);
      settle(next);
    }
    return counts_;
  }

 private:
  /// Appends the products of candidate `i`, which is the last active one so far that has none, with those before it.
  void add_products(std::size_t i) {
    std::vector<double> own;
    for (const std::size_t j : active_) {
      const double fixed = condition_ * condition_ * s_.mass[i] * s_.mass[j];
      own.push_back((product(s_.column(i), s_.column(j)) + fixed) / (lengths_[i] * lengths_[j]));
      if (j == i) break;
    }
    products_.push_back(std::move(own));
  }

  /// The counts of the active candidates that leave the least sum of squares, whatever their sign.
  std::vector<double> best_counts() const {
    const std::size_t n = active_.size();
    std::vector<double> matrix(n * n), right(n);
    for (std::size_t i = 0; i < n; ++i) {
      std::copy(products_[i].begin(), products_[i].end(), matrix.begin() + static_cast<std::ptrdiff_t>(i * n));
      matrix[i * n + i] *= 1 + kRidge * static_cast<double>(n);
      right[i] = condition_ * condition_ * s_.mass[active_[i]] / lengths_[active_[i]];
    }
    std::vector<double> x = Factored(std::move(matrix), n).solve(std::move(right));
    for (std::size_t i = 0; i < n; ++i) x[i] /= lengths_[active_[i]];
    return x;
  }

  /// Goes towards the best counts until one of them becomes 0, drops it, and repeats. A newcomer that is dropped at once never
  /// joins again.
  void settle(std::size_t newcomer) {
    while (!active_.empty()) {
      const std::vector<double> best = best_counts();
      double step = 1;
      for (std::size_t i = 0; i < best.size(); ++i)
        if (best[i] <= 0) step = std::min(step, counts_[active_[i]] / (counts_[active_[i]] - best[i]));
      for (std::size_t i = 0; i < best.size(); ++i) {
        double& count = counts_[active_[i]];
        count = step == 1 ? best[i] : count + step * (best[i] - count);
        if (best[i] <= 0 && count <= 1e-12) count = 0;
      }
      if (step == 1) return;
      for (std::size_t i = active_.size(); i-- > 0;)
        if (counts_[active_[i]] == 0) drop(i, newcomer);
    }
  }

  void drop(std::size_t i, std::size_t newcomer) {
    if (active_[i] == newcomer) banned_[newcomer] = true;
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    products_.erase(products_.begin() + static_cast<std::ptrdiff_t>(i));
    for (std::size_t j = i; j < products_.size(); ++j) products_[j].erase(products_[j].begin() + static_cast<std::ptrdiff_t>(i));
  }

  /// The candidate that explains most of what is left; candidates() if none explains more than noise does.
  std::size_t best_candidate() const {
    std::vector<double> left(s_.equations);
    double missing = 1;
    for (const std::size_t i : active_) {
      const std::span<const double> column = s_.column(i);
      for (std::size_t e = 0; e < left.size(); ++e) left[e] += counts_[i] * column[e];
      missing -= counts_[i] * s_.mass[i];
    }
    const double rms = length(left) / std::sqrt(static_cast<double>(s_.equations));
    std::size_t best = s_.candidates();
    double most = 0;
    for (std::size_t i = 0; i < s_.candidates(); ++i) {
      if (i % 256 == 0) end_if_interrupted();
      if (banned_[i] || counts_[i] > 0) continue;
      const double gain = condition_ * condition_ * s_.mass[i] * missing - product(s_.column(i), left);
      if (gain > most * lengths_[i]) most = gain / lengths_[i], best = i;
    }
    return rms < 1 && most < kNoise * rms ? s_.candidates() : best;
  }

  const NullSystem& s_;
  std::vector<double> counts_, lengths_;
  std::vector<bool> banned_;
  std::vector<std::size_t> active_;
  std::vector<std::vector<double>> products_;  ///< lower triangle, in the order of active_
  double condition_ = 0;                       ///< weight of the equation that fixes the size
};

}  // namespace

double length(std::span<const double> v) { return std::sqrt(product(v, v)); }

std::vector<double> bounded_null_vector(const NullSystem& system, std::size_t steps) { return ActiveSets(system).run(steps); }

double second_singular_value(const NullSystem& system, const std::vector<std::size_t>& among, const std::vector<double>& counts,
                             double longest) {
  constexpr int kIterations = 30;  // of inverse iteration; fewer may overstate the value, which would call more sets unique
  const std::size_t n = among.size();
  if (n == 0 || system.equations < 2 * n) return 0;
  std::vector<double> matrix(n * n), along(n), x(n), scale;
  for (const std::size_t i : among) scale.push_back(std::min(1.0, longest / length(system.column(i))));
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) {
    end_if_interrupted();
    along[i] = counts[among[i]] / scale[i];
    x[i] = std::cos(static_cast<double>(3 * i + 1));
    for (std::size_t j = 0; j <= i; ++j)
      matrix[i * n + j] = product(system.column(among[i]), system.column(among[j])) * scale[i] * scale[j];
    trace += matrix[i * n + i];
  }
  // The null direction moves out of the way: its eigenvalue becomes the trace, the sum of all.
  const double size = length(along);
  for (std::size_t i = 0; i < n && size > 0; ++i)
    for (std::size_t j = 0; j <= i; ++j) matrix[i * n + j] += trace * along[i] * along[j] / (size * size);
  for (double& value : matrix) value /= trace;
  const double ridge = kRidge * static_cast<double>(n);
  for (std::size_t i = 0; i < n; ++i) matrix[i * n + i] += ridge;
  const Factored factored(std::move(matrix), n);
  double grown = 1;
  for (int i = 0; i < kIterations; ++i) {
    const double before = length(x);
    for (double& value : x) value /= before;
    x = factored.solve(std::move(x));
    grown = length(x);
  }
  // What the ridge hides may be 0, as it is where two columns are the same.
  const double least = 1 / grown - ridge;
  return least > ridge ? std::sqrt(trace * least) : 0;
}

}  // namespace quire::diagnose_detail
