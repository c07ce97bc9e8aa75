// SPDX-License-Identifier: Apache-2.0
// Text from a pattern and values, for messages and reports of every stage.
//
// Guarantee: formatted(...) == fmt::format(...), pattern checked when compiling. fmt's formatter is instantiated in formatted.cpp
// alone; header-only fmt in every file that prints something was most of the time that the library took to compile.
#pragma once

#include <fmt/format.h>

#include <string>

namespace quire {

std::string formatted_from(fmt::string_view pattern, fmt::format_args values);

template <typename... T>
std::string formatted(fmt::format_string<T...> pattern, T&&... values) {
  return formatted_from(pattern, fmt::make_format_args(values...));
}

}  // namespace quire
