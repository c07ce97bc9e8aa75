// SPDX-License-Identifier: Apache-2.0
// A numerics profile as Python writes it: words with commas between.
#pragma once

#include <optional>
#include <string>

#include "errors.hpp"
#include "quire/tools/diagnose.hpp"

namespace quire_python {

/// Raises ParseError for words that are none. Absent stays absent.
inline std::optional<quire::NumericsProfile> profile_from(const std::optional<std::string>& words) {
  if (!words) return std::nullopt;
  return unwrap(quire::parse_profile(*words));
}

}  // namespace quire_python
