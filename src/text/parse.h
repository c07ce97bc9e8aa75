// SPDX-License-Identifier: Apache-2.0
// Text that people and files hand to Quire: strict numbers, quoting for messages, nearest names.
//
// Every function is total: no input makes it throw, and nothing is accepted that is only partly a number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace quire::text {

/// `text` in double quotes for an error message: unprintable bytes as \xNN, cut after 60 characters.
std::string quote(std::string_view text);

/// The whole text as a decimal integer; nullopt for anything else, overflow and a leading '+' included.
std::optional<std::int64_t> parse_int(std::string_view text) noexcept;
std::optional<std::uint64_t> parse_uint(std::string_view text) noexcept;
/// The whole text as a float (`nan` and `inf` included); nullopt for anything else or a magnitude outside float's range.
std::optional<float> parse_float(std::string_view text) noexcept;
/// Shortest text that parse_float() turns back into the same value.
std::string float_text(float value);

/// The candidate with the smallest edit distance to `text`; empty if none is close enough to be a likely slip.
std::string_view nearest(std::string_view text, std::span<const std::string_view> candidates);

}  // namespace quire::text
