// SPDX-License-Identifier: Apache-2.0
// What stands in the place of a row that is nowhere in B: zeros, NaN, the same numbers scaled, rounded otherwise or in another
// order of dims, or something else.
#pragma once

#include <span>

#include "quire/tensor.hpp"

namespace quire::caches {

enum class InPlace { unlike, zeros, nan, scaled, rounded, rotated, reversed, interleaved, halved, permuted };

struct Found {
  InPlace what = InPlace::unlike;
  double factor = 1;    ///< scaled
  std::int64_t by = 0;  ///< rotated: dim d of A is dim d + by of B
};

/// The largest relative error, in the mean over a row, that two right roundings to these types can bring between equal numbers.
double rounding_of(DType a, DType b) noexcept;

/// Real values of A's row, and of the row that B has there.
Found in_place(std::span<const double> a, std::span<const double> b, double rounding);

}  // namespace quire::caches
