// SPDX-License-Identifier: Apache-2.0
// See entries.h. A line that was cut ends with " ...".
#include "report/text/entries.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "text/formatted.h"
#include "text/wrap.h"

namespace quire::report {
namespace {

constexpr std::size_t kMostLines = 10;  // the command adds two: the reduced capture, and where more is said

/// Cuts a text to its first lines.
void cut(Entry& entry, std::size_t lines, std::size_t columns) {
  constexpr std::string_view kCut = " ...";
  if (entry.lines.size() <= lines) return;
  entry.lines.resize(lines);
  std::string& last = entry.lines.back();
  while (last.size() + kCut.size() > columns && last.rfind(' ') != last.npos) last.resize(last.rfind(' '));
  last += kCut;
}

}  // namespace

std::string fitted(std::vector<Entry> entries, std::size_t columns) {
  const std::size_t room = columns > kLabel ? columns - kLabel : 0;
  for (Entry& entry : entries) {
    entry.lines = lines_of(entry.text, room);
    cut(entry, entry.most, room);
  }
  const auto total = [&] {
    return std::accumulate(entries.begin(), entries.end(), std::size_t{0},
                           [](std::size_t sum, const Entry& entry) { return sum + entry.lines.size(); });
  };
  // The cause keeps its lines longest; what says the same in other words gives way first.
  const auto spare = [](const Entry& entry) {
    const std::size_t first = entry.label == "as good" || entry.label == "fact" ? 1 : 0;
    return 2 * entry.lines.size() + first - (entry.label == "cause" ? 2 : 0);
  };
  while (total() > kMostLines) {
    const auto longest =
        std::ranges::max_element(entries, {}, [&](const Entry& entry) { return entry.lines.size() > 1 ? spare(entry) : 0; });
    if (longest->lines.size() > 1) {
      cut(*longest, longest->lines.size() - 1, room);
    } else {
      entries.pop_back();
    }
  }
  std::string text, before;
  for (const Entry& entry : entries)
    for (std::size_t i = 0; i < entry.lines.size(); ++i) {
      text += formatted("{:<{}}{}\n", i > 0 || entry.label == before ? "" : entry.label, kLabel, entry.lines[i]);
      before = entry.label;
    }
  return text;
}

}  // namespace quire::report
