// SPDX-License-Identifier: Apache-2.0
// See runs.h.
#include "text/runs.h"

#include "text/formatted.h"

namespace quire {

std::string runs(const std::vector<std::int64_t>& numbers, std::size_t most) {
  std::string text;
  std::size_t count = 0;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (count++ == most) return text + ", ...";
    text += text.empty() ? "" : ", ";
    text += end - i == 1 ? formatted("{}", numbers[i]) : formatted("{}-{}", numbers[i], numbers[end - 1]);
    i = end;
  }
  return text;
}

std::string heads_text(const std::vector<bool>& heads) {
  std::vector<std::int64_t> list;
  for (std::size_t h = 0; h < heads.size(); ++h)
    if (heads[h]) list.push_back(static_cast<std::int64_t>(h));
  if (list.size() == heads.size()) return formatted("all {} heads", heads.size());
  return formatted("{} of {} heads ({})", list.size(), heads.size(), runs(list));
}

}  // namespace quire
