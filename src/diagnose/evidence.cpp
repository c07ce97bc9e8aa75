// Chooses exhibits from every request, and measures how much of their error a prediction explains.
#include "diagnose/evidence.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "diagnose/tolerance.h"
#include "text/formatted.h"

namespace quire::cause {
namespace {

using fault::Facts;
using fault::RowResult;

constexpr std::size_t kExhibits = 16;  // of each kind
constexpr std::size_t kSamples = 4;
// A row that a hypothesis says is never written may hold anything. If it breaks a law it holds no attention output, which is what
// the hypothesis says; if not, stale results of another call would look the same, but so would many other faults.
constexpr double kExplainsLawfulRow = 0.6;
constexpr double kNothing = 0.01;

/// Rows of each request in random order, in turn.
std::vector<const Compared*> in_turn(const Facts& f, const std::vector<const Compared*>& rows) {
  std::map<std::int64_t, std::vector<const Compared*>> by_request;
  for (const Compared* row : rows) by_request[f.req_of(row->token)].push_back(row);
  std::mt19937_64 random(1);
  for (auto& [req, list] : by_request) std::shuffle(list.begin(), list.end(), random);
  std::vector<const Compared*> list;
  for (std::size_t turn = 0; list.size() < std::min(rows.size(), kExhibits); ++turn)
    for (auto& [req, own] : by_request)
      if (turn < own.size()) list.push_back(own[turn]);
  return list;
}

/// Many faults make a row NaN, few make it a certain number: two of three exhibits are finite, as far as there are any.
std::vector<const Compared*> exhibits(const Facts& f, const Localisation& where, bool wrong) {
  std::vector<const Compared*> finite, other;
  for (const Compared& row : where.rows)
    if (row.wrong == wrong) (row.nonfinite == 0 ? finite : other).push_back(&row);
  const std::vector<const Compared*> first = in_turn(f, finite), second = in_turn(f, other);
  std::vector<const Compared*> list;
  for (std::size_t i = 0, j = 0; list.size() < kExhibits && (i < first.size() || j < second.size());) {
    const bool take_finite = i < first.size() && (list.size() % 3 != 2 || j == second.size());
    list.push_back(take_finite ? first[i++] : j < second.size() ? second[j++] : first[i++]);
  }
  return list;
}

double finite_distance(double a, double b) {
  const double d = std::fabs(a - b);
  return std::isfinite(d) ? d : 0;
}

/// What storing a prediction makes of it where it is too large for the type; its rounding is part of the tolerance.
double stored(double value, const numerics::OutputType& type) {
  return std::fabs(value) >= type.overflow ? std::copysign(std::numeric_limits<double>::infinity(), value) : value;
}

/// In [0, 1]: 0 within tolerance, 1 at the cap or if only one of the two is NaN or infinite.
double capped_error(double observed, double predicted, double tolerance, double cap) {
  if (observed == predicted || (std::isnan(observed) && std::isnan(predicted))) return 0;
  const double error = std::fabs(observed - predicted);
  if (!std::isfinite(error)) return 1;
  return std::min(1.0, std::max(0.0, error - tolerance) / cap);
}

}  // namespace

Evidence::Evidence(const Facts& facts, const Observed& observed, const Localisation& where)
    : facts_(facts), observed_(observed), where_(where) {
  choose();
}

Exhibit Evidence::exhibit(const Compared& row) const {
  Exhibit e;
  e.at = {row.token, row.head};
  e.reference_row = row.reference_row;
  e.wrong = row.wrong;
  e.unlawful = where_.laws.breaks(row.token * facts_.num_q_heads + row.head, kFinite | kFill | kHull);
  for (std::int64_t d = 0; d < facts_.head_dim; ++d) e.observed.push_back(observed_.at(row.token, row.head, d));
  e.observed_lse = observed_.lse.present() ? observed_.lse_at(row.token, row.head) : 0;
  return e;
}

RowResult Evidence::truth(const Exhibit& e) const {
  const auto first = where_.reference.out.begin() + e.reference_row * facts_.head_dim;
  return {true, {first, first + facts_.head_dim}, where_.reference.lse[Facts::at(e.reference_row)]};
}

void Evidence::choose() {
  for (const Compared* row : exhibits(facts_, where_, true)) wrong_.push_back(exhibit(*row));
  for (const Compared* row : exhibits(facts_, where_, false)) right_.push_back(exhibit(*row));
  for (const Exhibit& e : wrong_) {
    const RowResult expected = truth(e);
    for (std::size_t d = 0; d < e.observed.size(); ++d) {
      largest_error_ = std::max(largest_error_, finite_distance(e.observed[d], expected.out[d]));
      largest_tolerance_ = std::max(largest_tolerance_, output_tolerance(e, d, 0));
    }
    if (observed_.lse.present()) largest_lse_error_ = std::max(largest_lse_error_, finite_distance(e.observed_lse, expected.lse));
  }
  if (largest_error_ > 0) output_cap_ = largest_error_;
  if (largest_lse_error_ > 0) lse_cap_ = largest_lse_error_;
  for (Exhibit& e : wrong_) e.error = distance(e, truth(e));
  // A row wrong by less than its rounding may hide has nothing to explain, unless all are like that.
  std::erase_if(wrong_, [](const Exhibit& e) { return !(e.error > 0); });
  nonfinite_ = std::any_of(where_.rows.begin(), where_.rows.end(), [](const Compared& row) { return row.nonfinite > 0; });
}

std::string Evidence::observed_text() const {
  const bool output = std::any_of(where_.rows.begin(), where_.rows.end(), [](const Compared& row) { return row.wrong_dims > 0; });
  if (!output) return formatted("{:.3g} in lse", largest_lse_error_);
  if (largest_error_ == 0 || (nonfinite_ && largest_error_ <= largest_tolerance_)) return "NaN or infinity";
  return formatted("{:.3g}{}", largest_error_, nonfinite_ ? ", and NaN or infinity" : "");
}

double Evidence::output_tolerance(const Exhibit& e, std::size_t dim, double predicted) const {
  const numerics::OutputType type = numerics::output_type(where_.reference, observed_.output.dtype);
  const std::int64_t element = e.reference_row * facts_.head_dim + static_cast<std::int64_t>(dim);
  const double tolerance = numerics::output_tolerance(where_.reference, e.reference_row, element, type);
  return (std::isfinite(tolerance) ? tolerance : 0) + (std::isfinite(predicted) ? type.roundoff * std::fabs(predicted) : 0);
}

double Evidence::distance(const Exhibit& e, const RowResult& predicted) const {
  const numerics::OutputType type = numerics::output_type(where_.reference, observed_.output.dtype);
  double sum = 0;
  for (std::size_t d = 0; d < e.observed.size(); ++d)
    sum += capped_error(e.observed[d], stored(predicted.out[d], type), output_tolerance(e, d, predicted.out[d]), output_cap_);
  sum /= static_cast<double>(e.observed.size());
  if (observed_.lse.present())
    sum += capped_error(e.observed_lse, predicted.lse, numerics::lse_tolerance(where_.reference, e.reference_row), lse_cap_);
  return sum;
}

std::vector<fault::Sample> Evidence::samples() const {
  std::vector<fault::Sample> list;
  for (const Exhibit& e : wrong_)
    if (list.size() < kSamples) list.push_back({e.at.token, e.at.head, e.observed});
  return list;
}

void Evidence::fit_wrong(const Exhibit& e, const RowResult& p, Fit& fit) const {
  if (!p.written) {
    fit.explained += e.unlawful ? 1 : kExplainsLawfulRow;
    return;
  }
  fit.explained += std::max(-1.0, 1 - distance(e, p) / e.error);
  const RowResult expected = truth(e);
  for (std::size_t d = 0; d < e.observed.size(); ++d) {
    const double move = std::fabs(p.out[d] - expected.out[d]), left = std::fabs(e.observed[d] - p.out[d]);
    fit.largest_move = std::max(fit.largest_move, std::isnan(move) ? std::numeric_limits<double>::infinity() : move);
    fit.largest_left = std::max(fit.largest_left, std::isnan(left) ? 0 : left);
  }
}

Fit Evidence::fit(const fault::Model& model, std::size_t count) const {
  const auto first = [count](const std::vector<Exhibit>& list) { return std::span(list).first(std::min(count, list.size())); };
  const auto predict = [&](std::span<const Exhibit> exhibits) {
    std::vector<fault::RowHead> at;
    for (const Exhibit& e : exhibits) at.push_back(e.at);
    return evaluate(model, at);
  };
  Fit fit;
  fit.explained = 0;
  const std::span<const Exhibit> wrong = first(wrong_), right = first(right_);
  double typical = 0;
  const std::vector<RowResult> explanations = predict(wrong);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    typical += wrong[i].error / static_cast<double>(wrong.size());
    fit_wrong(wrong[i], explanations[i], fit);
  }
  fit.explained /= static_cast<double>(std::max<std::size_t>(1, wrong.size()));
  // What it breaks can only lower the share, so a hypothesis that explains nothing is not looked at any further.
  if (fit.explained < kNothing) return fit;
  const std::vector<RowResult> effects = predict(right);
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double error = effects[i].written ? distance(right[i], effects[i]) : typical;
    fit.explained -= std::min(1.0, error / typical) / static_cast<double>(right.size());
    fit.broken += error > 0 ? 1 : 0;
  }
  return fit;
}

}  // namespace quire::cause
