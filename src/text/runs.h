// SPDX-License-Identifier: Apache-2.0
// Lists of numbers in few characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace quire {

/// "5-8, 11, 20-31" from ascending numbers; at most `most` runs.
std::string runs(const std::vector<std::int64_t>& numbers, std::size_t most = 6);

/// "all 64 heads", "3 of 64 heads (1, 5-6)".
std::string heads_text(const std::vector<bool>& heads);

}  // namespace quire
