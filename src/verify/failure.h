// SPDX-License-Identifier: Apache-2.0
// A failing case becomes the smallest problem line on which the same check of the same target fails, and pictures.
#pragma once

#include <functional>
#include <string>

#include "quire/tools/verify.hpp"
#include "report/pictures.h"
#include "verify/matrix.h"
#include "verify/prepare.h"

namespace quire::verify_detail {

struct Smallest {
  std::string line;     ///< empty where the finding is not reproduced by the line alone
  std::string finding;  ///< "values: 3 of 12 elements are wrong ..."
};

/// Limits of what a target may be asked.
struct Limits {
  AskedTypes asked;   ///< smaller lines keep to it if the failing line does
  Supports supports;  ///< null: every line is
};

/// `check` failed on a case of `line` without special data. Lines outside the limits are not tried. About `seconds` are spent.
Smallest smallest_that_fails(const Target& target, const ProblemLine& line, const std::string& check, const Limits& limits,
                             double seconds);

/// Error maps, page map and who served which row. Runs the target once more; null if it refuses then.
report::SharedPictures pictures_of_failure(const Target& target, const Prepared& p);

struct ShrinkLimits {
  int tries = 300;
  double seconds = 15;
};

/// Greedy: tries reductions from the largest (half of the requests) to the smallest (one token less, a plainer type), keeps each
/// that still fails, and starts over until none does or a limit is reached. Every reduction is a legal line and simpler than the
/// one before, so the result is too; it fails, since `fails` was true of it. `line` itself must fail.
ProblemLine shrink(const ProblemLine& line, const std::function<bool(const ProblemLine&)>& fails,
                   const ShrinkLimits& limits = {});

}  // namespace quire::verify_detail
