// SPDX-License-Identifier: Apache-2.0
// Is what was timed also right? The output of the last timed call against the fp64 reference.
#pragma once

#include <vector>

#include "quire/capture.hpp"
#include "quire/diagnose.hpp"

namespace quire::bench_detail {

/// The reference for all rows of a case, or for a stratified sample of them where all would take long; computed once for all
/// variants.
class Expected {
 public:
  static Result<Expected> make(const Case& c, const Problem& problem, std::uint64_t seed);

  /// Compares what lies in `output` (and `lse`, if present) within the derived tolerance; `rounded`: for every query row whether
  /// its softmax weights may have been rounded to the output's type (rounds_weights()), or empty: none.
  Comparison judge(const Tensor& output, const Tensor& lse, const std::vector<bool>& rounded = {}) const;
  std::int64_t rows() const { return reference_.num_tokens; }

 private:
  Expected() = default;

  DType query_ = DType::none;
  std::vector<std::int64_t> tokens_;  ///< empty: all
  Reference reference_;
};

}  // namespace quire::bench_detail
