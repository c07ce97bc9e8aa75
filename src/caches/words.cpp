// SPDX-License-Identifier: Apache-2.0
// See words.h.
#include "caches/words.h"

#include <cstdlib>

#include "text/formatted.h"

namespace quire::caches {
namespace {

constexpr std::size_t kListedPages = 4;

std::string heads_range(std::int64_t first, std::int64_t last) {
  return first == last ? formatted("head {}", first) : formatted("heads {}-{}", first, last);
}

/// Where moved rows are, by what differs from their own place: "V, head 2, request 7".
std::string where(const Label& label, const Told& told) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : ", ") + word; };
  if (label.other_side) add(told.k && told.v ? "the other of K and V" : told.k ? "V" : "K");
  if (label.head_by != 0) add(heads_range(told.first_head + label.head_by, told.last_head + label.head_by));
  if (label.request >= 0) add(formatted("request {}", label.request));
  return text;
}

std::string slots_text(std::int64_t first, std::int64_t last, std::int64_t page_size) {
  const std::int64_t page = first / page_size, last_page = last / page_size;
  if (page != last_page)
    return formatted("page {} offset {} to page {} offset {}", page, first % page_size, last_page, last % page_size);
  return first == last ? formatted("page {} offset {}", page, first % page_size)
                       : formatted("page {} offsets {} to {}", page, first % page_size, last % page_size);
}

std::string moved_text(const Segment& s, std::int64_t last, const Told& told) {
  const std::string other = where(s.label, told);
  if (s.label.shift == 0) return "in " + other;
  return "at " + positions_text(s.first + s.label.shift, last + s.label.shift) + (other.empty() ? "" : " of " + other);
}

std::string no_place_text(NoPlace why) {
  switch (why) {
    case NoPlace::request: return "nowhere in B, which has no such request";
    case NoPlace::head: return "nowhere in B, which has no such head";
    case NoPlace::position: return "beyond the end of the request in B";
    default: return "nowhere in B, whose table has no page there";
  }
}

std::string found_text(const Found& found) {
  switch (found.what) {
    case InPlace::zeros: return "zeros in B";
    case InPlace::nan: return "NaN in B";
    case InPlace::scaled: return formatted("times {:.4g} in B", found.factor);
    case InPlace::rounded: return "rounded otherwise in B";
    case InPlace::rotated: return formatted("dims moved by {} in B", found.by);
    case InPlace::reversed: return "dims in reverse in B";
    case InPlace::interleaved: return "halves of dims interleaved in B";
    case InPlace::halved: return "even dims before odd ones in B";
    case InPlace::permuted: return "dims in another order in B";
    default: return "nowhere in B, where unknown rows are";
  }
}

std::string pages_text(const Segment& s, std::int64_t last, const Told& told, const View& b, const Trace& trace) {
  std::string text = "whole pages are elsewhere: ";
  for (std::size_t i = 0; i < s.pages.size() && i < kListedPages; ++i) {
    const Segment& page = s.pages[i];
    const std::int64_t end = page.last < 0 ? last : page.last;
    text += (i == 0 ? "" : "; ") + positions_text(page.first, end) + " " +
            (page.label.fate == RowFate::identical ? "stay" : text_of(page, end, told, b, trace));
  }
  return s.pages.size() > kListedPages ? text + formatted("; and {} more", s.pages.size() - kListedPages) : text;
}

/// What stands in the place of rows that are nowhere.
std::string changed_text(const Segment& s, std::int64_t last, const Told& told) {
  if (!s.label.holds_another) return found_text(s.label.found);
  const std::string other = where(s.label, told);
  const std::string rows =
      s.label.shift == 0 ? "those of " + other
                         : positions_text(s.first + s.label.shift, last + s.label.shift) + (other.empty() ? "" : " of " + other);
  return "nowhere in B, where A's " + rows + (s.first == last && s.label.shift != 0 ? " is" : " are");
}

}  // namespace

std::string positions_text(std::int64_t first, std::int64_t last) {
  return first == last ? formatted("position {}", first) : formatted("positions {} to {}", first, last);
}

std::string text_of(const Segment& s, std::int64_t last, const Told& told, const View& b, const Trace& trace) {
  if (!s.pages.empty()) return pages_text(s, last, told, b, trace);
  switch (s.label.fate) {
    case RowFate::identical: return trace.was_rounded[told.k ? 0 : 1] ? "identical, rounded" : "identical";
    case RowFate::moved: return moved_text(s, last, told);
    case RowFate::unlisted: {
      const std::string other = where(s.label, told);
      return "in " + slots_text(s.first + s.label.shift, last + s.label.shift, b.page_size()) +
             (other.empty() ? "" : ", " + other) + ", which B's table does not list";
    }
    case RowFate::reordered: return trace.reorder->text();
    case RowFate::changed: return changed_text(s, last, told);
    case RowFate::no_place: return no_place_text(s.label.no_place);
    case RowFate::ambiguous: break;
  }
  return "rows that A or B has several times, and not here";
}

std::string summary_of(const Label& label, const Told& told, const Trace& trace) {
  switch (label.fate) {
    case RowFate::identical: return "identical";
    case RowFate::moved: {
      Label rest = label;
      if (label.other_side && told.k && told.v && label.head_by == 0 && label.request < 0 && label.shift == 0)
        return "K and V are swapped";
      rest.head_by = 0;
      const std::string other = where(rest, told), by = label.shift == 0 ? ""
                                                                         : formatted("moved by {} position{}", label.shift,
                                                                                     std::llabs(label.shift) == 1 ? "" : "s");
      std::string text;
      if (label.head_by != 0)
        text = formatted("{} {} in {} of B", heads_range(told.first_head, told.last_head),
                         told.first_head == told.last_head ? "is" : "are",
                         heads_range(told.first_head + label.head_by, told.last_head + label.head_by));
      if (!other.empty()) text += (text.empty() ? "in " : ", in ") + other;
      return by.empty() ? text : text.empty() ? by : text + ", " + by;
    }
    case RowFate::unlisted: return "in pages that B's table does not list";
    case RowFate::reordered: return trace.reorder->text();
    case RowFate::changed: return label.holds_another ? "replaced by other rows of A" : found_text(label.found);
    case RowFate::no_place: return no_place_text(label.no_place);
    case RowFate::ambiguous: break;
  }
  return "rows that stand at several places, and not in their own";
}

}  // namespace quire::caches
