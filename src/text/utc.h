// SPDX-License-Identifier: Apache-2.0
// The time of now as text.
#pragma once

#include <ctime>
#include <string>

namespace quire {

/// UTC, by a pattern of strftime() that gives at most 31 characters: utc_now("%Y-%m-%d").
inline std::string utc_now(const char* pattern) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof(text), pattern, &utc)};
}

}  // namespace quire
