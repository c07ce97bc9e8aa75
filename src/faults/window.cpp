// SPDX-License-Identifier: Apache-2.0
// The sliding window: W keys, the own one included, counted from each row (vllm#3385: 2048 or 2049 keys).
#include <algorithm>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

/// Does the window hide keys from a row of a request for which `of` is true?
template <typename Predicate>
bool binds(const Facts& f, Predicate&& of) {
  const auto last_row = [&](std::int64_t r) { return f.first_position(r) + f.query_len(r) - 1; };
  return f.windowed() && any_request(f, [&](std::int64_t r) { return of(r) && f.first_key(last_row(r)) > 0; });
}
bool binds(const Facts& f) {
  return binds(f, [](std::int64_t) { return true; });
}

Suspects never(const Facts& f) {
  if (!f.windowed()) return cannot_show("no sliding window is set");
  return cannot_show(formatted("the window of {} keys hides nothing: the longest sequence has {}", f.window(), longest(f)));
}

/// The first key becomes `first(row)`, the last stays what it was.
Plant from(const Facts& f, std::function<std::int64_t(const Row&)> first) {
  return keys_between(std::move(first), [f = &f](const Row& r) { return f->last_key_of(r); });
}
/// The position of the first row of a row's request.
std::int64_t first_row(const Row& r) { return r.q_pos - (r.token - r.first_token); }

Suspects one_short(const Clues& e) {
  const Facts& f = e.facts;
  const std::int64_t w = f.window() - 1;
  if (!f.windowed() || longest(f) <= std::max<std::int64_t>(w, 1)) return never(f);
  return one(from(f, [w](const Row& r) { return w == 0 ? 0 : r.q_pos - w + 1; }), formatted("{} keys instead of {}", w, w + 1));
}

Suspects one_long(const Clues& e) {
  const std::int64_t w = e.facts.window() + 1;
  if (!binds(e.facts)) return never(e.facts);
  return one(from(e.facts, [w](const Row& r) { return r.q_pos - w + 1; }), formatted("{} keys instead of {}", w, w - 1));
}

Suspects ignored_window(const Clues& e) {
  if (!binds(e.facts)) return never(e.facts);
  return one(from(e.facts, [](const Row&) { return 0; }));
}

Suspects from_page_start(const Clues& e) {
  const Facts* f = &e.facts;
  if (!binds(*f)) return never(*f);
  if (!any_row(*f, [f](std::int64_t, std::int64_t q_pos) { return f->first_key(q_pos) % f->page_size != 0; }))
    return cannot_show("every row's window starts at the start of a page");
  return one(from(*f, [f](const Row& r) { return f->first_key(r.q_pos) / f->page_size * f->page_size; }));
}

Suspects from_last_row(const Clues& e) {
  const Facts* f = &e.facts;
  if (!binds(*f)) return never(*f);
  if (!binds(*f, [f](std::int64_t r) { return f->query_len(r) > 1; }))
    return cannot_show("the window hides nothing in requests with more than one row");
  return one(from(*f, [f](const Row& r) { return f->first_key(first_row(r) + r.query_len - 1); }));
}

Suspects from_first_row(const Clues& e) {
  const Facts* f = &e.facts;
  if (!binds(*f)) return never(*f);
  if (!binds(*f, [f](std::int64_t r) { return f->query_len(r) > 1; }))
    return cannot_show("the window hides nothing in requests with more than one row");
  return one(from(*f, [f](const Row& r) { return f->first_key(first_row(r)); }));
}

/// The window holds in rows of one kind only.
Suspects kept_in(const Clues& e, bool in_decode) {
  const Facts* f = &e.facts;
  if (!binds(*f)) return never(*f);
  const auto keeps = [f, in_decode](std::int64_t r) { return (f->query_len(r) == 1) == in_decode; };
  const char* kind = in_decode ? "prefill" : "decode";
  if (!binds(*f, [&](std::int64_t r) { return !keeps(r); }))
    return cannot_show(formatted("the window hides nothing in {} rows", kind));
  if (!binds(*f, keeps)) return cannot_show(formatted("the window binds in {} rows only: this is window_ignored here", kind));
  return one(from(*f, [f, in_decode](const Row& r) { return (r.query_len == 1) == in_decode ? f->first_key(r.q_pos) : 0; }));
}
Suspects only_in_prefill(const Clues& e) { return kept_in(e, /*in_decode=*/false); }
Suspects only_in_decode(const Clues& e) { return kept_in(e, /*in_decode=*/true); }

/// Rows that the window of which reaches past the first new key.
bool binds_among_new_keys(const Facts& f) {
  return any_request(f, [&f](std::int64_t r) { return f.query_len(r) > f.window(); });
}

Suspects only_on_context(const Clues& e) {
  const Facts* f = &e.facts;
  if (!binds(*f)) return never(*f);
  if (!binds_among_new_keys(*f)) return cannot_show(formatted("no request has more rows than the window of {}", f->window()));
  return one(from(*f, [f](const Row& r) { return std::min(f->first_key(r.q_pos), r.context_len()); }));
}

Suspects only_on_new_keys(const Clues& e) {
  const Facts* f = &e.facts;
  if (!binds(*f)) return never(*f);
  if (!binds_among_new_keys(*f))
    return cannot_show(formatted("no request has more rows than the window of {}: this is window_ignored here", f->window()));
  if (!any_request(*f, [f](std::int64_t r) { return f->context_len(r) > 0; })) return cannot_show("no request has a context");
  return one([f](Model& m) {
    from(*f, [](const Row&) { return 0; })(m);
    keys_dropped([f](const Row& r, std::int64_t k) { return k >= r.context_len() && k < f->first_key(r.q_pos); })(m);
  });
}

}  // namespace

void add_window(std::vector<Fault>& list) {
  const Family add{list, "window"};
  const char* const kCount = "count the keys that row q_pos keeps: W, its own included; FlashAttention takes (W - 1, 0)";
  add("window_one_short", "keeps one key too few in the window, and takes a window of 1 for none", "vllm#9679", kCount,
      one_short);
  add("window_one_long", "keeps one key too many in the window", "vllm#3385", kCount, one_long);
  add("window_ignored", "ignores the sliding window", "vllm#19367, vllm#23934",
      "look at the path that serves these rows (ALiBi prefill, a fallback): does it take a window at all?", ignored_window);
  add("window_from_page_start", "starts the window at the start of a page", "",
      "skip whole pages only, and mask the keys of the first page that is left", from_page_start);
  add("window_from_last_row", "measures the window from the last row of the request", "",
      "use each row's own q_pos, not seq_len - 1, in the window test", from_last_row);
  add("window_from_first_row", "measures the window from the first row of the request", "",
      "use each row's own q_pos, not context_len, in the window test", from_first_row);
  add("window_only_in_prefill", "applies the window to prefill rows only", "vllm#23969",
      "look for the window among the arguments of the decode kernel", only_in_prefill);
  add("window_only_in_decode", "applies the window to decode rows only", "",
      "look for the window among the arguments of the prefill kernel", only_in_decode);
  add("window_only_on_context", "applies the window to context keys only, not among the new keys", "",
      "the loop over a chunk's own keys needs the window too", only_on_context);
  add("window_only_on_new_keys", "applies the window among the new keys only, not to the context", "",
      "the loop over the context pages needs the window too", only_on_new_keys);
}

}  // namespace quire::faults_detail
