// SPDX-License-Identifier: Apache-2.0
// Finds what became of every row of A: by digest among the rows of B, then by value in the row's own place.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "caches/label.h"
#include "caches/reorder.h"
#include "caches/view.h"

namespace quire::caches {

/// All rows of A, as segments by request, head and side.
struct Trace {
  std::vector<std::vector<std::array<std::vector<Segment>, 2>>> segments;  ///< [request][head][0 K, 1 V]
  std::array<std::int64_t, 7> counts{};                                    ///< rows by RowFate
  std::array<bool, 2> was_rounded{};                                       ///< K, V: compared in B's type
  std::optional<Reorder> reorder;
};

Result<Trace> trace(const View& a, const View& b);

}  // namespace quire::caches
