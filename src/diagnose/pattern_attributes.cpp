// SPDX-License-Identifier: Apache-2.0
// Attributes of cells and what a condition asks of them.
#include <algorithm>

#include "diagnose/pattern.h"

namespace quire {

bool CellCondition::holds(std::int64_t value) const {
  switch (test) {
    case CellTest::is: return std::find(values.begin(), values.end(), value) != values.end();
    case CellTest::from: return value >= values[0];
    case CellTest::to: return value <= values[0];
    case CellTest::between: return value >= values[0] && value <= values[1];
    case CellTest::modulo: return std::find(values.begin() + 1, values.end(), value % values[0]) != values.end();
    default: return false;
  }
}

namespace diagnose_detail {

CellAttributes attributes_of(const Facts& f, std::int64_t token, std::int64_t head, bool with_pages) {
  CellAttributes cell;
  const auto set = [&](Attribute a, std::int64_t v) { cell.value[static_cast<std::size_t>(a)] = v; };
  const std::int64_t r = f.req_of(token), row = token - f.query_start_loc[Facts::at(r)];
  const std::int64_t q_pos = f.first_position(r) + row, num_keys = f.num_visible(r, q_pos);
  const auto [first, seen_end] = f.hull(r, q_pos);
  set(Attribute::request, r);
  set(Attribute::token, token);
  set(Attribute::row, row);
  set(Attribute::rows_from_end, f.query_len(r) - 1 - row);
  set(Attribute::query_len, f.query_len(r));
  set(Attribute::seq_len, f.seq_lens[Facts::at(r)]);
  set(Attribute::context_len, f.context_len(r));
  set(Attribute::q_pos, q_pos + f.key_begin[Facts::at(r)]);
  set(Attribute::num_keys, num_keys);
  set(Attribute::page_offset, remainder(q_pos, f.page_size));
  set(Attribute::num_pages, num_keys > 0 ? (seen_end - 1) / f.page_size - first / f.page_size + 1 : 0);
  set(Attribute::head, head);
  set(Attribute::kv_head, head / f.group);
  set(Attribute::head_in_group, head % f.group);
  if (!with_pages) return cell;
  const std::int64_t end = std::min(seen_end, f.cached_lens[Facts::at(r)]);
  for (std::int64_t c = first / f.page_size; first < end && c * f.page_size < end; ++c) cell.pages.push_back(f.page(r, c));
  return cell;
}

bool selects(const Pattern& pattern, const CellAttributes& cell) {
  return std::ranges::all_of(pattern.conditions, [&](const Condition& c) {
    if (c.attribute == Attribute::dim) return true;
    if (c.attribute != Attribute::page) return c.holds(cell.value[static_cast<std::size_t>(c.attribute)]);
    const bool reads = std::any_of(cell.pages.begin(), cell.pages.end(), [&](std::int64_t p) {
      return std::find(c.values.begin(), c.values.end(), p) != c.values.end();
    });
    return reads == (c.test == Test::reads);
  });
}

bool contains(const Facts& f, const Pattern& pattern, std::int64_t token, std::int64_t head) {
  const bool pages = std::any_of(pattern.conditions.begin(), pattern.conditions.end(),
                                 [](const Condition& c) { return c.attribute == Attribute::page; });
  return selects(pattern, attributes_of(f, token, head, pages));
}

}  // namespace diagnose_detail
}  // namespace quire
