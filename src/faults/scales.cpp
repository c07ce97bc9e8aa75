// SPDX-License-Identifier: Apache-2.0
// k_scale and v_scale: real value = stored value * scale, for cached tokens only.
#include <cmath>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

const char* tensor(Side side) { return side == Side::key ? "k_scale" : "v_scale"; }

double scale(const Facts& f, Side side, std::int64_t head) { return Model(f).scale(side, Place{}, head); }

/// Does a scale that is `wrong(side, head)` differ from the right one anywhere where it matters?
bool differs(const Facts& f, Side side, const std::function<double(Side, std::int64_t)>& wrong) {
  if (!any_cached(f) || (side == Side::key && !scores_matter(f))) return false;
  for (std::int64_t h = 0; h < f.num_kv_heads; ++h)
    if (std::fabs(wrong(side, h) / scale(f, side, h) - 1) > 0.02) return true;
  return false;
}

std::function<void(Model&)> replaced(std::function<double(Side, std::int64_t)> wrong, bool key, bool value) {
  return [wrong = std::move(wrong), key, value](Model& m) {
    m.scale = [wrong, key, value, before = m.scale](Side side, const Place& place, std::int64_t head) {
      const bool changes = place.kind == Place::Kind::cache && (side == Side::key ? key : value);
      return changes ? wrong(side, head) : before(side, place, head);
    };
  };
}

Suspects dropped(const Evidence& e, Side side) {
  const Facts& f = e.facts;
  const auto wrong = [](Side, std::int64_t) { return 1.0; };
  const Tensor& t = side == Side::key ? f.cache.k_scale : f.cache.v_scale;
  if (!t.present()) return cannot_show(formatted("there is no {}", tensor(side)));
  if (!differs(f, side, wrong)) return cannot_show(formatted("{} is 1, or nothing that it scales matters", tensor(side)));
  return one(replaced(wrong, side == Side::key, side == Side::value));
}
Suspects k_dropped(const Evidence& e) { return dropped(e, Side::key); }
Suspects v_dropped(const Evidence& e) { return dropped(e, Side::value); }

/// Suspects with a wrong scale of K and V, of K alone and of V alone, as far as each changes a value.
Suspects either(const Evidence& e, const std::function<double(Side, std::int64_t)>& wrong, const char* why_not) {
  const bool k = differs(e.facts, Side::key, wrong), v = differs(e.facts, Side::value, wrong);
  Suspects s;
  if (k && v) s.list.push_back({"k_scale and v_scale", replaced(wrong, /*key=*/true, /*value=*/true), false});
  if (k) s.list.push_back({"k_scale", replaced(wrong, /*key=*/true, /*value=*/false), false});
  if (v) s.list.push_back({"v_scale", replaced(wrong, /*key=*/false, /*value=*/true), false});
  if (s.list.empty()) s.why_not = why_not;
  return s;
}

Suspects swapped_scales(const Evidence& e) {
  const Facts* f = &e.facts;
  const auto wrong = [f](Side side, std::int64_t h) { return scale(*f, side == Side::key ? Side::value : Side::key, h); };
  if (!differs(*f, Side::key, wrong) && !differs(*f, Side::value, wrong)) return cannot_show("k_scale and v_scale are the same");
  return one(replaced(wrong, /*key=*/true, /*value=*/true));
}

Suspects first_head(const Evidence& e) {
  return either(e, [f = &e.facts](Side side, std::int64_t) { return scale(*f, side, 0); }, "no scale differs from head to head");
}

Suspects inverted(const Evidence& e) {
  return either(e, [f = &e.facts](Side side, std::int64_t h) { return 1 / scale(*f, side, h); }, "all scales are 1");
}

Suspects twice(const Evidence& e) {
  return either(
      e,
      [f = &e.facts](Side side, std::int64_t h) {
        const double s = scale(*f, side, h);
        return s * s;
      },
      "all scales are 1");
}

Suspects on_new_rows(const Evidence& e) {
  const Facts* f = &e.facts;
  const auto unit = [](Side, std::int64_t) { return 1.0; };
  if (!any_new_row(*f)) return cannot_show("every key comes from the cache");
  if (!differs(*f, Side::key, unit) && !differs(*f, Side::value, unit)) return cannot_show("all scales are 1");
  return one([f](Model& m) {
    m.scale = [f, before = m.scale](Side side, const Place& place, std::int64_t head) {
      return place.kind == Place::Kind::new_row ? scale(*f, side, head) : before(side, place, head);
    };
  });
}

}  // namespace

void add_scales(std::vector<Fault>& list) {
  const auto add = [&](const char* id, const char* text, const char* seen, const char* next,
                       Suspects (*suspects)(const Evidence&)) {
    list.push_back({{id, "scales", text, seen, next}, Rank::mistake, suspects});
  };
  const char* const kPass = "print the scales that the kernel receives; a format that needs none still has one";
  add("k_scale_dropped", "drops k_scale", "flashinfer#1023", kPass, k_dropped);
  add("v_scale_dropped", "drops v_scale", "flashinfer#1023", kPass, v_dropped);
  add("scales_swapped", "swaps k_scale and v_scale", "", "compare the order of arguments at the call with the declaration",
      swapped_scales);
  add("scale_of_first_head", "uses the first element of per-head scales for every head", "",
      "look for a kernel that dereferences the scale pointer once", first_head);
  add("scales_inverted", "divides by the cache scales", "", "append divides by the scale, attention multiplies", inverted);
  add("scales_applied_twice", "applies the cache scales twice", "", "scale the elements, or scores and output, not both", twice);
  add("scales_on_new_rows", "applies the cache scales to key / value rows too", "", "key and value hold real values, unscaled",
      on_new_rows);
}

}  // namespace quire::faults_detail
