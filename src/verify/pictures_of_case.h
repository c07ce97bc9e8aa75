// SPDX-License-Identifier: Apache-2.0
// Pictures of a failing case for the report.
#pragma once

#include <string>

#include "verify/judge.h"

namespace quire::conformance {

/// Error maps, page map and who served which row, as JSON (report.md, "pictures"). Runs the target once more.
std::string pictures_of_failure(const Target& target, const Prepared& p);

}  // namespace quire::conformance
