// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...?": the nearest known name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

/// "did you mean 'explain'?" for the nearest of `known`, or "" if none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

/// Hints for a device, kernel or rule name that does not exist.
std::vector<std::string> device_names();
std::vector<std::string> kernel_names();
std::vector<std::string> rule_ids();

}  // namespace quire::cli
