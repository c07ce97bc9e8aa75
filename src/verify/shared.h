// SPDX-License-Identifier: Apache-2.0
// What failing cases have in common, and no passing case has: the first sentence of a verdict.
#pragma once

#include <string>
#include <vector>

#include "quire/tools/verify.hpp"

namespace quire::verify_detail {

/// "all 168 failing cases have k_scale or v_scale; ...", or empty if there is no such sentence.
std::string what_failures_share(const std::vector<CaseResult>& cases);

}  // namespace quire::verify_detail
