// SPDX-License-Identifier: Apache-2.0
// Requests that are not causal, and rows that stand elsewhere than at the end of their keys: causal, q_begin, key_begin and
// window_right, ignored, taken from a neighbour or counted wrong.
#include <algorithm>

#include "faults/families.h"

namespace quire::faults_detail {
namespace {

bool any_non_causal(const Facts& f) {
  return any_request(f, [&](std::int64_t r) { return !f.causal[Facts::at(r)]; });
}

constexpr const char* kAllCausal = "every request is causal";

/// The mask from other ends: keys first(row) to last(row), as far as they exist.
Suspects other_keys(const Clues& e, std::function<std::int64_t(const Row&)> first, std::function<std::int64_t(const Row&)> last,
                    const char* why_not = kSameKeys) {
  const auto existing = [last = std::move(last)](const Row& r) { return std::min(last(r), r.seq_len - 1); };
  return if_it_changes_a_row(e.facts, keys_between(first, existing), why_not);
}
/// The mask from another end: keys from the first one that the window leaves to last(row).
Suspects other_last_key(const Clues& e, std::function<std::int64_t(const Row&)> last, const char* why_not = kSameKeys) {
  return other_keys(e, [f = &e.facts](const Row& r) { return f->first_key(r.q_pos); }, std::move(last), why_not);
}

// --- causal -------------------------------------------------------------------------------------------------------------

/// The flag `of(row)` for the rows of a request.
Find flag(bool (*of)(const Facts&, const Row&)) {
  return [of](const Clues& e) {
    const Facts* f = &e.facts;
    if (!any_non_causal(*f)) return cannot_show(kAllCausal);
    return rows_only_if_changed(*f, [of, f](Row& r) { r.causal = of(*f, r); });
  };
}

// --- key_begin ----------------------------------------------------------------------------------------------------------

bool any_key_begin(const Facts& f) {
  return any_request(f, [&](std::int64_t r) { return f.key_begin[Facts::at(r)] != 0; });
}
constexpr const char* kNoKeyBegin = "key_begin is absent, or 0 for every request";

std::int64_t key_begin(const Facts& f, const Row& r) { return f.key_begin[Facts::at(r.req)]; }

Suspects causal_without_key_begin(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_key_begin(*f)) return cannot_show(kNoKeyBegin);
  return other_last_key(e, [f](const Row& r) { return f->last_key(r.q_pos + key_begin(*f, r), r.causal); });
}

Suspects window_without_key_begin(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_key_begin(*f) || !f->windowed()) return cannot_show(f->windowed() ? kNoKeyBegin : "no sliding window is set");
  return other_keys(
      e, [f](const Row& r) { return f->first_key(r.q_pos + key_begin(*f, r)); },
      [f](const Row& r) { return f->last_key(r.q_pos, r.causal); });
}

/// A distance that is wrong by the same for every key shows beside a sink, or in an lse.
Suspects alibi_without_key_begin(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_key_begin(*f)) return cannot_show(kNoKeyBegin);
  if (!f->options.alibi_slopes.present()) return cannot_show("there are no ALiBi slopes");
  const bool shows = any_request(*f, [f](std::int64_t r) {
    return f->key_begin[Facts::at(r)] != 0 && f->num_visible(r, f->first_position(r) + f->query_len(r) - 1) > 0;
  });
  if (!shows || (!f->options.sinks.present() && !f->batch.lse.present()))
    return cannot_show("there are no sinks and no lse: a shift along a row cancels in the softmax");
  return one(function_set(&Model::bias, [f](const Row& r, std::int64_t k) {
    return slope_of(*f, r.query_head) * static_cast<double>(k - r.q_pos - key_begin(*f, r));
  }));
}

// --- q_begin ------------------------------------------------------------------------------------------------------------

Suspects moved_rows(const Clues& e, std::function<std::int64_t(const Row&)> by) {
  const Facts* f = &e.facts;
  if (f->causal_at_end() && !f->batch.q_begin.present()) return cannot_show("rows stand at the end of their keys");
  return rows_only_if_changed(*f, [by = std::move(by)](Row& r) { r.q_pos += by(r); });
}

Suspects q_begin_ignored(const Clues& e) {
  const Facts* f = &e.facts;
  if (!f->batch.q_begin.present()) return cannot_show("q_begin is absent");
  return moved_rows(e, [f](const Row& r) { return r.context_len() - f->first_position(r.req); });
}
Find q_begin_moved(std::int64_t by) {
  return [by](const Clues& e) {
    if (!e.facts.batch.q_begin.present()) return cannot_show("q_begin is absent");
    return moved_rows(e, [by](const Row&) { return by; });
  };
}

/// FlashAttention 2.0 and others align a mask that is not square with the first key.
Suspects rows_at_first_key(const Clues& e) {
  const Facts* f = &e.facts;
  return moved_rows(e, [f](const Row& r) { return -f->first_position(r.req); });
}

Suspects q_begin_as_int32(const Clues& e) {
  const Facts* f = &e.facts;
  const Tensor* t = &f->batch.q_begin;
  if (!t->present() || t->dtype != DType::i64 || t->stride[0] != 1)
    return cannot_show("q_begin is absent or int32: there is nothing to misread");
  return moved_rows(e, [f, t](const Row& r) { return word_of(*t, r.req) - f->q_begin[Facts::at(r.req)]; });
}

// --- windows ------------------------------------------------------------------------------------------------------------

Find right_window(std::int64_t by) {
  return [by](const Clues& e) {
    const Facts* f = &e.facts;
    if (!f->options.window_right) return cannot_show("window_right is absent");
    if (*f->options.window_right + by < 0) return cannot_show("window_right is 0: there is no smaller one");
    return other_last_key(e, [f, by](const Row& r) { return f->last_key(r.q_pos, r.causal) + (r.causal ? 0 : by); });
  };
}

Suspects right_window_ignored(const Clues& e) {
  const Facts* f = &e.facts;
  if (!f->options.window_right) return cannot_show("window_right is absent");
  return other_last_key(e, [](const Row& r) { return r.causal ? r.q_pos : r.seq_len - 1; });
}

Suspects right_window_of_causal(const Clues& e) {
  const Facts* f = &e.facts;
  if (!f->options.window_right) return cannot_show("window_right is absent");
  return other_last_key(e, [f](const Row& r) { return f->last_key(r.q_pos, false); }, "no causal request has later keys");
}

Suspects left_window_of_causal_only(const Clues& e) {
  const Facts* f = &e.facts;
  if (!f->windowed()) return cannot_show("no sliding window is set");
  if (!any_non_causal(*f)) return cannot_show(kAllCausal);
  return other_keys(
      e, [f](const Row& r) { return r.causal ? f->first_key(r.q_pos) : 0; },
      [f](const Row& r) { return f->last_key(r.q_pos, r.causal); });
}

// --- keys ---------------------------------------------------------------------------------------------------------------

Suspects as_many_keys_as_rows(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_non_causal(*f)) return cannot_show(kAllCausal);
  return other_last_key(
      e,
      [f](const Row& r) {
        const std::int64_t last = f->last_key(r.q_pos, r.causal);
        return r.causal ? last : std::min(last, r.query_len - 1);
      },
      "no request that is not causal has more keys than rows");
}

Suspects alibi_symmetric(const Clues& e) {
  const Facts* f = &e.facts;
  if (!f->options.alibi_slopes.present()) return cannot_show("there are no ALiBi slopes");
  const bool sees_later = any_row(
      *f, [f](std::int64_t r, std::int64_t q_pos) { return f->hull(r, q_pos).end > q_pos + 1 && f->num_visible(r, q_pos) > 1; });
  if (!sees_later) return cannot_show("no row sees a later key");
  return one(function_set(&Model::bias, [f](const Row& r, std::int64_t k) {
    return slope_of(*f, r.query_head) * -std::abs(static_cast<double>(k - r.q_pos));
  }));
}

/// Faults in the result of a row that sees no key and has no sink.
Find of_rows_without_keys(std::function<void(RowResult&)> change) {
  return [change](const Clues& e) {
    const Facts* f = &e.facts;
    if (f->options.sinks.present()) return cannot_show("there are sinks: no row has an empty softmax");
    if (!any_row(*f, [f](std::int64_t r, std::int64_t q_pos) { return f->num_visible(r, q_pos) == 0; }))
      return cannot_show("every row sees a key");
    return one(result_changed([change](const Row&, RowResult& result) {
      if (result.lse == kNegInf) change(result);
    }));
  };
}

Find empty_lse(double lse) {
  return [lse](const Clues& e) {
    if (!e.facts.batch.lse.present()) return cannot_show("lse is absent");
    return of_rows_without_keys([lse](RowResult& r) { r.lse = lse; })(e);
  };
}

}  // namespace

void add_positions(std::vector<Fault>& list) {
  const Family add{list, "positions"};
  const char* const kFlag = "causal is data of each request: look for where the mask is chosen, once a launch or once a request";
  const char* const kBegin = "key j of a request is at key_begin + j, row i at q_begin + i: subtract both or neither";
  const char* const kEmpty = "a row without keys gives 0 and lse -inf: test for an empty sum before the division";
  add("causal_flag_ignored", "takes every request for causal", "", kFlag, flag([](const Facts&, const Row&) { return true; }));
  add("causal_mask_of_flags_missing", "takes every request for not causal", "", kFlag,
      flag([](const Facts&, const Row&) { return false; }));
  add("causal_flag_inverted", "takes causal requests for those that are not, and the others for causal", "", kFlag,
      flag([](const Facts&, const Row& r) { return !r.causal; }));
  add("causal_flag_of_first_request", "gives every request the causal flag of the first", "", kFlag,
      flag([](const Facts& f, const Row&) -> bool { return f.causal[0]; }));
  add("causal_flag_of_next_request", "gives a request the causal flag of the next", "", kFlag,
      flag([](const Facts& f, const Row& r) -> bool { return f.causal[Facts::at((r.req + 1) % f.num_reqs)]; }));
  add("key_begin_ignored_in_causal_mask", "compares global query positions with keys counted from the shard's first", "", kBegin,
      causal_without_key_begin);
  add("key_begin_ignored_in_window", "measures the window from global query positions to keys counted from the shard's first", "",
      kBegin, window_without_key_begin);
  add("key_begin_ignored_in_alibi", "counts ALiBi distances from global query positions to keys counted from the shard's first",
      "", kBegin, alibi_without_key_begin);
  add("q_begin_ignored", "takes the rows of a request to stand at the end of its keys", "", "look for seq_len - query_len",
      q_begin_ignored);
  add("q_begin_one_early", "places rows one position too early", "", kBegin, q_begin_moved(-1));
  add("q_begin_one_late", "places rows one position too late", "", kBegin, q_begin_moved(1));
  add("q_begin_as_int32", "reads an int64 q_begin as int32", "", "read index tensors as the type that they have",
      q_begin_as_int32);
  add("rows_at_first_key", "aligns rows with the first key where there are more keys than rows, or fewer", "flash-attention 2.0",
      "libraries differ in where they align a mask that is not square: 2.1 moved it to the last key", rows_at_first_key);
  add("window_right_one_long", "lets rows see one key more to the right than window_right", "",
      "a key is visible if k <= q_pos + right", right_window(1));
  add("window_right_one_short", "lets rows see one key less to the right than window_right", "",
      "window_right does not count the own key", right_window(-1));
  add("window_right_ignored", "lets rows of requests that are not causal see all later keys", "",
      "look at the path that serves these rows", right_window_ignored);
  add("window_right_in_causal_requests", "lets causal rows see window_right later keys", "", kFlag, right_window_of_causal);
  add("window_only_in_causal_requests", "applies the sliding window to causal requests only", "", kFlag,
      left_window_of_causal_only);
  add("as_many_keys_as_rows", "stops at query_len keys in requests that are not causal", "",
      "the number of keys is seq_len, in cross attention any number", as_many_keys_as_rows);
  add("alibi_symmetric", "adds -slope * |k - q_pos|, as encoders with a symmetric ALiBi do", "",
      "slope_h * (k - q_pos), also for later keys", alibi_symmetric);
  add("no_key_gives_nan", "divides 0 by 0 for a row that sees no key", "", kEmpty,
      of_rows_without_keys([](RowResult& r) { std::fill(r.out.begin(), r.out.end(), kNaN); }));
  add("no_key_not_written", "leaves a row that sees no key unwritten", "", "every output row is written, without keys as 0",
      of_rows_without_keys([](RowResult& r) { r.written = false; }));
  add("no_key_lse_zero", "gives a row that sees no key lse 0, so that merging counts it as a key of score 0", "", kEmpty,
      empty_lse(0));
  add("no_key_lse_plus_infinity", "gives a row that sees no key lse +inf", "flash-attention 2", kEmpty, empty_lse(-kNegInf));
}

}  // namespace quire::faults_detail
