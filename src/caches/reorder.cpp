// SPDX-License-Identifier: Apache-2.0
// See reorder.h.
#include "caches/reorder.h"

#include <algorithm>

#include "text/formatted.h"

namespace quire::caches {
namespace {

constexpr std::int64_t kMostParts = 16;  ///< ranks that heads may come from; more give sources that nobody has

std::string range(std::int64_t first, std::int64_t count) {
  return count == 1 ? formatted("{}", first) : formatted("{}-{}", first, first + count - 1);
}

bool declared_by_token(const View& view) { return view.cache().layout == CacheLayout::nhd; }

}  // namespace

std::optional<Place> Reorder::of(const Place& place, std::int64_t page_size_of_a) const noexcept {
  const std::int64_t page = place.position / page_size_of_a, token = place.position % page_size_of_a;
  const std::int64_t row = source.at(token, first_head + place.head) - first;
  if (row < 0 || row >= target.tokens * target.heads) return std::nullopt;
  return Place{place.is_k, place.request, target.head(row), page * target.tokens + target.token(row)};
}

std::string Reorder::text() const {
  const std::int64_t rows = std::min(target.tokens * target.heads, source.tokens * source.heads - first);
  const bool whole = rows == source.tokens * source.heads;
  std::string from;
  if (source.by_token && first % source.heads == 0 && rows % source.heads == 0)
    from = formatted("tokens {} of {} heads", range(first / source.heads, rows / source.heads), source.heads);
  else if (!source.by_token && first % source.tokens == 0 && rows % source.tokens == 0)
    from = formatted("heads {} of {} tokens", range(first / source.tokens, rows / source.tokens), source.tokens);
  else
    from = formatted("rows {} of {} by {}", range(first, rows), source.tokens, source.heads);
  const std::string to = target.by_token ? formatted("{} tokens of {}", target.tokens, target.heads)
                                         : formatted("{} heads of {} tokens", target.heads, target.tokens);
  if (source.by_token != target.by_token && whole)
    return formatted("{} read as {} in each page ({} as {})", source.by_token ? "nhd" : "hnd", target.by_token ? "nhd" : "hnd",
                     from, to);
  return formatted("in each page, {} read as {}", from, to);
}

std::vector<Reorder> reorders(const View& a, const View& b) {
  std::vector<Reorder> all;
  const std::int64_t in_b = b.page_size() * b.heads();
  for (std::int64_t ranks = 1; ranks <= kMostParts; ranks *= 2)
    for (const bool target_by_token : {declared_by_token(b), !declared_by_token(b)})
      for (const bool source_by_token : {declared_by_token(a), !declared_by_token(a)}) {
        const PageOrder source{source_by_token, a.page_size(), a.heads() * ranks},
            target{target_by_token, b.page_size(), b.heads()};
        const bool same = source_by_token == target_by_token;
        if (same && (source_by_token ? source.heads == target.heads : source.tokens == target.tokens)) continue;
        const std::int64_t in_source = source.tokens * source.heads, parts = std::max<std::int64_t>(1, in_source / in_b);
        if (parts > kMostParts) continue;
        for (std::int64_t part = 0; part < parts; ++part)
          for (std::int64_t rank = 0; rank < ranks; ++rank) all.push_back({source, target, part * in_b, rank * a.heads()});
      }
  return all;
}

}  // namespace quire::caches
