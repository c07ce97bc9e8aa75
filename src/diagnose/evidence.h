// SPDX-License-Identifier: Apache-2.0
// The cells on which hypotheses are tested: some wrong ones, which a cause must explain, and some right ones, which it must not
// break. Right cells inside the scope of a pattern are kept apart from those outside, so that one evaluation judges a hypothesis
// with and without it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "diagnose/fault_model.h"
#include "diagnose/localise.h"
#include "diagnose/observed.h"
#include "diagnose/pattern.h"

namespace quire::diagnose_detail {

/// A (row, head) with its observed values and their error.
struct Exhibit {
  RowHead at;
  std::int64_t reference_row = 0;
  std::int64_t num_keys = 0;
  bool wrong = false;
  bool zeros = false;         ///< holds 0 in every dim, like a row without a visible key or a cleared buffer
  bool in_wrong_row = false;  ///< another head of its row is wrong
  bool unlawful = false;      ///< breaks a law, in nearly all dims: it cannot be an attention output of this cache
  Before before = Before::unknown;
  std::vector<double> observed;
  double observed_lse = 0;
  double error = 0;  ///< distance(truth), > 0 if wrong
};

/// Measures of how well a prediction fits.
struct Fit {
  double explained = 0;      ///< mean over wrong exhibits of 1 - error left / error
  double damage = 0;         ///< mean over all right exhibits of the error that the prediction would bring
  double damage_inside = 0;  ///< damage over the right exhibits inside the scope
  double largest_move = 0;   ///< max |prediction - reference| over wrong exhibits; infinite if it predicts NaN or infinity
  double largest_left = 0;   ///< max |observed - prediction| over wrong exhibits
  std::int64_t wrong = 0;    ///< wrong exhibits looked at
  std::int64_t whole = 0;    ///< wrong exhibits whose every dim (and lse) is within the tolerance of the prediction
  std::int64_t broken = 0, broken_inside = 0;  ///< right exhibits that it would make wrong
  std::int64_t right_inside = 0;               ///< right exhibits inside the scope
  std::int64_t broken_beside = 0;              ///< right exhibits that it would make wrong in rows that have a wrong cell
  double clarity = 0;                          ///< sum of squared errors over sum of squared residuals, both in tolerances
  /// Exhibits among `whole` with finite wrong numbers, or whose bytes prove that they were not written. Zeros prove nothing.
  std::int64_t finite = 0;
  std::int64_t zeros = 0;  ///< wrong exhibits that hold 0 in every dim
  /// Wrong exhibits that hold a number other than 0 where it is wrong, or whose wrong lse is a number that is predicted. Zeros
  /// and NaN are what many causes give.
  std::int64_t numbers = 0;
  std::int64_t kept = 0;   ///< wrong exhibits that hold the numbers that the buffer held before the call
  std::int64_t right = 0;  ///< right exhibits looked at
  bool some_dims = false;  ///< is explained better if it holds for the dims of the scope only
  bool unwritten = false;  ///< it says "never written" of some wrong row
  bool unproven = false;   ///< it says "never written" of a row that may hold anything
  bool by_nan = false;     ///< it says "never written" of a row of NaN, which a kernel may compute
};

/// Rounds of the contest, each with more exhibits than the one before.
enum class Stage : int { screening, ranking, verification };

class Evidence {
 public:
  /// `scope` must outlive the evidence; with a null scope every wrong cell is an exhibit. Cells that another, smaller pattern
  /// also selects are no exhibits, because the cause of that pattern may explain them.
  /// Conditions of patterns are about the requests of `names` (describe.h), if that is given.
  Evidence(const Facts& facts, const Observed& observed, const Localisation& where, const Pattern* scope = nullptr,
           const std::vector<Pattern>& patterns = {}, const Facts* names = nullptr);

  /// A few wrong exhibits for faults that search for their parameters.
  std::vector<Sample> samples() const;
  /// Wrong compared cells inside the scope.
  const std::vector<const Compared*>& wrong_cells() const { return wrong_cells_; }
  /// Wrong exhibits, those with few keys first.
  const std::vector<Exhibit>& wrong() const { return wrong_; }
  /// Largest finite |observed - expected| over the wrong exhibits.
  double largest_error() const { return largest_error_; }
  double largest_tolerance() const { return largest_tolerance_; }
  /// "1.69", "NaN", "3.1 in lse": what has to be explained, in a few characters.
  std::string observed_text() const;

  /// Right exhibits are left out if it explains nothing.
  Fit fit(const Model& model, Stage stage) const;

 private:
  struct Tally;

  void choose(const std::vector<Pattern>& patterns);
  void measure();
  Fit fit_dims(const Model& model, Stage stage, bool some_dims) const;
  void keep_other_dims(const Exhibit& e, RowResult& predicted) const;
  void fit_wrong(const Exhibit& e, RowResult predicted, bool some_dims, Tally& tally) const;
  void fit_unwritten(const Exhibit& e, bool some_dims, Tally& tally) const;
  double damage(const std::vector<Exhibit>& right, std::size_t count, const Model& model, bool own_lse, Fit& fit) const;
  double output_tolerance(const Exhibit& e, std::size_t dim, double predicted) const;
  double distance(const Exhibit& e, const RowResult& predicted) const;
  double output_distance(const Exhibit& e, const RowResult& predicted) const;
  double lse_distance(const Exhibit& e, double predicted) const;
  RowResult truth(const Exhibit& e) const;
  Exhibit exhibit(const Compared& row) const;

  const Facts& facts_;
  const Facts& names_;
  const Observed& observed_;
  const Localisation& where_;
  const Pattern* scope_;
  std::vector<const Compared*> wrong_cells_;
  std::set<std::int64_t> wrong_tokens_;
  std::vector<Exhibit> wrong_, inside_, outside_;
  std::vector<bool> dims_;               ///< dims of the scope; empty: all dims
  double output_cap_ = 1, lse_cap_ = 1;  ///< errors count up to these: the largest finite ones seen
  double typical_ = 1;                   ///< mean error of a wrong exhibit
  double largest_error_ = 0, largest_lse_error_ = 0, largest_tolerance_ = 0;
  bool nonfinite_ = false;
};

}  // namespace quire::diagnose_detail
