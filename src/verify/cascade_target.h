// SPDX-License-Identifier: Apache-2.0
// attend_cascade() as a target.
#pragma once

#include <optional>
#include <string>

#include "quire/verify.hpp"

namespace quire::verify_detail {

/// "cpu_cascade", "cuda_cascade" or "hip_cascade"; absent for other names.
std::optional<Result<Target>> cascade_target(const std::string& name, int num_threads);

}  // namespace quire::verify_detail
