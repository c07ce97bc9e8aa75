// SPDX-License-Identifier: Apache-2.0
// attend_sparse() as a target.
#pragma once

#include <optional>
#include <string>

#include "quire/verify.hpp"

namespace quire::verify_detail {

/// "cpu_lists"; absent for other names.
std::optional<Result<Target>> list_target(const std::string& name, int num_threads);

}  // namespace quire::verify_detail
