// SPDX-License-Identifier: Apache-2.0
// Chooses exhibits from every request, and measures how much of their error a prediction explains.
#include "diagnose/evidence.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "numerics/tolerance.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kScreened = 3, kRanked = 16, kVerified = 64;  // exhibits of each kind
constexpr std::size_t kSamples = 4;                                 // wrong exhibits for faults that search for parameters
constexpr std::int64_t kKeysVerified = 100'000;  // visible keys of all exhibits of a kind: bounds the time of one verification
constexpr double kNearlyAllDims = 0.9;           // share of wrong dims from which a row that breaks a law is unlawful
constexpr double kNothing = 0.01;                // share of the error below which a hypothesis explains nothing
constexpr double kWithoutLse = 0.95;             // credit for an output that is explained beside an lse that is not

/// Rows of each request in random order, in turn.
std::vector<const Compared*> in_turn(const Facts& f, const std::vector<const Compared*>& rows, std::size_t count) {
  std::map<std::int64_t, std::vector<const Compared*>> by_request;
  for (const Compared* row : rows) by_request[f.req_of(row->token)].push_back(row);
  std::mt19937_64 random(1);
  for (auto& [req, list] : by_request) std::shuffle(list.begin(), list.end(), random);
  std::vector<const Compared*> list;
  for (std::size_t turn = 0; list.size() < std::min(rows.size(), count); ++turn)
    for (auto& [req, own] : by_request)
      if (turn < own.size()) list.push_back(own[turn]);
  return list;
}

/// Many faults make a row NaN, few make it a certain number: two of three exhibits are finite, as far as there are any.
std::vector<const Compared*> exhibits(const Facts& f, const std::vector<const Compared*>& rows) {
  std::vector<const Compared*> finite, other;
  for (const Compared* row : rows) (row->nonfinite == 0 ? finite : other).push_back(row);
  const std::vector<const Compared*> first = in_turn(f, finite, kVerified), second = in_turn(f, other, kVerified);
  std::vector<const Compared*> list;
  for (std::size_t i = 0, j = 0; list.size() < kVerified && (i < first.size() || j < second.size());) {
    const bool take_finite = i < first.size() && (list.size() % 3 != 2 || j == second.size());
    list.push_back(take_finite ? first[i++] : j < second.size() ? second[j++] : first[i++]);
  }
  return list;
}

/// The first kRanked by their keys, so that screening is cheap; then as many as kKeysVerified allows.
void order(std::vector<Exhibit>& list) {
  const auto ranked = list.begin() + static_cast<std::ptrdiff_t>(std::min(kRanked, list.size()));
  std::stable_sort(list.begin(), ranked, [](const Exhibit& a, const Exhibit& b) { return a.num_keys < b.num_keys; });
  std::int64_t keys = 0;
  std::size_t count = 0;
  while (count < list.size() && (count < kRanked || keys < kKeysVerified)) keys += list[count++].num_keys;
  list.resize(count);
}

double finite_distance(double a, double b) {
  const double d = std::fabs(a - b);
  return std::isfinite(d) ? d : 0;
}

/// A prediction as the output type stores it: infinite if it is too large. The tolerance allows the rounding of the store.
double stored(double value, const numerics::OutputType& type) {
  return std::fabs(value) >= type.overflow ? std::copysign(std::numeric_limits<double>::infinity(), value) : value;
}

/// Error in [0, 1]: 0 within tolerance, 1 at the cap or if only one of the two values is NaN or infinite.
double capped_error(double observed, double predicted, double tolerance, double cap) {
  if (observed == predicted || (std::isnan(observed) && std::isnan(predicted))) return 0;
  const double error = std::fabs(observed - predicted);
  if (!std::isfinite(error)) return 1;
  return std::min(1.0, std::max(0.0, error - tolerance) / cap);
}

/// Equal, or both NaN.
bool observed_is(double observed, double predicted) {
  return observed == predicted || (std::isnan(observed) && std::isnan(predicted));
}

double norm(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += std::isfinite(x) ? x * x : 0;
  return std::sqrt(sum);
}

}  // namespace

/// Sums over wrong exhibits. A kernel may make its lse from other numbers than its output: either of the two predictions of the
/// lse may hold, but for all exhibits.
struct Evidence::Tally {
  Fit fit;
  double explained_by_own_lse = 0, explained_by_true_lse = 0, explained_without_lse = 0;
  std::int64_t whole_by_own_lse = 0, whole_by_true_lse = 0;
  double errors = 0, residuals = 0;
  double claimed = 0;           ///< share of rows that are said to be never written, without proof
  bool finite_numbers = false;  ///< some row holds finite numbers, and not 0 alone
};

Evidence::Evidence(const Facts& facts, const Observed& observed, const Localisation& where, const Pattern* scope,
                   const std::vector<Pattern>& patterns, const Facts* names)
    : facts_(facts), names_(names != nullptr ? *names : facts), observed_(observed), where_(where), scope_(scope) {
  choose(patterns);
  measure();
  if (scope_ == nullptr) return;
  for (const Condition& c : scope_->conditions) {
    if (c.attribute != Attribute::dim || c.holds(-1)) continue;
    dims_.resize(Facts::at(facts_.v_head_dim), true);
    for (std::size_t d = 0; d < dims_.size(); ++d) dims_[d] = dims_[d] && c.holds(static_cast<std::int64_t>(d));
  }
}

/// Outside the dims of the scope the kernel is right, whatever a hypothesis says.
void Evidence::keep_other_dims(const Exhibit& e, RowResult& predicted) const {
  const RowResult expected = truth(e);
  for (std::size_t d = 0; d < dims_.size(); ++d)
    if (!dims_[d]) predicted.out[d] = expected.out[d];
}

Exhibit Evidence::exhibit(const Compared& row) const {
  Exhibit e;
  e.at = {row.token, row.head};
  e.reference_row = row.reference_row;
  e.num_keys = where_.reference.num_keys[Facts::at(row.reference_row)];
  e.wrong = row.wrong;
  e.in_wrong_row = wrong_tokens_.contains(row.token);
  const bool nearly_all = static_cast<double>(row.wrong_dims) >= kNearlyAllDims * static_cast<double>(facts_.v_head_dim);
  e.unlawful = nearly_all && where_.laws.breaks_any(row.token * facts_.num_q_heads + row.head);
  e.before = row.before;
  for (std::int64_t d = 0; d < facts_.v_head_dim; ++d) e.observed.push_back(observed_.at(row.token, row.head, d));
  e.zeros = std::all_of(e.observed.begin(), e.observed.end(), [](double value) { return value == 0; });
  e.observed_lse = observed_.lse.present() ? observed_.lse_at(row.token, row.head) : 0;
  return e;
}

RowResult Evidence::truth(const Exhibit& e) const {
  const auto first = where_.reference.out.begin() + e.reference_row * facts_.v_head_dim;
  return {true, {first, first + facts_.v_head_dim}, where_.reference.lse[Facts::at(e.reference_row)]};
}

void Evidence::choose(const std::vector<Pattern>& patterns) {
  const auto of_a_smaller_one = [&](const Compared& row) {
    return scope_ != nullptr && std::any_of(patterns.begin(), patterns.end(), [&](const Pattern& p) {
             return p.cells < scope_->cells && contains(names_, p, row.token, row.head);
           });
  };
  for (const Compared& row : where_.rows)
    if (row.wrong) wrong_tokens_.insert(row.token);
  std::vector<const Compared*> inside, outside;
  for (const Compared& row : where_.rows) {
    const bool in_scope = scope_ == nullptr || contains(names_, *scope_, row.token, row.head);
    if (in_scope && of_a_smaller_one(row)) continue;
    if (row.wrong) {
      if (in_scope) wrong_cells_.push_back(&row);
      continue;
    }
    (in_scope ? inside : outside).push_back(&row);
  }
  for (const Compared* row : exhibits(facts_, wrong_cells_)) wrong_.push_back(exhibit(*row));
  for (const Compared* row : exhibits(facts_, inside)) inside_.push_back(exhibit(*row));
  for (const Compared* row : exhibits(facts_, outside)) outside_.push_back(exhibit(*row));
  for (std::vector<Exhibit>* list : {&wrong_, &inside_, &outside_}) order(*list);
}

void Evidence::measure() {
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
  typical_ = 0;
  for (const Exhibit& e : wrong_) typical_ += e.error / static_cast<double>(wrong_.size());
  nonfinite_ = std::any_of(wrong_cells_.begin(), wrong_cells_.end(), [](const Compared* row) { return row->nonfinite > 0; });
}

std::string Evidence::observed_text() const {
  const bool output =
      std::any_of(wrong_cells_.begin(), wrong_cells_.end(), [](const Compared* row) { return row->wrong_dims > 0; });
  if (!output) return formatted("{:.3g} in lse", largest_lse_error_);
  if (largest_error_ == 0 || (nonfinite_ && largest_error_ <= largest_tolerance_)) return "NaN or infinity";
  return formatted("{:.3g}{}", largest_error_, nonfinite_ ? ", and NaN or infinity" : "");
}

double Evidence::output_tolerance(const Exhibit& e, std::size_t dim, double predicted) const {
  const numerics::OutputType type = numerics::output_type(where_.reference, observed_.output.dtype);
  const std::int64_t element = e.reference_row * facts_.v_head_dim + static_cast<std::int64_t>(dim);
  const double tolerance = numerics::output_tolerance(where_.reference, e.reference_row, element, type);
  return (std::isfinite(tolerance) ? tolerance : 0) + (std::isfinite(predicted) ? type.roundoff * std::fabs(predicted) : 0);
}

double Evidence::output_distance(const Exhibit& e, const RowResult& predicted) const {
  const numerics::OutputType type = numerics::output_type(where_.reference, observed_.output.dtype);
  double sum = 0;
  for (std::size_t d = 0; d < e.observed.size(); ++d)
    sum += capped_error(e.observed[d], stored(predicted.out[d], type), output_tolerance(e, d, predicted.out[d]), output_cap_);
  return sum / static_cast<double>(e.observed.size());
}

double Evidence::lse_distance(const Exhibit& e, double predicted) const {
  if (!observed_.lse.present()) return 0;
  return capped_error(e.observed_lse, predicted, numerics::lse_tolerance(where_.reference, e.reference_row), lse_cap_);
}

double Evidence::distance(const Exhibit& e, const RowResult& predicted) const {
  return output_distance(e, predicted) + lse_distance(e, predicted.lse);
}

std::vector<Sample> Evidence::samples() const {
  std::vector<Sample> list;
  for (const Exhibit& e : wrong_)
    if (list.size() < kSamples) list.push_back({e.at.token, e.at.head, e.observed});
  return list;
}

void Evidence::fit_unwritten(const Exhibit& e, bool some_dims, Tally& tally) const {
  bool all_nan = true;
  for (std::size_t d = 0; d < e.observed.size(); ++d)
    all_nan = all_nan && (std::isnan(e.observed[d]) || (some_dims && !dims_[d]));
  const bool unlawful = e.unlawful || all_nan;
  double share = 1;
  const bool one_value = all_nan || where_.laws.breaks(e.at.token * facts_.num_q_heads + e.at.head, Law::one_value);
  if (e.before != Before::unknown) share = e.before == Before::same ? 1 : 0;
  const bool proven = e.before == Before::same || (e.before == Before::unknown && unlawful && one_value);
  tally.fit.unwritten = true;
  tally.fit.unproven = tally.fit.unproven || !proven;
  tally.fit.by_nan = tally.fit.by_nan || all_nan;
  tally.claimed += !unlawful || all_nan ? share : 0;
  tally.explained_by_own_lse += share;
  tally.explained_by_true_lse += share;
  tally.explained_without_lse += share;
  tally.errors += 1e6;
  if (share < 1) return;
  ++tally.whole_by_own_lse;
  ++tally.whole_by_true_lse;
  // NaN in every dim may have been computed, too; and so may 0, which is also what most buffers hold before a call.
  tally.fit.finite += proven && !e.zeros && !all_nan ? 1 : 0;
}

void Evidence::fit_wrong(const Exhibit& e, RowResult p, bool some_dims, Tally& tally) const {
  ++tally.fit.wrong;
  tally.fit.zeros += e.zeros ? 1 : 0;
  const Compared& compared = where_.rows[Facts::at(e.reference_row)];
  const bool lse_alone = compared.wrong_dims == 0, finite = compared.nonfinite < compared.wrong_dims && !e.zeros;
  tally.fit.numbers += lse_alone || finite ? 1 : 0;
  tally.fit.kept += e.before == Before::same ? 1 : 0;
  tally.finite_numbers = tally.finite_numbers || (!e.zeros && std::isfinite(e.observed[0]));
  if (!p.written) return fit_unwritten(e, some_dims, tally);
  const RowResult expected = truth(e);
  const numerics::OutputType type = numerics::output_type(where_.reference, observed_.output.dtype);
  const double output = output_distance(e, p), own = lse_distance(e, p.lse), true_lse = lse_distance(e, expected.lse);
  tally.explained_by_own_lse += std::max(-1.0, 1 - (output + own) / e.error);
  tally.explained_by_true_lse += std::max(-1.0, 1 - (output + true_lse) / e.error);
  const double output_error = output_distance(e, expected);
  tally.explained_without_lse += output_error > 0 ? std::max(-1.0, 1 - output / output_error) : 0;
  // Larger numbers than the truth's have larger roundings.
  const double larger = std::max(1.0, std::min(norm(p.out), norm(e.observed)) / std::max(norm(expected.out), 1e-300));
  bool whole = true;
  for (std::size_t d = 0; d < e.observed.size(); ++d) {
    const double predicted = stored(p.out[d], type), tolerance = output_tolerance(e, d, predicted) * larger;
    const double move = std::fabs(p.out[d] - expected.out[d]), left = std::fabs(e.observed[d] - p.out[d]);
    tally.fit.largest_move = std::max(tally.fit.largest_move, std::isnan(move) ? std::numeric_limits<double>::infinity() : move);
    tally.fit.largest_left = std::max(tally.fit.largest_left, std::isnan(left) ? 0 : left);
    whole = whole && (observed_is(e.observed[d], predicted) || left <= tolerance);
    const double error = std::fabs(e.observed[d] - expected.out[d]) / tolerance, residual = left / tolerance;
    tally.errors += std::isfinite(error) ? std::min(error * error, 1e8) : 1e4;
    if (std::isfinite(residual)) tally.residuals += residual * residual;
  }
  if (observed_.lse.present()) {
    const double tolerance = numerics::lse_tolerance(where_.reference, e.reference_row);
    const double error = std::fabs(e.observed_lse - expected.lse) / tolerance;
    const double residual = std::min(std::fabs(e.observed_lse - expected.lse), std::fabs(e.observed_lse - p.lse)) / tolerance;
    tally.errors += std::isfinite(error) ? std::min(error * error, 1e8) : 1e4;
    if (std::isfinite(residual)) tally.residuals += residual * residual;
  }
  const bool by_lse = !lse_alone && !finite && compared.wrong_lse && std::isfinite(e.observed_lse) && whole && own == 0;
  tally.fit.numbers += by_lse ? 1 : 0;
  tally.fit.finite += by_lse || (whole && (lse_alone || finite)) ? 1 : 0;
  tally.whole_by_own_lse += whole && own == 0 ? 1 : 0;
  tally.whole_by_true_lse += whole && true_lse == 0 ? 1 : 0;
}

double Evidence::damage(const std::vector<Exhibit>& right, std::size_t count, const Model& model, bool own_lse, Fit& fit) const {
  count = std::min(count, right.size());
  std::vector<RowHead> at;
  for (std::size_t i = 0; i < count; ++i) at.push_back(right[i].at);
  std::vector<RowResult> effects = evaluate(model, at);
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (fit.some_dims) keep_other_dims(right[i], effects[i]);
    double error = effects[i].written ? output_distance(right[i], effects[i]) : typical_;
    if (own_lse && effects[i].written) error += lse_distance(right[i], effects[i].lse);
    sum += std::min(1.0, error / typical_);
    fit.broken += error > 0 ? 1 : 0;
    fit.broken_beside += error > 0 && right[i].in_wrong_row ? 1 : 0;
  }
  return sum;
}

Fit Evidence::fit(const Model& model, Stage stage) const {
  constexpr double kWorthDims =
      0.02;  // more share of the error that a scope in dims must explain, because it is one more assumption
  const Fit all = fit_dims(model, stage, /*some_dims=*/false);
  if (dims_.empty() || all.whole == all.wrong) return all;
  const Fit some = fit_dims(model, stage, /*some_dims=*/true);
  return some.explained > all.explained + kWorthDims ? some : all;
}

Fit Evidence::fit_dims(const Model& model, Stage stage, bool some_dims) const {
  const std::size_t count = stage == Stage::screening ? kScreened : stage == Stage::ranking ? kRanked : kVerified;
  const std::size_t wrong = std::min(count, wrong_.size());
  Tally tally;
  for (std::size_t i = 0; i < wrong; ++i) {
    RowResult predicted = std::move(evaluate(model, std::span<const RowHead>(&wrong_[i].at, 1))[0]);
    if (some_dims) keep_other_dims(wrong_[i], predicted);
    fit_wrong(wrong_[i], std::move(predicted), some_dims, tally);
    // A hypothesis that explains nothing of two wrong rows is not looked at any further.
    if (stage == Stage::screening && i == 1 &&
        std::max({tally.explained_by_own_lse, tally.explained_by_true_lse, tally.explained_without_lse}) < kNothing)
      break;
  }
  // A lawful row that a hypothesis says is never written may hold anything, and so may one of NaN: they speak for the hypothesis
  // only beside a row that it explains number by number, or where there are no numbers.
  if (stage != Stage::screening && tally.fit.finite == 0 && tally.finite_numbers)
    for (double* sum : {&tally.explained_by_own_lse, &tally.explained_by_true_lse, &tally.explained_without_lse})
      *sum -= tally.claimed;
  Fit fit = tally.fit;
  fit.some_dims = some_dims;
  const auto looked_at = static_cast<double>(std::max<std::int64_t>(1, fit.wrong));
  fit.explained =
      std::max({tally.explained_by_own_lse, tally.explained_by_true_lse, kWithoutLse * tally.explained_without_lse}) / looked_at;
  fit.whole = std::max(tally.whole_by_own_lse, tally.whole_by_true_lse);
  fit.clarity = tally.errors / std::max(tally.residuals, 1e-12);
  if (fit.explained < kNothing) return fit;
  const bool own_lse = tally.explained_by_own_lse > tally.explained_by_true_lse;
  const double inside = damage(inside_, count, model, own_lse, fit);
  fit.broken_inside = fit.broken;
  const double outside = damage(outside_, count, model, own_lse, fit);
  const auto inside_count = static_cast<double>(std::min(count, inside_.size()));
  const auto outside_count = static_cast<double>(std::min(count, outside_.size()));
  fit.right_inside = static_cast<std::int64_t>(inside_count);
  fit.right = static_cast<std::int64_t>(inside_count + outside_count);
  fit.damage_inside = inside / std::max(1.0, inside_count);
  fit.damage = (inside + outside) / std::max(1.0, inside_count + outside_count);
  return fit;
}

}  // namespace quire::diagnose_detail
