// SPDX-License-Identifier: Apache-2.0
// Turns rules over rows and heads into patterns: merged bounds, dims, counts.
#include "diagnose/pattern.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "diagnose/pattern_conditions.h"
#include "diagnose/pattern_search.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kDimCells = 1024;  // wrong cells whose dims are looked at, spread over all
constexpr double kWorthADim = 0.5;       // share of bits that a rule over dims must save, because dims are noisier than cells

/// "from" and "to" of one attribute become "between".
std::vector<Condition> merged(const std::vector<Condition>& conditions) {
  std::vector<Condition> list;
  for (const Condition& c : conditions) {
    const auto other = std::find_if(list.begin(), list.end(), [&](const Condition& o) {
      return o.attribute == c.attribute &&
             ((o.test == Test::from && c.test == Test::to) || (o.test == Test::to && c.test == Test::from));
    });
    if (other == list.end()) {
      list.push_back(c);
      continue;
    }
    const std::int64_t a = c.test == Test::from ? c.values[0] : other->values[0];
    const std::int64_t b = c.test == Test::from ? other->values[0] : c.values[0];
    *other = {c.attribute, Test::between, {a, b}};
  }
  return list;
}

bool in(const Rule& rule, std::size_t cell, std::size_t heads) {
  return rule.rows[cell / heads] != 0 && rule.heads[cell % heads] != 0;
}

/// Conditions on the dims that are wrong in the wrong cells; none if all dims seem wrong.
std::vector<Condition> dims_of(const Localisation& where, const std::vector<std::size_t>& wrong_cells) {
  std::vector<std::size_t> cells;
  for (const std::size_t i : wrong_cells)
    if (where.rows[i].wrong_dims > 0) cells.push_back(i);
  if (cells.empty()) return {{Attribute::dim, Test::is, {-1}}};
  const std::size_t step = semantics::ceil_div(cells.size(), kDimCells);
  std::vector<Tally> of_dim(Facts::at(where.reference.v_head_dim));
  Tally total;
  for (std::size_t i = 0; i < cells.size(); i += step)
    for (std::size_t d = 0; d < of_dim.size(); ++d) {
      const Tally one = where.wrong_dim(cells[i], static_cast<std::int64_t>(d)) ? Tally{1, 0} : Tally{0, 1};
      of_dim[d] += one;
      total += one;
    }
  const Score score(total, /*scale=*/1, /*local=*/false, /*outside=*/1);
  Candidates candidates(score);
  offer_axis(Attribute::dim, of_dim, candidates);
  const std::vector<Candidate> best = candidates.cheapest_first();
  if (best.empty() || best.front().cost > (1 - kWorthADim) * surprise(total)) return {};
  return {best.front().condition};
}

/// A row that sees one key has its value for an answer, whatever its score: few faults show there. If such rows are all that
/// keeps a rule from being exact, the rule says so.
void leave_out_single_keys(const Facts& f, const Localisation& where, std::size_t heads, Rule& rule) {
  Mask rows = rule.rows;
  std::int64_t right = 0, row = -1, keys = 0;
  for (std::size_t i = 0; i < where.rows.size(); ++i) {
    if (!in(rule, i, heads) || where.rows[i].unmoved) continue;
    if (std::exchange(row, where.rows[i].token) != where.rows[i].token)
      keys = attributes_of(f, row, 0, /*with_pages=*/false).value[static_cast<std::size_t>(Attribute::num_keys)];
    const bool one_key = keys < 2;
    if (one_key && where.rows[i].wrong) return;
    if (!one_key && !where.rows[i].wrong) return;
    if (one_key) rows[i / heads] = 0, ++right;
  }
  if (right == 0) return;
  rule.rows = std::move(rows);
  rule.row_conditions.push_back({Attribute::num_keys, Test::from, {2}});
  for (std::vector<Condition>& other : rule.also) other.push_back(rule.row_conditions.back());
}

struct Counted {
  Pattern pattern;
  Selection selection;
};

Counted counted(const Facts& f, const Localisation& where, const Rule& rule, std::int64_t uncovered) {
  Counted result;
  Pattern& p = result.pattern;
  std::vector<std::size_t> wrong_cells;
  for (std::size_t i = 0; i < where.rows.size(); ++i) {
    if (!in(rule, i, Facts::at(f.num_q_heads))) continue;
    if (where.rows[i].unmoved) {
      ++result.selection.unmoved;
      continue;
    }
    ++p.cells;
    if (where.rows[i].wrong) wrong_cells.push_back(i);
  }
  p.wrong_cells = static_cast<std::int64_t>(wrong_cells.size());
  p.wrong_total = p.wrong_cells + uncovered;
  std::vector<Condition> rest = merged(rule.head_conditions);
  for (const Condition& c : dims_of(where, wrong_cells)) rest.push_back(c);
  const auto joined = [&](const std::vector<Condition>& on_rows) {
    std::vector<Condition> all = merged(on_rows);
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  };
  p.conditions = joined(rule.row_conditions);
  p.scope_text = words(f, p.conditions);
  for (const std::vector<Condition>& other : rule.also) p.also.push_back(words(f, joined(other)));
  result.selection.rows = std::count(rule.rows.begin(), rule.rows.end(), 1);
  result.selection.heads = std::count(rule.heads.begin(), rule.heads.end(), 1);
  return result;
}

/// The rules as patterns, those with the most cells first.
std::vector<Pattern> patterns_of(const Facts& facts, const Localisation& where, const std::vector<Rule>& rules) {
  const std::size_t heads = Facts::at(facts.num_q_heads);
  std::int64_t uncovered = 0;
  for (std::size_t i = 0; i < where.rows.size(); ++i)
    if (where.rows[i].wrong && std::ranges::none_of(rules, [&](const Rule& rule) { return in(rule, i, heads); })) ++uncovered;
  std::vector<Counted> found;
  for (const Rule& rule : rules) found.push_back(counted(facts, where, rule, uncovered));
  std::ranges::stable_sort(found, std::ranges::greater{}, [](const Counted& c) { return c.pattern.wrong_cells; });
  std::vector<Pattern> patterns;
  for (std::size_t i = 0; i < found.size(); ++i) {
    Pattern& p = found[i].pattern;
    p.text = text_of(facts, where, p, found[i].selection, i, found.size());
    patterns.push_back(std::move(p));
  }
  return patterns;
}

Pattern without_rule(const Facts& f, const Localisation& where) {
  Pattern p;
  p.rule = false;
  std::vector<std::size_t> wrong_cells;
  for (std::size_t i = 0; i < where.rows.size(); ++i)
    if (where.rows[i].wrong) wrong_cells.push_back(i);
  p.cells = static_cast<std::int64_t>(where.rows.size());
  p.wrong_cells = p.wrong_total = static_cast<std::int64_t>(wrong_cells.size());
  p.conditions = dims_of(where, wrong_cells);
  p.scope_text = words(f, p.conditions);
  p.text = text_without_rule(where, p);
  return p;
}

}  // namespace

Pattern counted_pattern(const Facts& facts, const Localisation& where, std::vector<Condition> conditions) {
  Pattern p;
  p.conditions = std::move(conditions);
  for (const Compared& cell : where.rows) {
    p.wrong_total += cell.wrong ? 1 : 0;
    if (!contains(facts, p, cell.token, cell.head)) continue;
    ++p.cells;
    p.wrong_cells += cell.wrong ? 1 : 0;
  }
  p.scope_text = words(facts, p.conditions);
  p.text = formatted("{}: {} of {} cells", p.scope_text, p.wrong_cells, p.cells);
  return p;
}

std::vector<Pattern> find_patterns(const Facts& facts, const Localisation& where) {
  if (!where.any_wrong()) return {};
  const Columns columns(facts, where);
  std::vector<Rule> rules = find_rules(columns, Cells(where, columns.heads));
  if (rules.empty()) return {without_rule(facts, where)};
  for (Rule& rule : rules) leave_out_single_keys(facts, where, columns.heads, rule);
  return patterns_of(facts, where, rules);
}

std::vector<Pattern> find_patterns_by_bytes(const Facts& facts, const Localisation& where) {
  std::map<CellBytes, std::int64_t> classes;
  for (const Compared& cell : where.rows) classes[cell.bytes] += cell.wrong ? 1 : 0;
  std::erase_if(classes, [](const auto& entry) { return entry.second == 0; });
  if (classes.size() < 2) return {};
  const Columns columns(facts, where);
  std::vector<Rule> rules;
  for (const auto& [bytes, cells] : classes) {
    const std::vector<Rule> own = find_rules(columns, Cells(where, columns.heads, bytes));
    if (own.size() != 1) return {};
    for (std::size_t i = 0; i < where.rows.size(); ++i)
      if (in(own.front(), i, columns.heads) != (where.rows[i].wrong && where.rows[i].bytes == bytes)) return {};
    rules.push_back(own.front());
  }
  return patterns_of(facts, where, rules);
}

}  // namespace quire::diagnose_detail
