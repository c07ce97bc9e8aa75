// SPDX-License-Identifier: Apache-2.0
// See hidden_keys.h. Positions behind the table's last page are no keys.
#include "diagnose/mechanisms/hidden_keys.h"

#include <algorithm>

#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {

std::int64_t HiddenKeys::first(const Facts& facts, const Row& row) const {
  return before ? 0 : std::max<std::int64_t>(facts.hull(row.req, row.q_pos).begin, 0);
}

std::vector<HiddenKeys> hidden_keys(const Facts& facts) {
  const std::int64_t page = facts.page_size;
  std::vector<HiddenKeys> list{
      {"up to seq_len", [](const Row& r) { return r.seq_len; }},
      {"up to the end of the last page", [page](const Row& r) { return semantics::round_up(r.seq_len, page); }},
      {"up to the end of the own page", [page](const Row& r) { return (r.q_pos + page) / page * page; }},
      {"before the window only", [f = &facts](const Row& r) { return f->last_key_of(r) + 1; }}};
  for (const std::int64_t tile : {16, 32, 64, 128})
    list.push_back({formatted("up to the end of the own tile of {}, within seq_len", tile),
                    [tile](const Row& r) { return std::min(r.seq_len, (r.q_pos + tile) / tile * tile); }});
  if (facts.windowed() || facts.options.attention_chunk)
    for (std::size_t i = 0, count = list.size(); i < count; ++i)
      list.push_back({list[i].text + ", and before the window", list[i].end, true});
  return list;
}

void plant_hidden_keys(Model& m, const HiddenKeys& hidden) {
  m.keys = [f = m.facts, hidden, visible = m.keys](const Row& row, std::vector<Key>& keys) {
    visible(row, keys);
    const std::int64_t last = std::min(hidden.end(row), f->max_pages_per_req * f->page_size) - 1;
    const auto seen = std::ssize(keys);
    for (std::int64_t k = hidden.first(*f, row); k <= last; ++k)
      if (!f->sees(row, k)) keys.push_back({k, 1});
    std::inplace_merge(keys.begin(), keys.begin() + seen, keys.end(),
                       [](const Key& a, const Key& b) { return a.position < b.position; });
  };
}

void plant_scores(Model& m, const HiddenKeys& hidden, double score) {
  plant_hidden_keys(m, hidden);
  m.score = [f = m.facts, score, own = m.score](const Model& model, const Row& row, std::int64_t k, double dot) {
    return f->sees(row, k) ? own(model, row, k, dot) : score;
  };
}

}  // namespace quire::diagnose_detail
