// SPDX-License-Identifier: Apache-2.0
// Small text helpers shared by the problem line and the capture file: strict numbers, quoting for messages, nearest names.
//
// Everything here is total: no input makes it throw, and nothing is accepted that is only partly a number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/capture.hpp"

namespace quire::capture {

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

/// New name of a note "problem" that does not describe the tensors of its file.
inline constexpr const char* kOtherProblem = "other_problem";

/// Makes a note "problem" that describes these tensors canonical: one line, whatever the file holds. Any other is renamed. A
/// batch that breaks the contract has no problem line to compare with, and its note stays.
void settle_problem_note(Case& c);

}  // namespace quire::capture
