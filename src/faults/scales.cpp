// SPDX-License-Identifier: Apache-2.0
// k_scale and v_scale: real value = stored value * scale, for cached tokens only. A scale is that of the tensor, of a KV head, or
// of a token and KV head.
#include <cmath>
#include <functional>
#include <memory>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

const char* name_of(Side side) { return side == Side::key ? "k_scale" : "v_scale"; }

const Tensor& tensor(const Facts& f, Side side) { return side == Side::key ? f.cache.k_scale : f.cache.v_scale; }
bool of_tokens(const Facts& f, Side side) { return tensor(f, side).rank == 3; }

/// The scale that a fault takes for that of a place.
using Wrong = std::function<double(const Model& truth, Side, const Place&, std::int64_t head)>;

/// Calls visit(place, head) for cached tokens that some row takes, in every KV head; for kMost tokens at most.
template <typename Visit>
void for_each_cached(const Facts& f, const Model& truth, Visit&& visit) {
  constexpr std::int64_t kMost = 4096;
  std::int64_t seen = 0;
  for (std::int64_t r = 0; r < f.num_reqs; ++r) {
    const Range range = cached_range(f, r);
    if (range.empty()) continue;
    const Row row = truth.row(f.query_start_loc[Facts::at(r)], 0);
    for (std::int64_t k = range.first; k <= range.last && seen < kMost; ++k, ++seen)
      for (std::int64_t h = 0; h < f.num_kv_heads; ++h) visit(truth.place(truth, row, Side::key, k), h);
  }
}

/// Does a wrong scale differ from the right one where it matters? One head is enough where heads have scales, and one token where
/// an output is looked at; of a mutant's tokens, a quarter, plainly.
bool differs(const Facts& f, Side side, const Wrong& wrong, bool mutant = true) {
  if (!any_cached(f) || (side == Side::key && !scores_matter(f))) return false;
  const Model truth(f);
  const auto off = [&](const Place& place, std::int64_t h) {
    return std::fabs(wrong(truth, side, place, h) / truth.scale(side, place, h) - 1);
  };
  std::int64_t all = 0, plainly = 0;
  bool any = false;
  for_each_cached(f, truth, [&](const Place& place, std::int64_t h) {
    const double error = off(place, h);
    any = any || !(error <= 0.02);  // NaN differs
    plainly += error <= 0.2 ? 0 : 1;
    ++all;
  });
  const bool tokens = of_tokens(f, Side::key) || of_tokens(f, Side::value);
  return tokens && mutant ? 4 * plainly > all : any;
}

Plant replaced(const Facts& f, const Wrong& wrong, bool key, bool value) {
  return [&f, wrong, key, value](Model& m) {
    m.scale = [truth = std::make_shared<Model>(f), wrong, key, value, before = m.scale](Side side, const Place& place,
                                                                                        std::int64_t head) {
      const bool changes = place.kind == Place::Kind::cache && (side == Side::key ? key : value);
      return changes ? wrong(*truth, side, place, head) : before(side, place, head);
    };
  };
}

double one_everywhere(const Model&, Side, const Place&, std::int64_t) { return 1; }

Suspects dropped(const Clues& e, Side side) {
  const Facts& f = e.facts;
  if (!tensor(f, side).present()) return cannot_show(formatted("there is no {}", name_of(side)));
  if (!differs(f, side, one_everywhere))
    return cannot_show(formatted("{} is 1, or nothing that it scales matters", name_of(side)));
  return one(replaced(f, one_everywhere, side == Side::key, side == Side::value));
}

/// Suspects with a wrong scale of K and V, of K alone and of V alone, as far as each changes a value.
Find either(const Wrong& wrong, const char* why_not) {
  return [=](const Clues& e) {
    const Facts& f = e.facts;
    const bool mutant = e.wrong.empty();
    const bool k = differs(f, Side::key, wrong, mutant), v = differs(f, Side::value, wrong, mutant);
    Suspects s;
    if (k && v) s.list.push_back({"k_scale and v_scale", replaced(f, wrong, /*key=*/true, /*value=*/true)});
    if (k) s.list.push_back({"k_scale", replaced(f, wrong, /*key=*/true, /*value=*/false)});
    if (v) s.list.push_back({"v_scale", replaced(f, wrong, /*key=*/false, /*value=*/true)});
    return std::move(s).or_why_not(why_not);
  };
}

Suspects swapped_scales(const Clues& e) {
  const Wrong wrong = [](const Model& truth, Side side, const Place& place, std::int64_t h) {
    return truth.scale(side == Side::key ? Side::value : Side::key, place, h);
  };
  if (!differs(e.facts, Side::key, wrong) && !differs(e.facts, Side::value, wrong))
    return cannot_show("k_scale and v_scale are the same");
  return one(replaced(e.facts, wrong, /*key=*/true, /*value=*/true));
}

/// A wrong place of scales that tokens have; other scales have none. Slots that nobody wrote may hold NaN, which shows.
Find elsewhere(const char* why_not, const Wrong& scale) {
  return [=](const Clues& e) {
    const Facts* f = &e.facts;
    if (!of_tokens(*f, Side::key) && !of_tokens(*f, Side::value)) return cannot_show("tokens have no scales of their own");
    const auto of_slots = [f, scale](const Model& truth, Side side, const Place& place, std::int64_t h) {
      return of_tokens(*f, side) ? scale(truth, side, place, h) : truth.scale(side, place, h);
    };
    return either(of_slots, why_not)(e);
  };
}

/// Suspects of a cache that has one scale for all tokens.
Suspects of_any_token(const Clues& e) {
  Place last;
  std::int64_t found = 0;
  for_each_cached(e.facts, Model(e.facts), [&](const Place& place, std::int64_t) { last = place, ++found; });
  if (found == 0) return cannot_show(kNotCached);
  return elsewhere("all tokens have the same scales",
                   [last](const Model& truth, Side side, const Place&, std::int64_t h) { return truth.scale(side, last, h); })(e);
}

Suspects on_new_rows(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_new_row(*f)) return cannot_show("every key comes from the cache");
  if (of_tokens(*f, Side::key) || of_tokens(*f, Side::value))
    return cannot_show("scales belong to slots, and new rows have none");
  if (!differs(*f, Side::key, one_everywhere) && !differs(*f, Side::value, one_everywhere))
    return cannot_show("all scales are 1");
  return one(function_changed(
      &Model::scale, [truth = std::make_shared<Model>(*f)](const auto& before, Side side, const Place& place, std::int64_t head) {
        return place.kind == Place::Kind::new_row ? truth->scale(side, Place{}, head) : before(side, place, head);
      }));
}

void add_cache_scales(const Family& add) {
  const char* const kPass = "print the scales that the kernel receives; a format that needs none still has one";
  add("k_scale_dropped", "drops k_scale", "flashinfer#1023", kPass, [](const Clues& e) { return dropped(e, Side::key); });
  add("v_scale_dropped", "drops v_scale", "flashinfer#1023", kPass, [](const Clues& e) { return dropped(e, Side::value); });
  add("scales_swapped", "swaps k_scale and v_scale", "", "compare the order of arguments at the call with the declaration",
      swapped_scales);
  add("scale_of_first_head", "uses the first element of per-head scales for every head", "",
      "look for a kernel that dereferences the scale pointer once",
      either([](const Model& truth, Side side, const Place& place, std::int64_t) { return truth.scale(side, place, 0); },
             "no scale differs from head to head"));
  add("scales_inverted", "divides by the cache scales", "", "append divides by the scale, attention multiplies",
      either([](const Model& truth, Side side, const Place& place, std::int64_t h) { return 1 / truth.scale(side, place, h); },
             "all scales are 1"));
  add("scales_applied_twice", "applies the cache scales twice", "", "scale the elements, or scores and output, not both",
      either([](const Model& truth, Side side, const Place& place,
                std::int64_t h) { return truth.scale(side, place, h) * truth.scale(side, place, h); },
             "all scales are 1"));
  add("scales_on_new_rows", "applies the cache scales to key / value rows too", "", "key and value hold real values, unscaled",
      on_new_rows);
}

void add_token_scales(const Family& add) {
  const char* const kSlot = "print the address of a scale beside page, offset and head; scales follow the slot, as K and V do";
  const char* const kSame = "neighbouring tokens have the same scales";
  const auto in_memory = [kSame](std::int64_t by) {
    return elsewhere(kSame, [by](const Model& truth, Side side, const Place& place, std::int64_t h) {
      return truth.scale(side, beside(*truth.facts, place, by), h);
    });
  };
  add("token_scale_of_neighbour", "uses the scale of a neighbouring token", "", kSlot,
      any_of({{"the token before, within its page", elsewhere(kSame,
                                                              [](const Model& truth, Side side, Place place, std::int64_t h) {
                                                                place.offset = place.offset > 0 ? place.offset - 1
                                                                                                : truth.facts->page_size - 1;
                                                                return truth.scale(side, place, h);
                                                              })},
              {"the slot before", in_memory(-1)},
              {"the slot behind", in_memory(1)}}));
  add("token_scale_of_page_start", "uses the scale of the first token of a page for all of its tokens", "", kSlot,
      elsewhere("all tokens of a page have the same scales", [](const Model& truth, Side side, Place place, std::int64_t h) {
        place.offset = 0;
        return truth.scale(side, place, h);
      }));
  add("token_scales_of_first_page", "reads the scales of the first page for every page", "",
      "look for a kernel that forgets the page's stride in the scales",
      elsewhere("all pages have the same scales", [](const Model& truth, Side side, Place place, std::int64_t h) {
        place.page = truth.facts->page(truth.facts->req_of(0), 0);
        return truth.scale(side, place, h);
      }));
  add("token_scales_transposed", "reads scales of [page_size, num_kv_heads] as [num_kv_heads, page_size]", "",
      "pass the strides of the scales; they need not be those of the cache's layout",
      elsewhere("heads or tokens of a page have the same scales", [](const Model& truth, Side side, Place place, std::int64_t h) {
        const std::int64_t element = h * truth.facts->page_size + place.offset, heads = truth.facts->num_kv_heads;
        place.offset = element / heads;
        return truth.scale(side, place, element % heads);
      }));
  add("one_token_scale_for_all", "uses the scale of the newest token for every token", "",
      "look for a cache with one scale that append overwrites", of_any_token);
  add("token_scales_of_keys", "uses the scales of keys for values", "",
      "compare the order of arguments at the call with the declaration",
      elsewhere("k_scale and v_scale are the same",
                [](const Model& truth, Side, const Place& place, std::int64_t h) { return truth.scale(Side::key, place, h); }));
}

}  // namespace

void add_scales(std::vector<Fault>& list) {
  add_cache_scales({list, "scales"});
  add_token_scales({list, "token_scales"});
}

}  // namespace quire::faults_detail
