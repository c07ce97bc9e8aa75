// SPDX-License-Identifier: Apache-2.0
// Planted faults as targets: the catalogue of faults(), and the mistakes of a caller that no changed formula can express (bits
// that vary, bytes beyond the output, a promise that is not kept).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "quire/tools/verify.hpp"
#include "verify/prepare.h"

namespace quire::verify_detail {

struct Mutant {
  std::string id, family, text;
  Target target;
  std::string check;  ///< mutant of the call: the check that exists to notice it; empty for the catalogue
  /// Mutant of the call: returns whether it makes a difference on a case. Null for the catalogue, whose outputs tell.
  std::function<bool(const Prepared&)> can_show = {};
  /// Whether the mutant errs on views alone (check strided_inputs). `can_show` then says whether the case has the input.
  bool of_views = false;
};

/// Mutants for every entry of faults().
std::vector<Mutant> catalogue_mutants();

/// Mutants of the call: the fp64 reference, rounded once, called with one mistake. Each mutant breaks one promise of Target.
std::vector<Mutant> call_mutants();

/// Mutants of views: the fp64 reference, rounded once, which reads one input as if it were contiguous. There is one for each
/// input that a call reads, and one that reads K by the strides of V.
std::vector<Mutant> view_mutants();

/// Target without a mistake, the fp64 reference rounded once: no check may fail.
Target right_target();

}  // namespace quire::verify_detail
