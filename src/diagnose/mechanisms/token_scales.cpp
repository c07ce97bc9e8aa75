// SPDX-License-Identifier: Apache-2.0
// Scales of tokens from another place than the codes: by the logical page, or by an order of axes that the scales do not have.
#include <algorithm>

#include "diagnose/mechanisms/mechanism.h"

namespace quire::diagnose_detail {
namespace {

/// The slot and the KV head whose scale is taken.
struct ScaleOf {
  Place place;
  std::int64_t head = 0;
};
using Taken = std::function<ScaleOf(const Facts&, const Row&, Place, std::int64_t head)>;

bool has_token_scales(const Facts& f, Side side) { return (side == Side::key ? f.cache.k_scale : f.cache.v_scale).rank == 3; }

/// The page's column in the table of the row's request, as a page id.
ScaleOf of_logical_page(const Facts& f, const Row& row, Place place, std::int64_t head) {
  std::int64_t column = 0;
  while (column < f.max_pages_per_req && f.page(row.req, column) != place.page) ++column;
  if (column < std::min(f.max_pages_per_req, f.num_pages)) place.page = column;
  return {place, head};
}

/// [page, slot, head] as if it were stored as [head, page, slot].
ScaleOf of_heads_first(const Facts& f, const Row&, Place place, std::int64_t head) {
  const std::int64_t flat = (head * f.num_pages + place.page) * f.page_size + place.offset;
  place.page = flat / (f.page_size * f.num_kv_heads);
  place.offset = flat / f.num_kv_heads % f.page_size;
  return {place, flat % f.num_kv_heads};
}

Plant taking(const Taken& taken, Sides sides) {
  return [taken, sides](Model& m) {
    m.vector = [taken, sides, truth = Model(*m.facts), before = m.vector](const Row& row, Side side, const Place& place,
                                                                          std::int64_t head, std::span<double> v) {
      if (before) before(row, side, place, head, v);
      if (!sides.has(side) || place.kind != Place::Kind::cache || !has_token_scales(*truth.facts, side)) return;
      const ScaleOf other = taken(*truth.facts, row, place, head);
      const double own = truth.scale(side, place, head);
      for (double& value : v) value *= own == 0 ? 0 : truth.scale(side, other.place, other.head) / own;
    };
  };
}

}  // namespace

void propose_token_scales(const Scene& scene, Proposals& list) {
  if (!has_token_scales(scene.facts, Side::key) && !has_token_scales(scene.facts, Side::value)) return;
  for (const auto& [detail, taken] : {std::pair<const char*, Taken>("those of the logical page", of_logical_page),
                                      {"as if they were stored as [head, page, slot]", of_heads_first}})
    for (const Sides sides : kSideSets)
      list.push_back({"page_contents", "takes scales of tokens from elsewhere (" + sides.text() + ")", detail,
                      "print the address of a scale beside page, offset and head; scales follow the slot, as K and V do", 0,
                      taking(taken, sides)});
}

}  // namespace quire::diagnose_detail
