// SPDX-License-Identifier: Apache-2.0
// Compares, by value, a row of A that is nowhere in B with the row of B that has its place: zeros, NaN, the same numbers scaled,
// rounded otherwise or in another order of dims, or something else.
#pragma once

#include <span>

#include "quire/tensor.hpp"

namespace quire::caches {

enum class InPlace { unlike, zeros, nan, scaled, rounded, rotated, reversed, interleaved, halved, permuted };

struct Found {
  InPlace what = InPlace::unlike;
  double factor = 1;    ///< factor of `scaled`: B = factor * A
  std::int64_t by = 0;  ///< shift of `rotated`: dim d of A is dim d + by of B
};

/// The largest relative error, in the mean over a row, that two right roundings to these types can bring between equal numbers.
double rounding_of(DType a, DType b) noexcept;

/// Says how the values of B's row differ from those of A's row. `rounding` is rounding_of() their types.
Found in_place(std::span<const double> a, std::span<const double> b, double rounding);

}  // namespace quire::caches
