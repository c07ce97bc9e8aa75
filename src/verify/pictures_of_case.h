// SPDX-License-Identifier: Apache-2.0
// Pictures of a failing case for the report.
#pragma once

#include "report/pictures.h"
#include "verify/judge.h"

namespace quire::conformance {

/// Error maps, page map and who served which row. Runs the target once more; null if it refuses then.
report::SharedPictures pictures_of_failure(const Target& target, const Prepared& p);

}  // namespace quire::conformance
