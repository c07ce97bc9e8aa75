// SPDX-License-Identifier: Apache-2.0
// The comparison that judges an output by the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/tensor.hpp"
#include "quire/tools/reference.hpp"

namespace quire {

/// A place where an output is wrong.
struct Mismatch {
  std::int64_t token = 0, head = 0, dim = 0;  ///< dim -1: the lse of (token, head)
  double observed = 0, expected = 0, tolerance = 0;
};

/// NaN and infinity positions are compared first; then |observed - expected| <= tolerance element by element, where the
/// tolerance is derived in numerics.md from unit roundoff, sum p|v| and the score magnitude.
struct Comparison {
  bool ok = false;
  std::int64_t num_elements = 0;
  std::int64_t num_mismatches = 0;  ///< elements over tolerance, NaN/inf mismatches included
  std::int64_t num_nonfinite_mismatches = 0;
  double worst_ratio = 0;  ///< max of |error| / tolerance over finite elements
  Mismatch worst;
  std::vector<Mismatch> first;  ///< first mismatches in index order, at most 16
  std::string text;             ///< paragraph for people
};
/// `output` like Batch::output. `lse` may be absent.
Comparison compare(const Tensor& output, const Tensor& lse, const Reference& expected);
/// Compares lse alone, which must be present.
Comparison compare_lse(const Tensor& lse, const Reference& expected);

}  // namespace quire
