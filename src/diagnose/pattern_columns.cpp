// SPDX-License-Identifier: Apache-2.0
// Columns are computed once per diagnosis; every search step is a histogram over them.
#include "diagnose/pattern_columns.h"
#include "semantics/ceil_div.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace quire::diagnose_detail {
namespace {

// Error / tolerance. A right cell this near its tolerance may belong to a fault that hardly shows there, so it is weak evidence.
// Found by trial on the development captures: less makes evidence of right cells weak everywhere, more takes cells in which the
// fault hardly shows for exceptions to its rule.
constexpr double kNear = 0.5;
// Evidence is counted in quarters of a cell, in 8 bits. kQuarters: of a clear cell, one whole. kWeak: of a weak one, a quarter of
// a clear cell; found by trial likewise.
constexpr std::uint8_t kWeak = 1;
constexpr std::uint8_t kQuarters = 4;
constexpr double kClearColumn = kQuarters;
// Tiles that kernels are built of, beside the page.
constexpr std::int64_t kTiles[] = {128, 64, 32, 16, 8, 4, 2};
constexpr Attribute kTiled[] = {Attribute::token,   Attribute::row,      Attribute::q_pos,
                                Attribute::seq_len, Attribute::num_keys, Attribute::context_len};

Column ranked(Attribute attribute, const std::vector<std::int64_t>& of_row) {
  Column column;
  column.attribute = attribute;
  column.values = of_row;
  std::sort(column.values.begin(), column.values.end());
  column.values.erase(std::unique(column.values.begin(), column.values.end()), column.values.end());
  const std::int64_t low = column.values.empty() ? 0 : column.values.front();
  const std::int64_t high = column.values.empty() ? 0 : column.values.back();
  column.rank.reserve(of_row.size());
  std::vector<std::uint32_t> direct;  // dense values are looked up, others searched
  if (high - low < 1 << 20) {
    direct.resize(Facts::at(high - low + 1));
    for (std::size_t i = 0; i < column.values.size(); ++i)
      direct[Facts::at(column.values[i] - low)] = static_cast<std::uint32_t>(i);
  }
  for (const std::int64_t v : of_row)
    column.rank.push_back(!direct.empty()
                              ? direct[Facts::at(v - low)]
                              : static_cast<std::uint32_t>(std::lower_bound(column.values.begin(), column.values.end(), v) -
                                                           column.values.begin()));
  return column;
}

/// Remainders that say something: two periods at least, and not what another attribute says.
bool says_something(const Facts& f, Attribute attribute, std::int64_t modulus, std::int64_t range) {
  if (range < 2 * modulus || modulus < 2) return false;
  return attribute != Attribute::num_keys ? attribute != Attribute::q_pos || modulus != f.page_size : f.windowed();
}

void add_remainders(const Facts& f, std::vector<Column>& numbers, Attribute attribute, const std::vector<std::int64_t>& of_row) {
  const auto [low, high] = std::minmax_element(of_row.begin(), of_row.end());
  std::vector<std::int64_t> moduli(std::begin(kTiles), std::end(kTiles));
  if (std::find(moduli.begin(), moduli.end(), f.page_size) == moduli.end()) moduli.push_back(f.page_size);
  std::size_t multiple = Column::kNone;
  for (const std::int64_t m : moduli) {
    if (of_row.empty() || !says_something(f, attribute, m, *high - *low)) continue;
    Column column;
    column.attribute = attribute;
    column.modulus = m;
    if (multiple != Column::kNone && numbers[multiple].modulus % m == 0) column.multiple_in = multiple;
    column.values.resize(Facts::at(m));
    std::iota(column.values.begin(), column.values.end(), 0);
    column.rank.reserve(of_row.size());
    for (const std::int64_t v : of_row) column.rank.push_back(static_cast<std::uint32_t>(remainder(v, m)));
    numbers.push_back(std::move(column));
    multiple = numbers.size() - 1;
  }
}

bool is_of_request(Attribute a) {
  return a == Attribute::request || a == Attribute::query_len || a == Attribute::seq_len || a == Attribute::context_len;
}

void note_requests(std::vector<Column>& numbers) {
  for (Column& column : numbers) {
    column.of_request = is_of_request(column.attribute);
    if (!column.of_request) continue;
    column.rank_of_request.resize(numbers[0].values.size());
    for (std::size_t t = 0; t < column.rank.size(); ++t) column.rank_of_request[numbers[0].rank[t]] = column.rank[t];
  }
}

void add_pages(const Facts& f, const std::vector<std::array<std::int64_t, kAttributes>>& rows, PageColumns& pages) {
  std::vector<std::int64_t> end_column(Facts::at(f.num_reqs), 0);
  for (const auto& value : rows) {
    const std::int64_t r = value[static_cast<std::size_t>(Attribute::request)];
    const auto [first, seen_end] = f.hull(r, value[static_cast<std::size_t>(Attribute::q_pos)]);
    const std::int64_t end = std::min(seen_end, f.cached_lens[Facts::at(r)]);
    const std::int64_t begin_page = first / f.page_size;
    const std::int64_t end_page = end > first ? semantics::ceil_div(end, f.page_size) : begin_page;
    pages.request.push_back(Facts::at(r));
    pages.first.push_back(Facts::at(begin_page));
    pages.end.push_back(Facts::at(end_page));
    end_column[Facts::at(r)] = std::max(end_column[Facts::at(r)], end_page);
  }
  std::vector<std::int64_t> first_column(Facts::at(f.num_reqs), f.max_pages_per_req);
  for (std::size_t t = 0; t < rows.size(); ++t)
    first_column[pages.request[t]] = std::min(first_column[pages.request[t]], static_cast<std::int64_t>(pages.first[t]));
  pages.page.resize(Facts::at(f.num_reqs));
  // Columns that no compared row sees may hold anything: they stand for the page of the first seen column's request, read by
  // none.
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    for (std::int64_t c = first_column[Facts::at(r)]; c < end_column[Facts::at(r)]; ++c) pages.ids.push_back(f.page(r, c));
  std::sort(pages.ids.begin(), pages.ids.end());
  pages.ids.erase(std::unique(pages.ids.begin(), pages.ids.end()), pages.ids.end());
  for (std::int64_t r = 0; r < f.num_reqs; ++r) {
    std::vector<std::uint32_t>& own = pages.page[Facts::at(r)];
    own.assign(Facts::at(end_column[Facts::at(r)]), 0);
    for (std::int64_t c = first_column[Facts::at(r)]; c < end_column[Facts::at(r)]; ++c)
      own[Facts::at(c)] =
          static_cast<std::uint32_t>(std::lower_bound(pages.ids.begin(), pages.ids.end(), f.page(r, c)) - pages.ids.begin());
  }
}

double column_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Columns::Columns(const Facts& f, const Localisation& where)
    : facts(f), rows(where.tokens.size()), heads(Facts::at(f.num_q_heads)) {
  std::vector<std::array<std::int64_t, kAttributes>> of_row;
  of_row.reserve(rows);
  for (const std::int64_t token : where.tokens) of_row.push_back(attributes_of(f, token, 0, /*with_pages=*/false).value);
  for (std::size_t a = 0; a < kRowAttributes; ++a) {
    const auto attribute = static_cast<Attribute>(a);
    std::vector<std::int64_t> values;
    values.reserve(rows);
    for (const auto& row : of_row) values.push_back(row[a]);
    numbers.push_back(ranked(attribute, values));
    if (std::find(std::begin(kTiled), std::end(kTiled), attribute) != std::end(kTiled))
      add_remainders(f, numbers, attribute, values);
  }
  note_requests(numbers);
  add_pages(f, of_row, pages);
}

std::vector<std::vector<Tally>> Columns::by_value(const std::vector<Tally>& of_row) const {
  std::vector<std::vector<Tally>> sums;
  sums.reserve(numbers.size());
  for (const Column& column : numbers) {
    std::vector<Tally> own(column.values.size());
    if (column.multiple_in != Column::kNone) {
      const std::vector<Tally>& finer = sums[column.multiple_in];
      for (std::size_t i = 0; i < finer.size(); ++i) own[i % own.size()] += finer[i];
    } else if (column.of_request && !sums.empty()) {
      for (std::size_t r = 0; r < sums[0].size(); ++r) own[column.rank_of_request[r]] += sums[0][r];
    } else {
      for (std::size_t t = 0; t < of_row.size(); ++t) own[column.rank[t]] += of_row[t];
    }
    sums.push_back(std::move(own));
  }
  return sums;
}

Mask Columns::rows_where(const Condition& condition) const {
  Mask mask(rows, 0);
  if (condition.attribute == Attribute::page) {
    const bool reads = condition.test == Test::reads;
    std::vector<std::vector<std::size_t>> at(pages.page.size());
    for (std::size_t r = 0; r < at.size(); ++r)
      for (std::size_t c = 0; c < pages.page[r].size(); ++c)
        if (std::find(condition.values.begin(), condition.values.end(), pages.ids[pages.page[r][c]]) != condition.values.end())
          at[r].push_back(c);
    for (std::size_t t = 0; t < rows; ++t) {
      const std::vector<std::size_t>& columns = at[pages.request[t]];
      const bool hit =
          std::any_of(columns.begin(), columns.end(), [&](std::size_t c) { return c >= pages.first[t] && c < pages.end[t]; });
      mask[t] = hit == reads ? 1 : 0;
    }
    return mask;
  }
  const auto column = std::find_if(numbers.begin(), numbers.end(),
                                   [&](const Column& c) { return c.attribute == condition.attribute && c.modulus == 0; });
  Mask holds;
  for (const std::int64_t value : column->values) holds.push_back(condition.holds(value) ? 1 : 0);
  for (std::size_t t = 0; t < rows; ++t) mask[t] = holds[column->rank[t]];
  return mask;
}

double Columns::log_choices(const Column& column) const {
  const std::size_t choices = column.of_request ? numbers[0].values.size() : rows;
  return std::log2(static_cast<double>(std::max<std::size_t>(2, choices)));
}

Mask Columns::heads_where(const Condition& condition) const {
  Mask mask(heads, 0);
  for (std::size_t h = 0; h < heads; ++h) {
    const auto head = static_cast<std::int64_t>(h);
    const std::int64_t value = condition.attribute == Attribute::head      ? head
                               : condition.attribute == Attribute::kv_head ? head / facts.group
                                                                           : head % facts.group;
    mask[h] = condition.holds(value) ? 1 : 0;
  }
  return mask;
}

Cells::Cells(const Localisation& where, std::size_t heads, std::optional<CellBytes> bytes)
    : rows_(where.tokens.size()), heads_(heads), wrong_(where.rows.size(), 0), right_(where.rows.size(), 0) {
  // Rounding to 16 bits alone takes right cells near their tolerance: then nearness says nothing.
  std::vector<double> ratios;
  for (const Compared& cell : where.rows)
    if (!cell.wrong) ratios.push_back(cell.worst_ratio);
  const double near = std::max(kNear, 2 * column_median(std::move(ratios)));
  for (std::size_t i = 0; i < where.rows.size(); ++i) {
    const Compared& cell = where.rows[i];
    if (cell.wrong && bytes.value_or(cell.bytes) == cell.bytes) {
      wrong_[i] = kQuarters;
    } else if (!cell.unmoved) {
      right_[i] = !cell.wrong && cell.worst_ratio > near ? kWeak : kQuarters;
    }
  }
}

std::vector<Tally> Cells::by_row(const Mask& in_rows, const Mask& in_heads) const {
  std::vector<Tally> sums(rows_);
  for (std::size_t t = 0; t < rows_; ++t) {
    if (in_rows[t] == 0) continue;
    const std::uint8_t *wrong = &wrong_[t * heads_], *right = &right_[t * heads_];
    std::uint32_t w = 0, r = 0;
    for (std::size_t h = 0; h < heads_; ++h) w += static_cast<std::uint32_t>(in_heads[h]) * wrong[h];
    for (std::size_t h = 0; h < heads_; ++h) r += static_cast<std::uint32_t>(in_heads[h]) * right[h];
    sums[t] = {w / kClearColumn, r / kClearColumn};
  }
  return sums;
}

std::vector<Tally> Cells::by_head(const Mask& in_rows, const Mask& in_heads) const {
  std::vector<std::uint32_t> w(heads_), r(heads_);
  for (std::size_t t = 0; t < rows_; ++t) {
    if (in_rows[t] == 0) continue;
    const std::uint8_t *wrong = &wrong_[t * heads_], *right = &right_[t * heads_];
    for (std::size_t h = 0; h < heads_; ++h) w[h] += wrong[h];
    for (std::size_t h = 0; h < heads_; ++h) r[h] += right[h];
  }
  std::vector<Tally> sums(heads_);
  for (std::size_t h = 0; h < heads_; ++h)
    if (in_heads[h] != 0) sums[h] = {w[h] / kClearColumn, r[h] / kClearColumn};
  return sums;
}

Tally Cells::total(const Mask& in_rows, const Mask& in_heads) const {
  Tally sum;
  for (const Tally& head : by_head(in_rows, in_heads)) sum += head;
  return sum;
}

std::size_t Cells::wrong_rows() const {
  std::size_t count = 0;
  for (const Tally& row : by_row(Mask(rows_, 1), Mask(heads_, 1))) count += row.wrong > 0 ? 1 : 0;
  return count;
}

void Cells::remove(const Mask& in_rows, const Mask& in_heads) {
  for (std::size_t t = 0; t < rows_; ++t)
    for (std::size_t h = 0; h < heads_ && in_rows[t] != 0; ++h)
      if (in_heads[h] != 0) wrong_[t * heads_ + h] = right_[t * heads_ + h] = 0;
}

}  // namespace quire::diagnose_detail
