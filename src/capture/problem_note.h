// SPDX-License-Identifier: Apache-2.0
// A capture's problem line, compared with its tensors.
#pragma once

#include "quire/tools/capture.hpp"

namespace quire::capture {

/// New name of a note "problem" that does not describe the tensors of its file.
inline constexpr const char* kOtherProblem = "other_problem";

/// Makes a note "problem" that describes these tensors canonical: one line, whatever the file holds. Any other is renamed. A
/// batch that breaks the contract has no problem line to compare with, and its note stays.
void settle_problem_note(Case& c);

}  // namespace quire::capture
