// SPDX-License-Identifier: Apache-2.0
// Faults in the set of positions that a row folds in: keys left out, keys past the end, keys counted twice.
#include <algorithm>
#include <cmath>

#include "faults/families.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

constexpr const char* kNoRows = "the batch has no rows";

Plant without(std::function<bool(const Row&, std::int64_t)> drop) { return keys_dropped(drop); }

bool some_length(const Facts& f, const std::function<bool(std::int64_t seq_len)>& holds) {
  return any_request(f, [&](std::int64_t r) { return holds(f.seq_lens[Facts::at(r)]); });
}

Suspects last_keys(const Clues& e) {
  const std::int64_t most = longest(e.facts);
  if (most < 2) return cannot_show(e.facts.num_tokens == 0 ? kNoRows : "every sequence has one token");
  std::vector<std::int64_t> counts = {2, 1, 3, 4, 5, 6, 7};
  for (std::int64_t n = 8; n <= 256; n *= 2) counts.push_back(n);
  counts.push_back(e.facts.page_size);
  Suspects s;
  for (const std::int64_t n : counts)
    if (n < most)
      s.list.push_back({formatted("the last {}", n), without([n](const Row& r, std::int64_t k) { return k >= r.seq_len - n; })});
  return std::move(s).or_why_not("every sequence has one token");
}

Suspects first_key(const Clues& e) {
  if (!any_request(e.facts, [&](std::int64_t r) { return first_seen(e.facts, r) == 0; }))
    return cannot_show(e.facts.num_tokens == 0 ? kNoRows : "the window hides position 0 from every row");
  return one(without([](const Row&, std::int64_t k) { return k == 0; }));
}

Suspects partial_page(const Clues& e) {
  const std::int64_t page = e.facts.page_size;
  if (!some_length(e.facts, [page](std::int64_t n) { return n % page != 0; }))
    return cannot_show(formatted("every seq_len is a multiple of the page_size {}", page));
  return one(without([page](const Row& r, std::int64_t k) { return k >= r.seq_len / page * page; }));
}

Suspects partial_context_page(const Clues& e) {
  const Facts& f = e.facts;
  const std::int64_t page = f.page_size;
  const auto cut = [&](std::int64_t r) { return f.context_len(r) % page != 0 && first_seen(f, r) < f.context_len(r); };
  if (!any_request(f, cut)) return cannot_show(formatted("every visible context is a multiple of the page_size {}", page));
  return one(without([page](const Row& r, std::int64_t k) { return k < r.context_len() && k >= r.context_len() / page * page; }));
}

/// A loop over seq_len / tile tiles of keys.
Suspects partial_tile_tokens(const Clues& e) {
  Suspects s;
  for (const std::int64_t tile : {32, 16, 8, 4, 64, 128}) {
    if (tile == e.facts.page_size) continue;
    if (!some_length(e.facts, [tile](std::int64_t n) { return n > tile && n % tile != 0; })) continue;
    s.list.push_back({formatted("tiles of {} keys", tile),
                      without([tile](const Row& r, std::int64_t k) { return k >= r.seq_len / tile * tile; })});
  }
  return std::move(s).or_why_not("no sequence ends in a partial tile of 4 to 128 keys");
}

Suspects max_seq_len(const Clues& e) {
  const std::int64_t most = longest(e.facts);
  if (most < 2) return cannot_show(e.facts.num_tokens == 0 ? kNoRows : "every sequence has one token");
  Suspects s;
  for (std::int64_t cap = floor_power_of_two(most - 1); cap >= 1 && s.list.size() < 16; cap /= 2)
    s.list.push_back(
        {formatted("max_seq_len {} instead of {}", cap, most), without([cap](const Row&, std::int64_t k) { return k >= cap; })});
  return s;
}

Suspects every_second(const Clues& e) {
  if (longest(e.facts) < 2) return cannot_show(e.facts.num_tokens == 0 ? kNoRows : "every sequence has one token");
  Suspects s;
  for (const std::int64_t odd : {1, 0})
    s.list.push_back(
        {odd == 1 ? "odd positions" : "even positions", without([odd](const Row&, std::int64_t k) { return k % 2 == odd; })});
  return s;
}

Suspects slot_of_page(const Clues& e) {
  const Facts& f = e.facts;
  const std::int64_t page = f.page_size;
  if (page == 1) return cannot_show("a page holds one token");
  Suspects s;
  for (const std::int64_t slot : {page - 1, std::int64_t{0}}) {
    const auto sees = [&](std::int64_t r) {
      const std::int64_t first = first_seen(f, r);
      return first + ((slot - first) % page + page) % page < f.seq_lens[Facts::at(r)];
    };
    if (!any_request(f, sees)) continue;
    s.list.push_back(
        {slot == 0 ? "the first" : "the last", without([page, slot](const Row&, std::int64_t k) { return k % page == slot; })});
  }
  return std::move(s).or_why_not("no row sees the first or last slot of a page");
}

/// Positions past seq_len up to the end of its page, for rows at the end of a cached sequence.
std::int64_t tail_end(const Facts& f, const Row& r) {
  return r.cached_len == r.seq_len && r.q_pos < r.seq_len ? semantics::round_up(r.seq_len, f.page_size) : r.seq_len;
}
bool has_tail(const Facts& f) {
  return any_request(f, [&](std::int64_t r) {
    return f.cached_lens[Facts::at(r)] == f.seq_lens[Facts::at(r)] && f.seq_lens[Facts::at(r)] % f.page_size != 0;
  });
}

Suspects tail_read(const Clues& e) {
  const Facts* f = &e.facts;
  if (!has_tail(*f)) return cannot_show("no cached sequence ends inside a page");
  Suspects s;
  for (const std::int64_t most : {f->page_size, std::int64_t{1}, std::int64_t{2}, std::int64_t{3}})
    s.list.push_back({most == f->page_size ? "to the end of the page" : formatted("up to {} keys past the end", most),
                      keys_changed([f, most](const Row& r, std::vector<Key>& keys) {
                        if (!keys.empty() && keys.back().position == r.seq_len - 1)
                          append_keys(r.seq_len, std::min(tail_end(*f, r), r.seq_len + most) - 1, keys);
                      })});
  return s;
}

/// Does V hold NaN or infinity at a position of [first, last] of the request? Looks at no more than 64 positions.
bool non_finite(const Facts& f, std::int64_t req, std::int64_t first, std::int64_t last) {
  const Model m(f);
  std::vector<std::int64_t> scratch;
  std::vector<double> v(Facts::at(f.v_head_dim));
  Row row = m.row(f.query_start_loc[Facts::at(req)], 0);
  for (std::int64_t head = 0; head < f.num_q_heads; head += f.group)
    for (std::int64_t k = last; k >= first && k > last - 64; --k) {
      row.query_head = head;
      load_vector(m, row, Side::value, k, scratch, v);
      if (std::any_of(v.begin(), v.end(), [](double value) { return !std::isfinite(value); })) return true;
    }
  return false;
}

Suspects tail_multiplied(const Clues& e) {
  const Facts* f = &e.facts;
  if (!has_tail(*f)) return cannot_show("no cached sequence ends inside a page");
  const auto shows = [f](std::int64_t r) {
    const std::int64_t n = f->seq_lens[Facts::at(r)];
    return f->cached_lens[Facts::at(r)] == n && n % f->page_size != 0 &&
           non_finite(*f, r, n, semantics::round_up(n, f->page_size) - 1);
  };
  if (!any_request(*f, shows)) return cannot_show("the page tails hold no NaN and no infinity: 0 * V is 0");
  return one(keys_changed([f](const Row& r, std::vector<Key>& keys) {
    const bool in_last_page = !keys.empty() && keys.back().position / f->page_size == (r.seq_len - 1) / f->page_size;
    for (std::int64_t k = r.seq_len; in_last_page && k < tail_end(*f, r); ++k) keys.push_back({k, 0});
  }));
}

Suspects left_of_window_multiplied(const Clues& e) {
  const Facts* f = &e.facts;
  if (!f->windowed()) return cannot_show("no sliding window is set");
  const auto shows = [f](std::int64_t r) {
    const std::int64_t end = std::min(first_seen(*f, r), f->cached_lens[Facts::at(r)]);
    return end > 0 && (non_finite(*f, r, end - 1, end - 1) || non_finite(*f, r, 0, end - 1));
  };
  if (!any_request(*f, shows)) return cannot_show("no NaN and no infinity stands left of a window: 0 * V is 0");
  return one(function_changed(&Model::keys, [f](const auto& before, const Row& r, std::vector<Key>& keys) {
    before(r, keys);
    std::vector<Key> all;
    auto seen = keys.begin();
    for (std::int64_t k = 0; k < std::min(f->first_key(r.q_pos), r.cached_len); ++k)
      seen != keys.end() && seen->position == k ? all.push_back(*seen++) : all.push_back({k, 0});
    all.insert(all.end(), seen, keys.end());
    keys = std::move(all);
  }));
}

Suspects ignores_new(const Clues& e) {
  if (!any_new_row(e.facts)) return cannot_show("every key comes from the cache");
  return one(without([](const Row& r, std::int64_t k) { return k >= r.cached_len && k < r.seq_len; }));
}

Suspects counts_new_twice(const Clues& e) {
  const Facts& f = e.facts;
  const bool sees_context = any_request(f, [&](std::int64_t r) { return first_seen(f, r) < f.context_len(r); });
  if (!sees_context && !f.options.sinks.present())
    return cannot_show("no row sees a context: doubling every key changes nothing");
  return one(keys_changed([](const Row& r, std::vector<Key>& keys) {
    for (Key& key : keys)
      if (key.position >= r.context_len() && key.position < r.seq_len) key.weight *= 2;
  }));
}

}  // namespace

void add_tokens(std::vector<Fault>& list) {
  const Family add{list, "tokens"};
  const char* const kCount = "compare the number of keys that the kernel loops over with seq_len; round tiles and pages up";
  add("last_keys_missing", "leaves out the last keys of every sequence", "", kCount, last_keys, Rank::symptom);
  add("first_key_missing", "leaves out position 0", "", "look at the lower bound of the loop over keys", first_key);
  add("partial_last_page_skipped", "leaves out the last, partial page of every sequence", "", kCount, partial_page);
  add("partial_context_page_skipped", "leaves out the last, partial page of every context", "", kCount, partial_context_page);
  add("partial_key_tile_skipped", "leaves out the last, partial tile of keys of every sequence", "", kCount, partial_tile_tokens);
  add("max_seq_len_too_small", "leaves out keys past a max_seq_len that is too small", "ROCm/vllm#22, vllm#53384",
      "compare the max_seq_len that was passed (or captured in a graph) with the largest seq_len", max_seq_len);
  add("every_second_key_skipped", "leaves out every second key", "", "look at the stride of the loop over keys", every_second);
  add("slot_of_each_page_skipped", "leaves out one slot of every page", "", "look at the loop over the slots of a page",
      slot_of_page);
  add("page_tail_read", "reads the page of the last key beyond seq_len", "vllm#641, vllm#53856",
      "mask k < seq_len inside the last page too; what stands there depends on who used the page before", tail_read);
  add("masked_tail_multiplied", "masks the page tail by weight 0 and multiplies it (0 * NaN)", "vllm#936, vllm#47305",
      "do not load keys past seq_len, or select before the product; clearing pages only hides it", tail_multiplied,
      Rank::mechanism);
  add("out_of_window_multiplied", "masks keys left of the window by weight 0 and multiplies them (0 * NaN)",
      "vllm#30887, vllm#53628", "do not load keys left of the window, or select before the product", left_of_window_multiplied,
      Rank::mechanism);
  add("new_rows_ignored", "ignores the new keys in key / value", "",
      "cached_lens says how many tokens the cache holds; the rest is in key / value", ignores_new);
  add("new_keys_counted_twice", "counts the new keys twice, from the cache and from key / value", "",
      "stop the loop over the cache at context_len if the chunk's own keys follow", counts_new_twice);
}

}  // namespace quire::faults_detail
