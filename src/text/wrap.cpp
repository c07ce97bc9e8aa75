// SPDX-License-Identifier: Apache-2.0
// See wrap.h.
#include "text/wrap.h"

#include <algorithm>

namespace quire {
namespace {

/// Characters, not bytes, of UTF-8 text.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::vector<std::string> lines_of(std::string_view text, std::size_t columns) {
  if (columns == 0 || width(text) <= columns) return {std::string(text)};
  std::vector<std::string> lines;
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t space = text.find(' ', at + 1), end = space == text.npos ? text.size() : space;
    const std::string_view word = text.substr(at, end - at);  // the word has the space before it
    if (!line.empty() && width(line) + width(word) > columns) {
      lines.push_back(std::move(line));
      line = word.substr(word.find_first_not_of(' ') == word.npos ? word.size() : word.find_first_not_of(' '));
    } else {
      line += word;
    }
    at = end;
  }
  lines.push_back(std::move(line));
  return lines;
}

std::string wrapped(std::string_view report, std::size_t columns, std::size_t indent) {
  std::string text;
  for (std::size_t at = 0; at < report.size();) {
    const std::size_t end = std::min(report.find('\n', at), report.size());
    const std::string_view line = report.substr(at, end - at);
    const std::size_t own = std::min(indent, line.size());
    bool first = true;
    for (const std::string& part : lines_of(line.substr(own), columns > indent ? columns - indent : 0)) {
      text += first ? std::string(line.substr(0, own)) : std::string(indent, ' ');
      text += part + '\n';
      first = false;
    }
    at = end + 1;
  }
  return text;
}

}  // namespace quire
