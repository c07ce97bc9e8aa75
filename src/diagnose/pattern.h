// SPDX-License-Identifier: Apache-2.0
// Patterns: the shortest rules over the batch's attributes that select the wrong cells. A cell is a (token, head).
//
// A rule is a conjunction: at most two conditions on the row, two on the head, one on the dims. Each condition has a price in
// bits (pattern_price.h), each exception one by its surprise; the cheapest description wins. Two faults in different scopes give
// two rules.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/localise.h"

namespace quire::cause {

enum class Attribute : std::uint8_t {
  request,
  token,          ///< output row
  row,            ///< index in its request
  rows_from_end,  ///< query_len - 1 - row
  query_len,
  seq_len,
  context_len,
  q_pos,
  num_keys,     ///< visible ones
  page_offset,  ///< q_pos % page_size
  num_pages,    ///< logical pages that the visible keys lie in
  page,         ///< physical pages of the cache that the visible keys lie in
  head,
  kv_head,
  head_in_group,
  dim,
};
inline constexpr std::size_t kRowAttributes = 11;  ///< those before `page`: a number per row
inline constexpr std::size_t kAttributes = 16;

enum class Test : std::uint8_t {
  is,         ///< one of values
  from,       ///< >= values[0]
  to,         ///< <= values[0]
  between,    ///< values[0] <= v <= values[1]
  modulo,     ///< v % values[0] is one of the other values
  reads,      ///< page: a visible key lies in one of values
  not_reads,  ///< page: no visible key lies in any of values
};

/// The name in JSON (diagnose.md).
const char* name(Attribute attribute);
const char* name(Test test);

struct Condition {
  Attribute attribute = Attribute::request;
  Test test = Test::is;
  std::vector<std::int64_t> values;

  /// For every attribute but `page`.
  bool holds(std::int64_t value) const;
  bool operator==(const Condition&) const = default;
};

/// What conditions ask of one cell; `dim` is not part of it.
struct CellAttributes {
  std::array<std::int64_t, kAttributes> value{};
  std::vector<std::int64_t> pages;  ///< physical pages that the visible keys lie in, in logical order
};
CellAttributes attributes_of(const fault::Facts& facts, std::int64_t token, std::int64_t head, bool with_pages = true);

struct Pattern {
  std::vector<Condition> conditions;  ///< none: every cell, or no rule was found
  bool rule = true;                   ///< false: the attributes of the batch do not select the wrong cells
  std::int64_t cells = 0;             ///< compared cells that the rule selects
  std::int64_t wrong_cells = 0;       ///< the wrong ones among them
  std::int64_t wrong_total = 0;       ///< wrong_cells and the wrong cells that no pattern selects
  std::string text;                   ///< "exactly the decode rows, heads 16-31: 7 x 16 of 7 x 16 cells; no other cell is wrong"
  std::string scope_text;             ///< "the decode rows, heads 16-31"

  double precision() const { return cells == 0 ? 0 : static_cast<double>(wrong_cells) / static_cast<double>(cells); }
  double recall() const { return wrong_total == 0 ? 0 : static_cast<double>(wrong_cells) / static_cast<double>(wrong_total); }
  bool exact() const { return rule && wrong_cells == cells && wrong_cells == wrong_total; }
  bool selects(const CellAttributes& cell) const;
};

/// One per separate set of wrong cells, largest first, at most four; one without a rule if there is none; nothing if nothing is
/// wrong.
std::vector<Pattern> find_patterns(const fault::Facts& facts, const Localisation& where);

/// A pattern of given conditions, with what it selects of the compared cells.
Pattern counted_pattern(const fault::Facts& facts, const Localisation& where, std::vector<Condition> conditions);

/// Whether the rule selects a cell of the batch, compared or not.
bool contains(const fault::Facts& facts, const Pattern& pattern, std::int64_t token, std::int64_t head);

/// "the decode rows, heads 16-31, dims 0-31": conditions in words.
std::string words(const fault::Facts& facts, const std::vector<Condition>& conditions);

/// At most five facts that need no hypothesis: keys, pages and rows of wrong and right cells, the ratio to what is expected, size
/// and sign of the error, lse.
std::vector<std::string> observations(const fault::Facts& facts, const Observed& observed, const Localisation& where);

}  // namespace quire::cause
