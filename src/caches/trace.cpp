// SPDX-License-Identifier: Apache-2.0
// See trace.h.
#include "caches/trace.h"

#include <algorithm>
#include <cmath>

namespace quire::caches {

bool Label::operator==(const Label& other) const noexcept {
  constexpr double kAlike = 0x1p-5;  // factors of rows beside each other differ by what 8-bit codes round
  return fate == other.fate && other_side == other.other_side && request == other.request && head_by == other.head_by &&
         shift == other.shift && no_place == other.no_place && holds_another == other.holds_another &&
         found.what == other.found.what && found.by == other.found.by &&
         std::fabs(found.factor - other.found.factor) <= kAlike * std::fabs(found.factor);
}

namespace {

constexpr std::size_t kMostSampled = 4096;  ///< rows that an order of tokens and heads is tried on
constexpr std::int64_t kFewRows = 4;        ///< an order that fits fewer rows is chance

class Tracer {
 public:
  Tracer(const View& a, const View& b) : a_(a), b_(b), of_a_(a.cache(), a.cache()), of_b_(b.cache(), b.cache()) {}
  Result<Trace> run();

 private:
  template <typename Visit>
  void for_each_place(Visit&& visit) const;
  Status choose_types();
  bool found_by_bytes(bool is_k);
  void choose_reorder();
  std::vector<Place> sample();

  std::optional<Place> same_place(const Place& place, NoPlace& why) const;
  std::optional<Row> row_at(const Label& label, const Place& place) const;
  bool stands_at(const std::optional<Row>& row, std::uint64_t digest) { return row && of_b_.of(*row) == digest; }
  Label label_of(const Place& from, const View& view, const Row& to) const;

  std::vector<Segment> line(const Place& first);
  std::optional<Label> sure(const Place& place, const Row& row);
  void adopt(const Place& first, std::vector<std::optional<Label>>& labels);
  Label lost(const Place& place, const Row& row);
  std::vector<Segment> segments_of(const Place& first, const std::vector<std::optional<Label>>& labels);

  const View &a_, &b_;
  Digests of_a_, of_b_;
  Index in_a_, in_b_;
  std::vector<std::vector<std::byte>> memory_;
  Trace trace_;
};

template <typename Visit>
void Tracer::for_each_place(Visit&& visit) const {
  for (std::int64_t r = 0; r < a_.requests(); ++r)
    for (std::int64_t h = 0; h < a_.heads(); ++h)
      for (const bool is_k : {true, false})
        for (std::int64_t p = 0; p < a_.length(r) && (is_k || !a_.is_one()); ++p)
          if (const Place place{is_k, r, h, p}; a_.row(place)) visit(place);
}

// --- which bytes are compared -------------------------------------------------------------------------------------------

bool Tracer::found_by_bytes(bool is_k) {
  bool found = false;
  for (const Place& place : sample())
    found = found || (place.is_k == is_k && !in_b_.find(of_a_.of(*a_.row(place)), b_, 1).empty());
  return found;
}

/// Decides which sides of A are rounded: those whose type is another in B, those with scales of tokens in one cache alone, and
/// those of 8 bits of which no row is found by its bytes, because a scale is another.
Status Tracer::choose_types() {
  if (a_.is_one() || b_.is_one()) return {};
  for (const bool is_k : {true, false}) {
    const DType from = is_k ? a_.cache().k.dtype : a_.cache().v.dtype, to = is_k ? b_.cache().k.dtype : b_.cache().v.dtype;
    const bool token_scales = (is_k ? a_.cache().k_scale : a_.cache().v_scale).rank == 3;
    const bool others = (is_k ? b_.cache().k_scale : b_.cache().v_scale).rank == 3;
    trace_.was_rounded[is_k ? 0 : 1] = from != to || token_scales != others || (itemsize(to) == 1 && !found_by_bytes(is_k));
  }
  if (!trace_.was_rounded[0] && !trace_.was_rounded[1]) return {};
  const Result<KVCache> cache = rounded(a_, b_, memory_);
  if (!cache.ok()) return cache.status();
  of_a_ = Digests(trace_.was_rounded[0] ? cache.value() : a_.cache(), trace_.was_rounded[1] ? cache.value() : a_.cache());
  return {};
}

// --- orders of tokens and heads -----------------------------------------------------------------------------------------

std::vector<Place> Tracer::sample() {
  std::vector<Place> all, some;
  for_each_place([&](const Place& place) { all.push_back(place); });
  // An odd step meets all tokens, heads and sides.
  const std::size_t step = all.size() / kMostSampled | 1;
  for (std::size_t i = 0; i < all.size(); i += step) some.push_back(all[i]);
  return some;
}

void Tracer::choose_reorder() {
  std::vector<std::pair<Place, std::uint64_t>> elsewhere;
  for (const Place& place : sample()) {
    const std::uint64_t digest = of_a_.of(*a_.row(place));
    NoPlace why{};
    const std::optional<Place> same = same_place(place, why);
    if ((!same || !stands_at(b_.row(*same), digest)) && in_b_.find(digest, b_).size() == 1) elsewhere.emplace_back(place, digest);
  }
  std::int64_t most = std::max(kFewRows, static_cast<std::int64_t>(elsewhere.size() / 2));
  for (const Reorder& order : reorders(a_, b_)) {
    std::int64_t fits = 0;
    for (const auto& [place, digest] : elsewhere) {
      std::optional<Place> to = order.of(place, a_.page_size());
      const std::optional<std::int64_t> request = b_.request_of(a_.id(place.request));
      if (!to || !request) continue;
      to->request = *request;
      if (stands_at(b_.row(*to), digest)) ++fits;
    }
    if (fits <= most) continue;
    most = fits;
    trace_.reorder = order;
  }
}

// --- places -------------------------------------------------------------------------------------------------------------

std::optional<Place> Tracer::same_place(const Place& place, NoPlace& why) const {
  const std::optional<std::int64_t> request = b_.request_of(a_.id(place.request)), head = b_.head_of(a_.model_head(place.head));
  why = !request                                ? NoPlace::request
        : !head                                 ? NoPlace::head
        : place.position >= b_.length(*request) ? NoPlace::position
                                                : NoPlace::none;
  if (why != NoPlace::none) return std::nullopt;
  const Place same{place.is_k, *request, *head, place.position};
  if (b_.row(same)) return same;
  why = NoPlace::page;
  return std::nullopt;
}

/// The way from a place of A to a row of `view`.
Label Tracer::label_of(const Place& from, const View& view, const Row& to) const {
  Label label;
  label.other_side = from.is_k != to.is_k;
  label.head_by = view.model_head(to.head) - a_.model_head(from.head);
  const std::int64_t id = a_.id(from.request);
  const std::optional<Place> place = view.place(to, view.request_of(id).value_or(-1));
  label.fate = place ? RowFate::moved : RowFate::unlisted;
  label.shift = (place ? place->position : to.slot) - from.position;
  if (place && view.id(place->request) != id) label.request = view.id(place->request);
  return label;
}

/// Where a label of moved or unlisted rows leads to, in B.
std::optional<Row> Tracer::row_at(const Label& label, const Place& place) const {
  const std::optional<std::int64_t> head = b_.head_of(a_.model_head(place.head) + label.head_by),
                                    request = b_.request_of(label.request >= 0 ? label.request : a_.id(place.request));
  if (!head) return std::nullopt;
  const bool is_k = place.is_k != label.other_side;
  const std::int64_t at = place.position + label.shift;
  if (label.fate == RowFate::moved && request) return b_.row({is_k, *request, *head, at});
  if (label.fate != RowFate::unlisted || at < 0 || at >= b_.slots()) return std::nullopt;
  return Row{is_k, at, *head};
}

// --- the rows of one request, head and side -----------------------------------------------------------------------------

/// The label of a row that stands in its place, where the order of tokens and heads puts it, or in only one place; nullopt if
/// neighbours must decide.
std::optional<Label> Tracer::sure(const Place& place, const Row& row) {
  const std::uint64_t digest = of_a_.of(row);
  NoPlace why{};
  const std::optional<Place> same = same_place(place, why);
  if (trace_.reorder) {
    std::optional<Place> to = trace_.reorder->of(place, a_.page_size());
    const std::optional<std::int64_t> request = b_.request_of(a_.id(place.request));
    if (to && request) {
      to->request = *request;
      if (stands_at(b_.row(*to), digest)) return Label{.fate = RowFate::reordered};
    }
  }
  if (same && stands_at(b_.row(*same), digest)) return Label{};
  const std::vector<Row> found = in_b_.find(digest, b_);
  if (found.empty()) return lost(place, row);
  if (in_a_.find(digest, a_).size() > 1) return std::nullopt;
  std::vector<Label> listed, others;
  for (const Row& to : found) {
    const Label label = label_of(place, b_, to);
    (label.fate == RowFate::moved ? listed : others).push_back(label);
  }
  if (listed.size() == 1 && listed.front() == Label{.fate = RowFate::moved})
    return Label{.fate = RowFate::no_place, .no_place = why};
  if (listed.size() == 1) return listed.front();
  return listed.empty() && others.size() == 1 ? std::optional(others.front()) : std::nullopt;
}

/// The label of a row that is nowhere in B, by what stands in its place.
Label Tracer::lost(const Place& place, const Row& row) {
  Label label{.fate = RowFate::no_place};
  if (trace_.reorder && !trace_.reorder->of(place, a_.page_size())) {
    ++trace_.counts[static_cast<std::size_t>(RowFate::no_place)];
    --trace_.counts[static_cast<std::size_t>(RowFate::reordered)];
    return Label{.fate = RowFate::reordered};  // cut off by the order: one run with the rows that it kept
  }
  const std::optional<Place> same = same_place(place, label.no_place);
  if (!same) return label;
  const Row there = *b_.row(*same);
  const std::vector<Row> own = in_a_.find(of_b_.of(there), a_);
  if (own.size() == 1) {
    label = label_of(place, a_, own.front());
    label.holds_another = true;
  } else {
    const KVCache &a = a_.cache(), &b = b_.cache();
    label.found = in_place(a_.values(row), b_.values(there),
                           place.is_k ? rounding_of(a.k.dtype, b.k.dtype) : rounding_of(a.v.dtype, b.v.dtype));
  }
  label.fate = RowFate::changed;
  return label;
}

/// A row that stands at several places went where its neighbour did, if it stands there.
void Tracer::adopt(const Place& first, std::vector<std::optional<Label>>& labels) {
  const auto size = static_cast<std::int64_t>(labels.size());
  std::vector<bool> open(labels.size());
  for (std::size_t p = 0; p < labels.size(); ++p) open[p] = labels[p] && labels[p]->fate == RowFate::ambiguous;
  for (const std::int64_t step : {std::int64_t{1}, std::int64_t{-1}})
    for (std::int64_t p = step > 0 ? 1 : size - 2; p >= 0 && p < size; p += step) {
      const auto at = static_cast<std::size_t>(p);
      const std::optional<Label>& beside = labels[static_cast<std::size_t>(p - step)];
      if (!open[at] || labels[at]->fate != RowFate::ambiguous || !beside) continue;
      Place place = first;
      place.position = p;
      if (stands_at(row_at(*beside, place), of_a_.of(*a_.row(place)))) labels[at] = beside;
    }
}

std::vector<Segment> Tracer::line(const Place& first) {
  std::vector<std::optional<Label>> labels(static_cast<std::size_t>(a_.length(first.request)));
  for (std::size_t p = 0; p < labels.size(); ++p) {
    Place place = first;
    place.position = static_cast<std::int64_t>(p);
    if (const std::optional<Row> row = a_.row(place)) labels[p] = sure(place, *row).value_or(Label{.fate = RowFate::ambiguous});
  }
  adopt(first, labels);
  return segments_of(first, labels);
}

/// Whether a segment is whole pages, or the rest of a request, that went to whole pages or stayed.
bool is_of_pages(const Segment& s, std::int64_t size) {
  const bool whole = s.first % size == 0 && (s.last < 0 || (s.last + 1) % size == 0);
  const bool kept =
      s.label.fate == RowFate::identical ||
      ((s.label.fate == RowFate::moved || s.label.fate == RowFate::unlisted) && !s.label.other_side && s.label.head_by == 0);
  return whole && kept && (s.first + s.label.shift) % size == 0;
}

/// Makes one segment of each run of segments of whole pages, if at least two of the run went elsewhere.
std::vector<Segment> with_pages(const std::vector<Segment>& all, std::int64_t size) {
  std::vector<Segment> merged;
  for (std::size_t i = 0; i < all.size();) {
    std::size_t end = i, moved = 0;
    for (; end < all.size() && is_of_pages(all[end], size) && (end == i || all[end - 1].last + 1 == all[end].first); ++end)
      moved += all[end].label.fate != RowFate::identical;
    while (end > i && all[end - 1].label.fate == RowFate::identical) --end;
    if (moved < 2 || all[i].label.fate == RowFate::identical) {
      merged.push_back(all[i++]);
      continue;
    }
    Segment pages{all[i].first, all[end - 1].last, 0, {.fate = RowFate::moved}, {}};
    for (; i < end; ++i) {
      pages.rows += all[i].rows;
      pages.pages.push_back(all[i]);
    }
    merged.push_back(std::move(pages));
  }
  return merged;
}

std::vector<Segment> Tracer::segments_of(const Place& first, const std::vector<std::optional<Label>>& labels) {
  std::vector<Segment> segments;
  const auto size = static_cast<std::int64_t>(labels.size());
  for (std::int64_t p = 0; p < size; ++p) {
    const std::optional<Label>& label = labels[static_cast<std::size_t>(p)];
    if (!label) continue;
    ++trace_.counts[static_cast<std::size_t>(label->fate)];
    if (segments.empty() || segments.back().last + 1 != p || !(segments.back().label == *label))
      segments.push_back({p, p, 0, *label, {}});
    segments.back().last = p;
    ++segments.back().rows;
  }
  if (!segments.empty() && segments.back().last + 1 == size) segments.back().last = -1;
  return a_.page_size() == b_.page_size() && first.position == 0 ? with_pages(segments, a_.page_size()) : segments;
}

Result<Trace> Tracer::run() {
  for (std::int64_t slot = 0; slot < b_.slots(); ++slot)
    for (std::int64_t head = 0; head < b_.heads(); ++head)
      for (const bool is_k : {true, false})
        if (const Row row{is_k, slot, head}; is_k || !b_.is_one()) in_b_.add(of_b_.of(row), row, b_);
  in_b_.sort();
  if (Status s = choose_types(); !s.ok()) return s;
  for_each_place([&](const Place& place) { in_a_.add(of_a_.of(*a_.row(place)), *a_.row(place), a_); });
  in_a_.sort();
  choose_reorder();
  for (std::int64_t r = 0; r < a_.requests(); ++r) {
    trace_.segments.emplace_back();
    for (std::int64_t h = 0; h < a_.heads(); ++h) {
      auto& sides = trace_.segments.back().emplace_back();
      sides[0] = line({true, r, h, 0});
      if (!a_.is_one()) sides[1] = line({false, r, h, 0});
    }
  }
  return std::move(trace_);
}

}  // namespace

Result<Trace> trace(const View& a, const View& b) { return Tracer(a, b).run(); }

}  // namespace quire::caches
