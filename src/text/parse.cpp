// SPDX-License-Identifier: Apache-2.0
// Strict numbers, quoting and nearest names for the text that people and files hand to Quire.
#include "text/parse.h"

#include <algorithm>
#include <charconv>

#include "text/edit_distance.h"
#include "text/formatted.h"

namespace quire::text {
namespace {

template <typename T>
std::optional<T> parse_whole(std::string_view text) noexcept {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr std::size_t kMaxShown = 60;  // characters of a quoted text
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F || c == '"' || c == '\\') {
      out += formatted("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMaxShown ? "...\"" : "\"");
}

std::optional<std::int64_t> parse_int(std::string_view text) noexcept { return parse_whole<std::int64_t>(text); }
std::optional<std::uint64_t> parse_uint(std::string_view text) noexcept { return parse_whole<std::uint64_t>(text); }
std::optional<float> parse_float(std::string_view text) noexcept { return parse_whole<float>(text); }

std::string float_text(float value) { return formatted("{}", value); }

std::string_view nearest(std::string_view text, std::span<const std::string_view> candidates) {
  constexpr std::size_t kLongestCompared = 64;  // characters; longer texts are no slips of a word
  if (text.empty() || text.size() > kLongestCompared) return {};
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(1, std::min<std::size_t>(2, text.size() / 2)) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(text, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace quire::text
