// SPDX-License-Identifier: Apache-2.0
// A comparison of caches as text, which is wrapped at a width, and as JSON.
#include <nlohmann/json.hpp>

#include "quire/tools/compare_caches.hpp"
#include "text/formatted.h"
#include "text/runs.h"

namespace quire {
namespace {

constexpr std::size_t kMostParts = 24;
constexpr std::size_t kIndent = 9;  ///< width of the words in front: "differ   "

/// `word` in a column of its own, and the text beside it, wrapped.
void add_wrapped(std::string& out, std::string_view word, const std::string& text, std::size_t columns) {
  std::string line = formatted("{:<{}}", word, kIndent);
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    if (line.size() > kIndent && line.back() != ' ' && line.size() + 1 + end - begin > columns) {
      out += line + "\n";
      line = std::string(kIndent, ' ');
    }
    if (line.size() > kIndent) line += ' ';
    line += text.substr(begin, end - begin);
    begin = end + 1;
  }
  out += line + "\n";
}

/// "requests 0-3, heads 2-3, K, positions 16-31"; what is all of A is left out.
std::string title_of(const CachePart& part, std::int64_t first_head, std::int64_t last_head) {
  std::string title = formatted("{} {}", part.requests.size() == 1 ? "request" : "requests", runs(part.requests));
  if (part.first_head != first_head || part.last_head != last_head)
    title += part.first_head == part.last_head ? formatted(", head {}", part.first_head)
                                               : formatted(", heads {}-{}", part.first_head, part.last_head);
  if (part.k != part.v) title += part.k ? ", K" : ", V";
  if (part.first == 0 && part.last < 0) return title;
  if (part.first == part.last) return title + formatted(", position {}", part.first);
  return title +
         (part.last < 0 ? formatted(", positions {} on", part.first) : formatted(", positions {}-{}", part.first, part.last));
}

}  // namespace

std::string to_string(const CacheComparison& c, std::size_t columns) {
  std::string out;
  add_wrapped(out, "A", c.a, columns);
  add_wrapped(out, "B", c.b, columns);
  if (c.same && c.summary.empty()) add_wrapped(out, "same", formatted("all {} rows are identical", c.rows), columns);
  std::int64_t first = 0, last = 0;
  for (const CachePart& part : c.parts) {
    if (&part == &c.parts.front()) first = part.first_head, last = part.last_head;
    first = std::min(first, part.first_head), last = std::max(last, part.last_head);
  }
  for (std::size_t i = 0; i < c.summary.size(); ++i) add_wrapped(out, i == 0 ? "differ" : "", c.summary[i], columns);
  if (c.same) return out;
  const std::size_t listed = std::min(c.parts.size(), kMostParts);
  for (std::size_t i = 0; i < listed; ++i)
    add_wrapped(out, i == 0 ? "parts" : "", title_of(c.parts[i], first, last) + ": " + c.parts[i].text, columns);
  if (c.parts.size() > listed) add_wrapped(out, "", formatted("and {} more", c.parts.size() - listed), columns);
  return out;
}

std::string to_json(const CacheComparison& c) {
  nlohmann::ordered_json counts, parts = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < c.counts.size(); ++i) counts[std::string(name(static_cast<RowFate>(i)))] = c.counts[i];
  for (const CachePart& p : c.parts)
    parts.push_back({{"requests", p.requests},
                     {"heads", {p.first_head, p.last_head}},
                     {"k", p.k},
                     {"v", p.v},
                     {"first", p.first},
                     {"last", p.last},
                     {"fate", name(p.fate)},
                     {"text", p.text},
                     {"rows", p.rows}});
  return nlohmann::ordered_json{{"same", c.same},       {"a", c.a},      {"b", c.b}, {"rows", c.rows}, {"counts", counts},
                                {"summary", c.summary}, {"parts", parts}}
      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace quire
