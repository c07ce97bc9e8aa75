// The rows on which hypotheses are tested: some wrong ones, which a cause must explain, and some right ones, which it must not
// break.
#pragma once

#include <string>
#include <vector>

#include "diagnose/localise.h"
#include "faults/fault.h"

namespace quire::cause {

/// One (row, head) with what was observed and how wrong that is.
struct Exhibit {
  fault::RowHead at;
  std::int64_t reference_row = 0;
  bool wrong = false;
  bool unlawful = false;  ///< breaks a law: it cannot be an attention output of this cache
  std::vector<double> observed;
  double observed_lse = 0;
  double error = 0;  ///< distance(truth), > 0 if wrong
};

/// How well a prediction fits.
struct Fit {
  double explained = -1;    ///< mean over wrong exhibits of 1 - error left / error, minus what it breaks in right ones
  double largest_move = 0;  ///< max |prediction - reference| over wrong exhibits; infinite if it predicts NaN or infinity
  double largest_left = 0;  ///< max |observed - prediction| over wrong exhibits
  std::int64_t broken = 0;  ///< right exhibits that it would make wrong
};

class Evidence {
 public:
  Evidence(const fault::Facts& facts, const Observed& observed, const Localisation& where);

  /// A few wrong exhibits for faults that search for their parameters.
  std::vector<fault::Sample> samples() const;
  /// Largest finite |observed - expected| over the wrong exhibits.
  double largest_error() const { return largest_error_; }
  double largest_tolerance() const { return largest_tolerance_; }
  /// "1.69", "NaN", "3.1 in lse": what has to be explained, in a few characters.
  std::string observed_text() const;

  /// On the first `count` wrong and right exhibits each. Right ones are left out if it explains nothing.
  Fit fit(const fault::Model& model, std::size_t count) const;

 private:
  void choose();
  void fit_wrong(const Exhibit& e, const fault::RowResult& predicted, Fit& fit) const;
  double output_tolerance(const Exhibit& e, std::size_t dim, double predicted) const;
  double distance(const Exhibit& e, const fault::RowResult& predicted) const;
  fault::RowResult truth(const Exhibit& e) const;
  Exhibit exhibit(const Compared& row) const;

  const fault::Facts& facts_;
  const Observed& observed_;
  const Localisation& where_;
  std::vector<Exhibit> wrong_, right_;
  double output_cap_ = 1, lse_cap_ = 1;  ///< errors count up to these: the largest finite ones seen
  double largest_error_ = 0, largest_lse_error_ = 0, largest_tolerance_ = 0;
  bool nonfinite_ = false;
};

}  // namespace quire::cause
