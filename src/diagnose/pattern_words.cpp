// SPDX-License-Identifier: Apache-2.0
// Conditions in the words that people use for them: decode rows, last row, heads 16-31.
#include "diagnose/pattern.h"

#include <algorithm>
#include <optional>

#include "text/formatted.h"
#include "text/runs.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kListed = 8;  // runs of numbers

std::string listed(const std::vector<std::int64_t>& values) { return runs(values, kListed); }

/// "q_pos >= 512", "seq_len % 16 > 0": any condition on a number.
std::string comparison(std::string_view what, const Condition& c) {
  const std::vector<std::int64_t>& v = c.values;
  switch (c.test) {
    case Test::is: return v.size() == 1 ? formatted("{} = {}", what, v[0]) : formatted("{} in {}", what, listed(v));
    case Test::from: return formatted("{} >= {}", what, v[0]);
    case Test::to: return formatted("{} <= {}", what, v[0]);
    case Test::between: return formatted("{} <= {} <= {}", v[0], what, v[1]);
    default: break;
  }
  const std::vector<std::int64_t> rest(v.begin() + 1, v.end());
  if (rest.size() == 1) return formatted("{} % {} = {}", what, v[0], rest[0]);
  const bool all_but_0 = static_cast<std::int64_t>(rest.size()) == v[0] - 1 && rest[0] == 1;
  return all_but_0 ? formatted("{} % {} > 0", what, v[0]) : formatted("{} % {} in {}", what, v[0], listed(rest));
}

/// A number with one name, or several: "head 3", "heads 16-31".
std::string numbered(const std::string& noun, const Condition& c) {
  if (c.test == Test::is) return formatted("{}{} {}", noun, c.values.size() == 1 ? "" : "s", listed(c.values));
  if (c.test == Test::between)
    return c.values[0] == c.values[1] ? formatted("{} {}", noun, c.values[0])
                                      : formatted("{}s {}-{}", noun, c.values[0], c.values[1]);
  return formatted("{}s with {}", noun, comparison(name(c.attribute), c));
}

/// Name of a kind of row: "decode rows"; `of_each` follows if no request is named. Empty if the condition names no kind.
struct Kind {
  std::string text, of_each;
};
std::optional<Kind> kind(const Condition& c) {
  const bool one_value = c.values.size() == 1;
  const bool is_0 = one_value && (c.test == Test::is || c.test == Test::to) && c.values[0] == 0;
  const bool is_1 = one_value && (c.test == Test::is || c.test == Test::to) && c.values[0] == 1;
  const bool from_1 = c.test == Test::from && c.values[0] == 1, from_2 = c.test == Test::from && c.values[0] == 2;
  switch (c.attribute) {
    case Attribute::query_len:
      if (is_1) return Kind{"the decode rows", ""};
      return from_2 ? std::optional(Kind{"the prefill rows", ""}) : std::nullopt;
    case Attribute::rows_from_end:
      if (is_0) return Kind{"the last row", " of each request"};
      return from_1 ? std::optional(Kind{"all rows but the last", " of each request"}) : std::nullopt;
    case Attribute::row:
      if (is_0) return Kind{"the first row", " of each request"};
      if (from_1) return Kind{"all rows but the first", " of each request"};
      if (c.test == Test::between) return Kind{formatted("rows {}-{}", c.values[0], c.values[1]), " of each request"};
      return c.test == Test::is && one_value ? std::optional(Kind{formatted("row {}", c.values[0]), " of each request"})
                                             : std::nullopt;
    case Attribute::token:
      if (c.test == Test::is && one_value) return Kind{formatted("row {}", c.values[0]), ""};
      return c.test == Test::between ? std::optional(Kind{formatted("rows {}-{}", c.values[0], c.values[1]), ""}) : std::nullopt;
    default: return std::nullopt;
  }
}

/// " with q_pos >= 512", " of request 3": what follows the kind of row.
std::string qualifier(const Condition& c) {
  const bool none = (c.test == Test::is || c.test == Test::to) && c.values == std::vector<std::int64_t>{0};
  switch (c.attribute) {
    case Attribute::request:
      if (c.test == Test::from) return formatted(" of requests from {} on", c.values[0]);
      return c.test == Test::to ? formatted(" of requests 0-{}", c.values[0]) : " of " + numbered("request", c);
    case Attribute::context_len:
      if (none) return " without context";
      if (c.test == Test::from && c.values[0] == 1) return " with context";
      break;
    case Attribute::page:
      return formatted(" that {}read {}page{} {}", c.test == Test::reads ? "" : "do not ", c.values.size() > 1 ? "one of " : "",
                       c.values.size() > 1 ? "s" : "", listed(c.values));
    case Attribute::token: return " with " + comparison("row of the batch", c);
    default: break;
  }
  return " with " + comparison(name(c.attribute), c);
}

std::string row_words(const std::vector<Condition>& conditions) {
  const bool of_request =
      std::any_of(conditions.begin(), conditions.end(), [](const Condition& c) { return c.attribute == Attribute::request; });
  std::optional<Kind> noun;
  const Condition* named = nullptr;
  for (const Attribute a : {Attribute::token, Attribute::rows_from_end, Attribute::row, Attribute::query_len})
    for (const Condition& c : conditions) {
      if (noun || c.attribute != a) continue;
      noun = kind(c);
      if (noun) named = &c;
    }
  std::string text, with, of;
  for (const Condition& c : conditions) {
    if (&c == named || c.attribute >= Attribute::head) continue;
    std::string one = qualifier(c);
    if (c.attribute == Attribute::request) {
      of = one;
    } else {
      with += with.empty() || !with.starts_with(" with ") || !one.starts_with(" with ") ? one : " and " + one.substr(6);
    }
  }
  if (!noun && of.empty() && with.empty()) return "every row";
  text = noun ? noun->text + (of_request ? "" : noun->of_each) : "the rows";
  return text + of + with;
}

std::string axis_words(const Condition& c) {
  switch (c.attribute) {
    case Attribute::head: return numbered("head", c);
    case Attribute::kv_head: return numbered("KV head", c);
    case Attribute::head_in_group: return numbered("head", c) + " of each group";
    default: return c.values == std::vector<std::int64_t>{-1} ? "lse alone" : numbered("dim", c);
  }
}

/// "; largest right q_pos there: 48": the bound may lie anywhere between.
std::string next_value(const Facts& f, const Localisation& where, const Pattern& pattern, const Condition& bound) {
  if ((bound.test != Test::from && bound.test != Test::to) || kind(bound)) return "";
  Pattern rest;
  for (const Condition& c : pattern.conditions)
    if (c.attribute < Attribute::head && !(c == bound)) rest.conditions.push_back(c);
  const bool from = bound.test == Test::from;
  std::optional<std::int64_t> nearest;
  for (const std::int64_t token : where.tokens) {
    const CellAttributes cell = attributes_of(f, token, 0);
    const std::int64_t v = cell.value[static_cast<std::size_t>(bound.attribute)];
    if (bound.holds(v) || !selects(rest, cell)) continue;
    if (!nearest || (from ? v > *nearest : v < *nearest)) nearest = v;
  }
  if (!nearest || std::abs(*nearest - bound.values[0]) <= 1) return "";
  return formatted("; {} {} outside: {}", from ? "largest" : "smallest", name(bound.attribute), *nearest);
}

std::string others(std::int64_t uncovered, std::size_t count) {
  const std::string where = count == 1 ? "" : formatted(" outside of the {} sets", count);
  if (uncovered == 0) return formatted("no {}cell{} is wrong", count == 1 ? "other " : "", where);
  return formatted("{} {}cell{}{} {} wrong", uncovered, count == 1 ? "other " : "", uncovered == 1 ? "" : "s", where,
                   uncovered == 1 ? "is" : "are");
}

}  // namespace

std::string words(const Facts& f, const std::vector<Condition>& conditions) {
  std::string heads, dims;
  for (const Condition& c : conditions) {
    if (c.attribute == Attribute::dim) dims = ", " + axis_words(c);
    if (c.attribute >= Attribute::head && c.attribute < Attribute::dim) heads += ", " + axis_words(c);
  }
  if (heads.empty() && f.num_q_heads > 1) heads = ", all heads";
  return row_words(conditions) + heads + dims;
}

std::string text_of(const Facts& f, const Localisation& where, const Pattern& p, const Selection& selection, std::size_t index,
                    std::size_t count) {
  const std::int64_t uncovered = p.wrong_total - p.wrong_cells;
  const std::string all =
      selection.unmoved > 0 ? formatted("{}", p.cells) : formatted("{} x {}", selection.rows, selection.heads);
  std::string text = count == 1 ? "" : formatted("set {} of {}: ", index + 1, count);
  text += p.exact() ? "exactly " : "";
  text += formatted("{}: {} of {} {}cells", p.scope_text, p.wrong_cells == p.cells ? all : formatted("{}", p.wrong_cells), all,
                    where.complete ? "" : "compared ");
  if (!p.exact()) text += formatted(" (precision {:.3g}, recall {:.3g})", p.precision(), p.recall());
  if (selection.unmoved > 0) text += formatted("; the cause changes {} more by less than their tolerance", selection.unmoved);
  for (const Condition& c : p.conditions)
    if (c.attribute < Attribute::page) text += next_value(f, where, p, c);
  return index + 1 == count ? text + "; " + others(uncovered, count) : text;
}

std::string text_without_rule(const Localisation& where, const Pattern& p) {
  std::string text =
      formatted("no rule over the batch's attributes: {} of {} {}rows, {} of {} cells, scattered", where.wrong_tokens().size(),
                where.tokens.size(), where.complete ? "" : "compared ", p.wrong_cells, p.cells);
  const std::vector<std::int64_t> tokens = where.wrong_tokens();
  if (tokens.size() <= kListed) text += formatted("; rows {}", listed(tokens));
  for (const Condition& c : p.conditions) text += "; " + axis_words(c);
  return text;
}

}  // namespace quire::diagnose_detail
