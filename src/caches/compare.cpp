// SPDX-License-Identifier: Apache-2.0
// compare_caches(): the rows' fates, gathered into the fewest parts and the shortest words.
#include <algorithm>
#include <exception>

#include "caches/words.h"
#include "text/formatted.h"
#include "text/names.h"

namespace quire {
namespace caches {
namespace {

/// Heads beside each other, K or V or both, that fared alike.
struct HeadGroup {
  std::int64_t first = 0, last = 0;  ///< indices of heads
  bool k = false, v = false;
  std::vector<Segment> segments;
  bool alike(const HeadGroup& other) const { return first == other.first && last == other.last && segments == other.segments; }
};

std::vector<HeadGroup> groups_of_side(const std::vector<std::array<std::vector<Segment>, 2>>& heads, bool is_k) {
  std::vector<HeadGroup> groups;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const std::vector<Segment>& segments = heads[h][is_k ? 0 : 1];
    const auto head = static_cast<std::int64_t>(h);
    if (groups.empty() || groups.back().segments != segments)
      groups.push_back({head, head, is_k, !is_k, segments});
    else
      groups.back().last = head;
  }
  std::erase_if(groups, [](const HeadGroup& g) { return g.segments.empty(); });
  return groups;
}

/// K and V in one group where they fared alike.
std::vector<HeadGroup> groups_of(const std::vector<std::array<std::vector<Segment>, 2>>& heads) {
  std::vector<HeadGroup> groups = groups_of_side(heads, true);
  for (HeadGroup& group : groups_of_side(heads, false)) {
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const HeadGroup& g) { return g.k && !g.v && g.alike(group); });
    if (same != groups.end())
      same->v = true;
    else
      groups.push_back(std::move(group));
  }
  return groups;
}

std::string description(const View& view) {
  const KVCache& c = view.cache();
  std::int64_t positions = 0;
  for (std::int64_t r = 0; r < view.requests(); ++r) positions += view.length(r);
  const auto either = [](const auto& k, const auto& v) { return k == v ? formatted("{}", k) : formatted("{}/{}", k, v); };
  return formatted("{} request{}, {} positions, {} KV head{} of {}, {}, {}, {} pages of {}", view.requests(),
                   view.requests() == 1 ? "" : "s", positions, view.heads(), view.heads() == 1 ? "" : "s",
                   either(head_dim(c), v_head_dim(c)), either(quire::name(c.k.dtype), quire::name(c.v.dtype)),
                   quire::name(c.layout), num_pages(c), view.page_size());
}

std::vector<CachePart> parts_of(std::int64_t request, const View& a, const View& b, const Trace& trace) {
  std::vector<CachePart> parts;
  for (const HeadGroup& group : groups_of(trace.segments[static_cast<std::size_t>(request)]))
    for (const Segment& s : group.segments)
      parts.push_back({.requests = {a.id(request)},
                       .first_head = a.model_head(group.first),
                       .last_head = a.model_head(group.last),
                       .k = group.k,
                       .v = group.v,
                       .first = s.first,
                       .last = s.last,
                       .fate = s.label.fate,
                       .text = text_of(s, s.last < 0 ? a.length(request) - 1 : s.last,
                                       {a.model_head(group.first), a.model_head(group.last), group.k, group.v}, b, trace),
                       .rows = s.rows * (group.last - group.first + 1) * (group.k + group.v)});
  return parts;
}

bool alike(const CachePart& x, const CachePart& y) {
  return x.first_head == y.first_head && x.last_head == y.last_head && x.k == y.k && x.v == y.v && x.first == y.first &&
         x.last == y.last && x.text == y.text;
}

/// Adds the parts of all requests. Neighbouring requests with equal parts share one list of parts.
void add_parts(const View& a, const View& b, const Trace& trace, CacheComparison& result) {
  std::size_t before = 0;  // number of parts of the request before
  for (std::int64_t r = 0; r < a.requests(); ++r) {
    const std::vector<CachePart> parts = parts_of(r, a, b, trace);
    const auto last = result.parts.end() - static_cast<std::ptrdiff_t>(before);
    if (!parts.empty() && std::equal(last, result.parts.end(), parts.begin(), parts.end(), alike)) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        last[static_cast<std::ptrdiff_t>(i)].requests.push_back(a.id(r));
        last[static_cast<std::ptrdiff_t>(i)].rows += parts[i].rows;
      }
      continue;
    }
    before = parts.size();
    result.parts.insert(result.parts.end(), parts.begin(), parts.end());
  }
}

struct Sum {
  Label label;
  bool pages = false;
  std::int64_t k = 0, v = 0;
  std::int64_t first_head = 0, last_head = 0;
};

void add_to(std::vector<Sum>& sums, const Segment& s, bool is_k, std::int64_t head) {
  Sum sum{s.label, !s.pages.empty()};
  if (sum.pages || sum.label.fate == RowFate::unlisted || sum.label.holds_another) {
    sum.label = {.fate = sum.label.fate, .holds_another = sum.label.holds_another};
  }
  auto same = std::find_if(sums.begin(), sums.end(), [&](const Sum& x) { return x.pages == sum.pages && x.label == sum.label; });
  if (same == sums.end()) {
    sum.first_head = sum.last_head = head;
    same = sums.insert(sums.end(), sum);
  }
  same->first_head = std::min(same->first_head, head), same->last_head = std::max(same->last_head, head);
  (is_k ? same->k : same->v) += s.rows;
}

/// Adds a line for each kind of fate and its number of rows, the most frequent first. Identical rows have no line.
void add_summary(const View& a, const Trace& trace, CacheComparison& result) {
  std::vector<Sum> sums;
  for (const auto& heads : trace.segments)
    for (std::size_t h = 0; h < heads.size(); ++h)
      for (const bool is_k : {true, false})
        for (const Segment& s : heads[h][is_k ? 0 : 1]) add_to(sums, s, is_k, a.model_head(static_cast<std::int64_t>(h)));
  std::stable_sort(sums.begin(), sums.end(), [](const Sum& x, const Sum& y) { return x.k + x.v > y.k + y.v; });
  for (const Sum& sum : sums) {
    if (sum.label.fate == RowFate::identical) continue;
    const std::int64_t rows = sum.k + sum.v;
    const std::string sides = sum.k > 0 && sum.v > 0 ? "" : sum.k > 0 ? " of K" : " of V";
    const std::string many = rows == result.rows ? "all rows" : formatted("{} of {} rows{}", rows, result.rows, sides);
    result.summary.push_back(many + ": " +
                             (sum.pages ? "whole pages stand in another order"
                                        : summary_of(sum.label, {sum.first_head, sum.last_head, sum.k > 0, sum.v > 0}, trace)));
  }
}

/// Reports equal bytes under unlike scales, which are unlike numbers.
void compare_scales(const View& a, const View& b, const Trace& trace, CacheComparison& result) {
  for (const bool is_k : {true, false}) {
    if (trace.was_rounded[is_k ? 0 : 1]) continue;
    for (std::int64_t head = 0; head < a.heads(); ++head) {
      const std::optional<std::int64_t> other = b.head_of(a.model_head(head));
      if (!other || a.scale(is_k, head) == b.scale(is_k, *other)) continue;
      result.same = false;
      result.summary.push_back(formatted("the same bytes of {} mean other numbers: {} of head {} is {} in A, {} in B",
                                         is_k ? "K" : "V", is_k ? "k_scale" : "v_scale", a.model_head(head), a.scale(is_k, head),
                                         b.scale(is_k, *other)));
      break;
    }
  }
}

Status refuse_sizes(const View& a, const View& b) {
  const KVCache &ca = a.cache(), &cb = b.cache();
  if (a.is_one() != b.is_one())
    return {Code::invalid_argument, formatted("a.cache is {}, b.cache {}: rows of fp8_ds_mla compare with such rows alone",
                                              quire::name(ca.k.dtype), quire::name(cb.k.dtype))};
  if (head_dim(ca) == head_dim(cb) && v_head_dim(ca) == v_head_dim(cb)) return {};
  return {Code::invalid_argument, formatted("rows of unlike sizes: head_dim {} and v_head_dim {} in a, {} and {} in b",
                                            head_dim(ca), v_head_dim(ca), head_dim(cb), v_head_dim(cb))};
}

Result<CacheComparison> compare(const CacheContents& of_a, const CacheContents& of_b) {
  const Result<View> a = View::create(of_a, "a"), b = View::create(of_b, "b");
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  if (Status s = refuse_sizes(a.value(), b.value()); !s.ok()) return s;
  const Result<Trace> found = trace(a.value(), b.value());
  if (!found.ok()) return found.status();
  CacheComparison result{.a = description(a.value()), .b = description(b.value())};
  result.counts.assign(found->counts.begin(), found->counts.end());
  for (const std::int64_t count : result.counts) result.rows += count;
  result.same = result.counts[0] == result.rows;
  add_parts(a.value(), b.value(), found.value(), result);
  add_summary(a.value(), found.value(), result);
  compare_scales(a.value(), b.value(), found.value(), result);
  return result;
}

}  // namespace
}  // namespace caches

Result<CacheComparison> compare_caches(const CacheContents& a, const CacheContents& b) {
  try {
    return caches::compare(a, b);
  } catch (const std::exception&) {
    return Status(Code::out_of_memory, "compare_caches: no memory for the digests of all rows");
  }
}

std::string_view name(RowFate fate) noexcept {
  constexpr std::string_view kNames[] = {"identical", "moved", "unlisted", "reordered", "changed", "no_place", "ambiguous"};
  return name_in(kNames, fate);
}

}  // namespace quire
