// SPDX-License-Identifier: Apache-2.0
// Beliefs and questions about a batch that several families share.
#include "faults/families.h"
#include "faults/visible.h"
#include "text/formatted.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace quire::faults_detail {

std::int64_t position_of(const Facts& f, const Row& row) {
  const std::int64_t first = f.batch.q_begin.present() ? f.first_position(row.req) : row.context_len();
  return first + row.token - row.first_token;
}

Row decode_row(const Facts& f, Row row, std::int64_t req) {
  row.written = true;
  row.req = req;
  row.query_len = 1;
  row.first_token = row.token;
  row.seq_len = f.seq_lens[Facts::at(req)];
  row.cached_len = f.cached_lens[Facts::at(req)];
  row.q_pos = position_of(f, row);
  return row;
}

Suspects starts_seen(const Clues& e, std::vector<std::int64_t> seen) {
  std::string detail = formatted("it sees query_lens {}", lengths_seen(seen));
  const auto believe = [f = &e.facts, seen = std::move(seen)](Row& row) {
    for (std::int64_t r = f->num_reqs - 1; r >= 0; --r) {
      const std::int64_t first = seen[Facts::at(r)], end = seen[Facts::at(r + 1)];
      if (row.token < first || row.token >= end) continue;
      row.req = r;
      row.first_token = first;
      row.query_len = end - first;
      row.seq_len = f->seq_lens[Facts::at(r)];
      row.cached_len = f->cached_lens[Facts::at(r)];
      row.q_pos = position_of(*f, row);
      return;
    }
    row.written = false;
  };
  return rows_only(row_changed(believe), std::move(detail));
}

Suspects seq_lens_seen(const Clues& e, std::vector<std::int64_t> seen) {
  std::string detail = formatted("it sees seq_lens {}", first_values(seen));
  const auto believe = [f = &e.facts, seen = std::move(seen)](Row& row) {
    row.seq_len = seen[Facts::at(row.req)];
    if (!f->batch.cached_lens.present()) row.cached_len = row.seq_len;
    row.q_pos = position_of(*f, row);
  };
  return rows_only(row_changed(believe), std::move(detail));
}

Find any_of(std::vector<std::pair<std::string, Find>> ways) {
  return [ways = std::move(ways)](const Clues& e) {
    Suspects all;
    std::string why_not;
    for (const auto& [words, find] : ways) {
      Suspects s = find(e);
      if (why_not.empty()) why_not = s.why_not;
      for (Suspect& one : s.list) {
        one.detail = one.detail.empty() ? words : formatted("{}, {}", words, one.detail);
        all.list.push_back(std::move(one));
      }
    }
    return std::move(all).or_why_not(why_not);
  };
}

Place beside(const Facts& f, Place place, std::int64_t by) {
  const std::int64_t slots = f.num_pages * f.page_size, slot = place.page * f.page_size + place.offset + by;
  place.page = (slot + slots) % slots / f.page_size;
  place.offset = (slot + slots) % slots % f.page_size;
  return place;
}

Plant row_changed(std::function<void(Row&)> change) {
  return function_changed(&Model::row, [change = std::move(change)](const auto& before, std::int64_t token, std::int64_t head) {
    Row row = before(token, head);
    change(row);
    return row;
  });
}

Plant keys_changed(std::function<void(const Row&, std::vector<Key>&)> change) {
  return function_changed(&Model::keys, [change = std::move(change)](const auto& before, const Row& row, std::vector<Key>& keys) {
    before(row, keys);
    change(row, keys);
  });
}

Plant keys_dropped(std::function<bool(const Row&, std::int64_t)> drop) {
  return keys_changed([drop = std::move(drop)](const Row& row, std::vector<Key>& keys) {
    std::erase_if(keys, [&](const Key& key) { return drop(row, key.position); });
  });
}

Plant keys_between(std::function<std::int64_t(const Row&)> first, std::function<std::int64_t(const Row&)> last) {
  return [first = std::move(first), last = std::move(last)](Model& m) {
    m.keys = [f = m.facts, first, last](const Row& row, std::vector<Key>& keys) {
      keys_within(*f, row, first(row), last(row), keys);
    };
  };
}

Plant cached_place_changed(ChangePlace change) {
  return function_changed(&Model::place, [change = std::move(change)](const auto& before, const Model& model, const Row& row,
                                                                      Side side, std::int64_t position) {
    Place place = before(model, row, side, position);
    if (place.kind == Place::Kind::cache) change(model, row, side, position, place);
    return place;
  });
}

Plant result_changed(std::function<void(const Row&, RowResult&)> change) {
  return function_changed(&Model::finish, [change = std::move(change)](const auto& before, const Row& row, RowResult& result) {
    before(row, result);
    change(row, result);
  });
}

namespace {

constexpr std::int64_t kRowsCompared = 4096;  // rows in which a difference is searched; bounds the time
constexpr double kPlainLseChange = 1e-2;      // change of an lse that shows; tolerances of f32 are far smaller

/// The largest change of an element, as largest_change() counts.
double change_of(const Facts& f, const RowResult& changed, const RowResult& right) {
  const DType type = f.batch.output.dtype;
  const double roundoff = type == DType::fp8_e4m3fn ? 0x1p-4
                          : type == DType::bf16     ? 0x1p-8
                          : type == DType::f16      ? 0x1p-11
                                                    : 0x1p-16;
  double largest = 0;
  for (std::size_t d = 0; d < right.out.size(); ++d) {
    const double was = right.out[d], is = changed.out[d];
    if (std::isnan(was)) continue;
    const double change = std::fabs(is - was) / (roundoff * std::max(std::fabs(was), 1e-3));
    largest = std::isnan(change) ? std::numeric_limits<double>::infinity() : std::max(largest, change);
  }
  return largest;
}

/// Whether one of the first rows folds in other keys than the truth does.
bool changes_a_row(const Facts& f, const Plant& plant) {
  const Model truth(f);
  Model wrong(f);
  plant(wrong);
  std::vector<Key> right, other;
  for (std::int64_t token = 0; token < std::min(f.num_tokens, kRowsCompared); ++token) {
    right.clear();
    other.clear();
    truth.keys(truth.row(token, 0), right);
    wrong.keys(wrong.row(token, 0), other);
    if (!std::equal(right.begin(), right.end(), other.begin(), other.end(),
                    [](const Key& x, const Key& y) { return x.position == y.position && x.weight == y.weight; }))
      return true;
  }
  return false;
}

}  // namespace

bool shows(const Facts& f, const Plant& plant) {
  const Model truth(f);
  Model wrong(f);
  plant(wrong);
  for (std::int64_t token = 0; token < std::min(f.num_tokens, kRowsCompared); ++token)
    for (std::int64_t head = 0; head < f.num_q_heads; ++head) {
      const RowHead at{token, head};
      const RowResult is = std::move(evaluate(wrong, std::span(&at, 1)).front());
      const RowResult was = std::move(evaluate(truth, std::span(&at, 1)).front());
      const bool lse = f.batch.lse.present() && !(is.lse == was.lse) && !(std::fabs(is.lse - was.lse) < kPlainLseChange);
      if (!is.written || lse || change_of(f, is, was) >= kPlainChange) return true;
    }
  return false;
}

Suspects if_it_changes_a_row(const Facts& f, Plant plant, const char* why_not) {
  return changes_a_row(f, plant) ? one(std::move(plant)) : cannot_show(why_not);
}

Suspects rows_only_if_changed(const Facts& f, std::function<void(Row&)> change) {
  Plant plant = row_changed(std::move(change));
  return changes_a_row(f, plant) ? rows_only(std::move(plant)) : cannot_show(kSameKeys);
}

std::int64_t longest(const Facts& f) {
  std::int64_t most = 0;
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    if (f.query_len(r) > 0) most = std::max(most, f.seq_lens[Facts::at(r)]);
  return most;
}

Range cached_range(const Facts& f, std::int64_t req) {
  const std::int64_t end = f.batch.key.present() ? f.cached_lens[Facts::at(req)] : f.seq_lens[Facts::at(req)];
  const std::vector<Span> seen = f.reach(req);
  if (seen.empty()) return {};
  return {seen.front().begin, std::min(seen.back().end, end) - 1};
}

bool scores_matter(const Facts& f) {
  return any_row(
      f, [&](std::int64_t r, std::int64_t q_pos) { return f.num_visible(r, q_pos) > (f.options.sinks.present() ? 0 : 1); });
}

std::int64_t first_seen(const Facts& f, std::int64_t req) {
  const std::vector<Span> seen = f.reach(req);
  return seen.empty() ? f.seq_lens[Facts::at(req)] : seen.front().begin;
}

bool any_cached(const Facts& f) {
  return any_request(f, [&](std::int64_t r) { return !cached_range(f, r).empty(); });
}

bool any_new_row(const Facts& f) {
  return f.batch.key.present() &&
         any_request(f, [&](std::int64_t r) { return f.cached_lens[Facts::at(r)] < f.seq_lens[Facts::at(r)]; });
}

std::vector<std::int64_t> requests_to_try(const Clues& e) {
  std::vector<std::int64_t> order;
  const auto add = [&](std::int64_t r) {
    const bool known = std::find(order.begin(), order.end(), r) != order.end();
    if (!known && order.size() < kMaxCandidates && e.facts.query_len(r) > 0) order.push_back(r);
  };
  for (const Sample& sample : e.wrong) add(e.facts.req_of(sample.token));
  for (std::int64_t r = 0; r < e.facts.num_reqs && order.size() < kMaxCandidates; ++r) add(r);
  return order;
}

std::vector<std::int64_t> shorter_dims(std::int64_t dims) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t cut = floor_power_of_two(std::max<std::int64_t>(dims - 1, 1)); cut >= 1; cut /= 2) cuts.push_back(cut);
  for (const std::int64_t multiple : {8, 16, 32, 64}) {
    const std::int64_t cut = dims / multiple * multiple;
    if (cut > 0 && cut < dims && std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
  }
  return cuts;
}

std::int64_t floor_power_of_two(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n)));
}

std::int64_t ceil_power_of_two(std::int64_t n) { return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n))); }

double largest_change(const Facts& f, const Model& planted) {
  std::vector<RowHead> rows;
  const std::int64_t step = std::max<std::int64_t>(1, f.num_q_heads / 8);
  for (const std::int64_t token : {std::int64_t{0}, f.num_tokens / 2, f.num_tokens - 1})
    for (std::int64_t head = 0; head < f.num_q_heads; head += step)
      if (token >= 0 && token < f.num_tokens) rows.push_back({token, head});
  const std::vector<RowResult> changed = evaluate(planted, rows), right = evaluate(Model(f), rows);
  double largest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) largest = std::max(largest, change_of(f, changed[i], right[i]));
  return largest;
}

std::string first_values(const std::vector<std::int64_t>& values) {
  std::string text;
  for (std::size_t i = 0; i < values.size() && i < 10; ++i) text += formatted("{}{}", i > 0 ? " " : "", values[i]);
  return values.size() > 10 ? text + " ..." : text;
}

std::string lengths_seen(const std::vector<std::int64_t>& query_start_loc) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i + 1 < query_start_loc.size(); ++i) lengths.push_back(query_start_loc[i + 1] - query_start_loc[i]);
  return first_values(lengths);
}

std::int64_t word_of(const Tensor& t, std::int64_t i) {
  std::int32_t value = 0;
  std::memcpy(&value, static_cast<const char*>(t.data) + i * 4, sizeof value);
  return value;
}

Suspects if_it_changes_by(const Clues& e, double least, Plant plant, const char* why_not) {
  Model planted(e.facts);
  plant(planted);
  return e.wrong.empty() && largest_change(e.facts, planted) < least ? cannot_show(why_not) : one(std::move(plant));
}

std::array<std::int64_t, 5> contiguous_strides(CacheLayout layout, Side side, std::int64_t heads, std::int64_t page_size,
                                               std::int64_t head_dim, std::int64_t x) {
  const std::int64_t page = heads * page_size * head_dim;
  switch (layout) {
    case CacheLayout::nhd: return {page, heads * head_dim, head_dim, 1, 0};
    case CacheLayout::hnd: return {page, page_size * head_dim, head_dim, 1, 0};
    case CacheLayout::packed: break;
  }
  if (side == Side::value) return {page, head_dim * page_size, page_size, 1, 0};
  return {page, head_dim * page_size, page_size * x, x, 1};
}

std::string name_of(DType dtype) { return std::string(name(dtype)); }

}  // namespace quire::faults_detail
