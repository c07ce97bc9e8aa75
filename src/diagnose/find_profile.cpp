// SPDX-License-Identifier: Apache-2.0
// See find_profile.h. Rounding is in every row with several keys, a fault is where it is: that tells one from the other.
#include "diagnose/find_profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "numerics/tolerance.h"
#include "threads/on_threads.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kMostWork = 8e6;        // elements of K that one emulation may read
constexpr std::size_t kMostCells = 64;   // (row, head) that are emulated
constexpr std::int64_t kShows = 3;       // dims over the plain tolerance, from which the rounding shows in a cell
constexpr double kShareThatShows = 0.8;  // least share of the cells with emulated rounding that also show observed rounding
constexpr double kSlack = 2;             // standard errors of that share: a few cells may fall short by chance
constexpr std::size_t kEnough = 6;       // such cells, if a fault is left beside them
// Elements that the emulated kernel stores otherwise than a plain one, from which the size of its error is known: as many
// random changes vary by a third of their number.
constexpr std::int64_t kTells = 8;
constexpr double kOutlier = 8;  // observed / emulated error of one cell in which the emulated error shows
// Errors of a fault do not have the size of the emulated rounding in cell after cell. If at least kAlikeCells cells have errors
// of that size, a fault in other cells does not refute the profile.
constexpr std::size_t kAlikeCells = 12;
constexpr double kAlikeShare = 0.8, kAlikeLeast = 0.8, kAlikeMost = 1.25;
// Bounds of observed error / emulated error (each a root mean square over dims): of the median over cells, and of the least tenth
// of the cells. A real kernel may round relative to other maxima, or after normalisation, but rounds everywhere. Bounds are wider
// for few cells.
constexpr std::size_t kManyCells = 8;
constexpr double kLeastSize[] = {0.65, 0.3};
constexpr double kMostSize[] = {1.7, 3};
constexpr double kLeastTenth = 0.2;
// Upper over lower quartile of the sizes. Two independent roundings of many weights, with kTells changes each, differ by a
// quotient whose logarithm has the standard deviation sqrt(2 / kTells) / 2: quartiles of a quotient of 1.4. Where one weight
// dominates, the quotient of two uniform errors has the quartiles 1/2 and 2: a quotient of 4. Rows of both kinds lie between;
// errors of a fault spread by more than 4.
constexpr double kMostSpread = 3;
constexpr double kAllRight = 0.05;     // a profile under which all cells are right may be that much less alike
constexpr double kClearlyLess = 0.15;  // a wider profile must be that much more alike than one that makes all right
// Cells that are wrong in f32 and must become right under a profile: this share of them, or this number.
constexpr double kLeastCured = 0.1;
constexpr std::int64_t kLeastCuredCells = 12;
/// Profiles to try, tightest first.
std::vector<NumericsProfile> candidates(const Facts& f) {
  const DType type = f.batch.query.dtype;
  if (is_fp8(type) || is_fp8(f.batch.output.dtype)) return {};  // 8 bits hide what a profile would explain
  if (type == DType::f32) return {{.tf32_products = true}, {.weights = DType::f16}, {.weights = DType::bf16}};
  std::vector<NumericsProfile> list;
  const bool converted = f.cache.k.dtype != type || f.cache.v.dtype != type;
  if (converted) list.push_back({.dequantised_to_query = true});
  if (type == DType::bf16) list.push_back({.weights = DType::f16});
  list.push_back({.weights = type});
  if (converted) list.push_back({.weights = type, .dequantised_to_query = true});
  list.push_back({.scores = type});
  list.push_back({.weights = type, .scores = type});
  if (converted) list.push_back({.weights = type, .scores = type, .dequantised_to_query = true});
  return list;
}

/// What a kernel does beyond the one rounding of its output, which every kernel does: a kernel without this profile leaves 0.
struct Beyond {
  double observed = 0, emulated = 0;  ///< sums of squared distances to the plain answer, as it is stored
  std::int64_t changed = 0;           ///< elements that the emulated kernel stores otherwise

  void operator+=(const Beyond& o) { observed += o.observed, emulated += o.emulated, changed += o.changed; }
  bool tells() const { return changed >= kTells; }
  /// Observed / emulated: 1 for a kernel with this profile, 0 for a plain one.
  double size() const { return std::sqrt(observed / emulated); }
};

/// A (row, head) that is right under a candidate.
struct Cell {
  const Compared* paid = nullptr;   ///< comparison under the candidate
  const Compared* plain = nullptr;  ///< comparison in f32
  Beyond beyond;
  Projection on_output, on_scores;  ///< observed error along the effect of a wrong factor of the output, or of the scores
  bool shows = false;               ///< the emulated kernel is plainly off here

  void add(double observed, double emulated, double plain_value) {
    const double o = observed - plain_value, e = emulated - plain_value;
    beyond += {o * o, e * e, e != 0 ? 1 : 0};
  }
};

bool are_enough(std::int64_t cured, std::int64_t wrong) {
  return cured >= kLeastCuredCells || (cured > 0 && static_cast<double>(cured) >= kLeastCured * static_cast<double>(wrong));
}

class Trial {
 public:
  Trial(const Facts& f, const Observed& observed, const Localisation& plain, const Localisation& paid)
      : f_(f), observed_(observed), plain_(plain), paid_(paid) {
    std::map<std::pair<std::int64_t, std::int64_t>, const Compared*> known;
    for (const Compared& row : plain.rows) known[{row.token, row.head}] = &row;
    for (const Compared& row : paid.rows) {
      const Compared* before = known[{row.token, row.head}];
      if (before == nullptr) continue;
      wrong_before_ += before->wrong ? 1 : 0;
      wrong_ += row.wrong ? 1 : 0;
      cured_ += before->wrong && !row.wrong ? 1 : 0;
      if (!row.wrong && paid.reference.num_keys[Facts::at(row.reference_row)] > 1) cells_.push_back({&row, before});
    }
  }

  std::int64_t wrong() const { return wrong_; }

  /// Median over cells of |log(observed error / emulated error)|.
  double unlikeness() const {
    std::vector<double> list;
    for (const double size : sizes_)
      if (size > 0) list.push_back(std::fabs(std::log(size)));
    if (list.empty()) return 0;
    std::sort(list.begin(), list.end());
    return list[list.size() / 2];
  }

  bool worth_emulating() const { return are_enough(cured_, wrong_before_); }

  bool accepted() {
    choose();
    const Model model = emulated(f_, paid_.reference.profile);
    threads::for_each_index(cells_.size(), [&](std::size_t i) { measure(model, cells_[i]); });
    pool();
    if (!size_fits() || drifts()) return false;
    if (wrong_ > 0 && is_alike()) return true;
    return shows_everywhere() && !hides_more();
  }

 private:
  /// An even choice that can be afforded.
  void choose() {
    double work = 0;
    for (const Cell& cell : cells_) work += keys(cell) * static_cast<double>(f_.head_dim + f_.v_head_dim) / 2;
    const double most = std::min(kMostWork / std::max(work, 1.0) * static_cast<double>(cells_.size()), double{kMostCells});
    const auto count = std::max<std::size_t>(1, static_cast<std::size_t>(most));
    if (cells_.size() <= count) return;
    std::vector<Cell> some;
    for (std::size_t i = 0; i < count; ++i) some.push_back(cells_[i * cells_.size() / count]);
    cells_ = std::move(some);
  }

  double keys(const Cell& cell) const {
    return static_cast<double>(paid_.reference.num_keys[Facts::at(cell.paid->reference_row)]);
  }

  void measure(const Model& model, Cell& cell) const {
    const RowHead at{cell.paid->token, cell.paid->head};
    const RowResult emulation = evaluate(model, std::span(&at, 1)).front();
    const DType stored_as = f_.batch.output.dtype;
    const numerics::OutputType type = numerics::output_type(stored_as);
    const std::vector<double> steeper = steeper_scores(at, cell.paid->reference_row);
    double noise = 0;
    std::int64_t off = 0;
    for (std::int64_t d = 0; d < f_.v_head_dim; ++d) {
      const double emulated_value = faults_detail::rounded(stored_as, emulation.out[Facts::at(d)]);
      const double out = paid_.reference.out[Facts::at(cell.paid->reference_row * f_.v_head_dim + d)];
      const std::int64_t e = cell.plain->reference_row * f_.v_head_dim + d;
      const double exact = plain_.reference.out[Facts::at(e)], observed = observed_.at(at.token, at.head, d);
      cell.add(observed, emulated_value, faults_detail::rounded(stored_as, exact));
      noise += (emulated_value - out) * (emulated_value - out);
      cell.on_output.add(observed - out, out);
      cell.on_scores.add(observed - out, steeper[Facts::at(d)]);
      const double tolerance = numerics::output_tolerance(plain_.reference, cell.plain->reference_row, e, type);
      off += numerics::judge(emulated_value, exact, tolerance, type.overflow) != numerics::ElementVerdict::fine ? 1 : 0;
    }
    cell.on_output.noise = cell.on_scores.noise = noise;
    cell.on_output.group = cell.on_scores.group = at.head / f_.group;
    cell.shows = off >= std::min(kShows, f_.v_head_dim);
  }

  /// Change of the output by a factor on the scores, per unit of the factor.
  std::vector<double> steeper_scores(const RowHead& at, std::int64_t reference_row) const {
    constexpr double kStep = 1e-3;
    Model model(f_);
    model.softmax_scale = [exact = model.softmax_scale](const Row& row) { return exact(row) * (1 + kStep); };
    std::vector<double> change = evaluate(model, std::span(&at, 1)).front().out;
    for (std::int64_t d = 0; d < f_.v_head_dim; ++d)
      change[Facts::at(d)] = (change[Facts::at(d)] - paid_.reference.out[Facts::at(reference_row * f_.v_head_dim + d)]) / kStep;
    return change;
  }

  /// Sizes of cells, ascending; neighbours in which the emulated kernel changes hardly an element are one.
  void pool() {
    Beyond sum;
    for (const Cell& cell : cells_) {
      sum += cell.beyond;
      if (sum.tells()) sizes_.push_back(std::exchange(sum, {}).size());
    }
    std::sort(sizes_.begin(), sizes_.end());
  }

  bool size_fits() const {
    if (sizes_.empty()) return false;
    const bool few = sizes_.size() < kManyCells;
    const double middle = sizes_[sizes_.size() / 2];
    if (middle < kLeastSize[few] || middle > kMostSize[few]) return false;
    return few || (sizes_[sizes_.size() / 10] >= kLeastTenth &&
                   sizes_[sizes_.size() * 3 / 4] <= kMostSpread * sizes_[sizes_.size() / 4]);
  }

  bool shows_everywhere() const {
    std::size_t expected = 0, seen = 0;
    for (const Cell& cell : cells_) {
      expected += cell.shows ? 1 : 0;
      seen += cell.shows && cell.plain->wrong ? 1 : 0;
    }
    if (expected < kEnough && wrong_ > 0) return false;
    const auto n = static_cast<double>(expected);
    return static_cast<double>(seen) >= kShareThatShows * n - kSlack * std::sqrt(kShareThatShows * (1 - kShareThatShows) * n);
  }

  bool is_alike() const {
    const auto alike = std::ranges::count_if(sizes_, [](double size) { return size >= kAlikeLeast && size <= kAlikeMost; });
    return sizes_.size() >= kAlikeCells && static_cast<double>(alike) >= kAlikeShare * static_cast<double>(sizes_.size());
  }

  /// A cell that is right only because the bound is far above what such a kernel does: an alarm is better than a fault unseen.
  bool hides_more() const {
    return std::any_of(cells_.begin(), cells_.end(),
                       [](const Cell& cell) { return cell.shows && cell.beyond.size() > kOutlier; });
  }

  /// Factors cut to TF32 lose as much as is cut off; no other rounding has a sign.
  bool drifts() const {
    std::vector<Projection> output, scores;
    for (const Cell& cell : cells_) {
      output.push_back(cell.on_output);
      scores.push_back(cell.on_scores);
    }
    const double lawful = paid_.reference.profile.tf32_products ? 2 * numerics::kTf32Roundoff : 0;
    return have_common_factor(output, lawful) || have_common_factor(scores, lawful);
  }

  const Facts& f_;
  const Observed& observed_;
  const Localisation& plain_;
  const Localisation& paid_;
  std::vector<Cell> cells_;
  std::vector<double> sizes_;
  std::int64_t wrong_before_ = 0, wrong_ = 0, cured_ = 0;
};

/// Whether rounding could explain the wrong cells. No profile widens a tolerance a thousandfold; if nearly all wrong cells are
/// further off, no profile is worth the time of its reference.
bool could_be_rounding(const Localisation& plain) {
  constexpr double kMostWidening = 1000;
  std::int64_t wrong = 0, near = 0;
  for (const Compared& cell : plain.rows) {
    wrong += cell.wrong ? 1 : 0;
    near += cell.wrong && cell.nonfinite == 0 && cell.worst_ratio < kMostWidening ? 1 : 0;
  }
  return are_enough(near, wrong);
}

}  // namespace

Result<std::optional<NumericsProfile>> find_profile(const Facts& facts, const Observed& observed, const Localisation& plain,
                                                    const std::vector<std::int64_t>& tokens) {
  if (!could_be_rounding(plain)) return std::optional<NumericsProfile>();
  std::optional<NumericsProfile> best;
  double least = 0;  // bound that a later, wider profile must fall below
  for (const NumericsProfile& profile : candidates(facts)) {
    const Result<Localisation> paid = compare_tokens(facts, observed, tokens, profile);
    if (!paid.ok()) return paid.status();
    Trial trial(facts, observed, plain, paid.value());
    if (!trial.worth_emulating() || !trial.accepted()) continue;
    // A wide profile can hide a fault that a tight one leaves standing: the better likeness decides.
    const bool right = trial.wrong() == 0;
    const double unlike = trial.unlikeness();
    if (best && unlike - (right ? kAllRight : 0) >= least) continue;
    best = profile;
    least = unlike - (right ? kClearlyLess : 0);
  }
  return best;
}

double least_factor(const Reference& expected) {
  const numerics::OutputType type = numerics::output_type(expected.output);
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t row = 0; row < expected.num_tokens * expected.num_q_heads; ++row) {
    const numerics::RowErrors errors = numerics::row_errors(expected, row);
    for (std::int64_t i = row * expected.v_head_dim; i < (row + 1) * expected.v_head_dim; ++i) {
      const double out = std::fabs(expected.out[static_cast<std::size_t>(i)]);
      if (out > 0) least = std::min(least, numerics::output_tolerance(expected, errors, i, type) / out);
    }
  }
  return least;
}

}  // namespace quire::diagnose_detail
