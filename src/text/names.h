// SPDX-License-Identifier: Apache-2.0
// Names of enumerators: one table each, in the order of the enumerators, which count from 0.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace quire {

/// The name of a value; `unknown` for a number beyond the table, which a hostile descriptor may hold.
template <std::size_t kCount, typename Enum>
constexpr std::string_view name_in(const std::string_view (&names)[kCount], Enum value, std::string_view unknown = {}) noexcept {
  const auto i = static_cast<std::size_t>(value);
  return i < kCount ? names[i] : unknown;
}

/// The value of a name; nullopt if no value has this name.
template <typename Enum, std::size_t kCount>
constexpr std::optional<Enum> value_in(const std::string_view (&names)[kCount], std::string_view name) noexcept {
  for (std::size_t i = 0; i < kCount; ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  return std::nullopt;
}

}  // namespace quire
