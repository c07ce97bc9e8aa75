// SPDX-License-Identifier: Apache-2.0
// Shrinking: from a failing problem line to the smallest one that still fails.
#pragma once

#include <functional>

#include "quire/problem.hpp"

namespace quire::conformance {

struct ShrinkLimits {
  int tries = 300;
  double seconds = 15;
};

/// Greedy: tries reductions from the largest (half of the requests) to the smallest (one token less, a plainer type), keeps each
/// that still fails, and starts over until none does or a limit is reached. Every reduction is a legal line and simpler than the
/// one before, so the result is too; it fails, since `fails` was true of it. `line` itself must fail.
ProblemLine shrink(const ProblemLine& line, const std::function<bool(const ProblemLine&)>& fails,
                   const ShrinkLimits& limits = {});

}  // namespace quire::conformance
