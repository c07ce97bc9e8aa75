// SPDX-License-Identifier: Apache-2.0
// Outcome of `quire run`, and the verdict on it. Header-only, so that a test can plant each fault that the library never commits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "quire/attention.hpp"
#include "quire/plan.hpp"
#include "quire/tools/diagnose.hpp"

namespace quire::cli {

/// Outcome of a run: everything that the report prints.
struct Outcome {
  Problem problem;
  Plan plan;
  std::vector<RowCount> rows;
  std::int64_t rows_expected = 0;
  std::vector<double> times_ms;
  bool same_bits = true;
  std::optional<Comparison> ours;
  std::optional<Comparison> observed;

  std::int64_t rows_written() const {
    std::int64_t total = 0;
    for (const RowCount& r : rows) total += r.rows;
    return total;
  }
  bool ok() const { return rows_written() == rows_expected && same_bits && (!ours || ours->ok) && (!observed || observed->ok); }
};

}  // namespace quire::cli
