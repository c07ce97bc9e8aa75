// SPDX-License-Identifier: Apache-2.0
// Plain observations: measurements that a person would make first, without a hypothesis.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "diagnose/pattern.h"
#include "numerics/tolerance.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kCells = 512;       // wrong cells that are looked at, spread over all
constexpr double kClear = 16;             // an expected value this many tolerances large has a ratio
constexpr std::size_t kFewestRatios = 4;  // per cell
constexpr std::size_t kListedHeads = 4;
constexpr double kZero = 1e-6;  // share of the expected value below which a value counts as 0

/// A finite element with a clear expected value.
struct Element {
  double observed, expected, tolerance;
};
struct ObservedCell {
  std::int64_t head = 0;
  std::vector<Element> elements;
  double ratio = 0;  ///< least squares
};

struct Range {
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = std::numeric_limits<std::int64_t>::min();
  void add(std::int64_t v) {
    least = std::min(least, v);
    most = std::max(most, v);
  }
  bool empty() const { return least > most; }
};

std::string range_words(const char* what, const Range& wrong, const Range& right) {
  if (right.empty()) return formatted("{}: wrong from {} to {}, none right", what, wrong.least, wrong.most);
  if (wrong.most < right.least) return formatted("{}: largest wrong {}, smallest right {}", what, wrong.most, right.least);
  return formatted("{}: smallest wrong {}, largest right {}", what, wrong.least, right.most);
}

/// Keys, pages and query_len of wrong and right rows.
std::string sizes(const Facts& f, const Localisation& where) {
  const std::pair<Attribute, const char*> asked[] = {
      {Attribute::num_keys, "visible keys"}, {Attribute::num_pages, "pages"}, {Attribute::query_len, "rows of the request"}};
  const std::vector<std::int64_t> wrong_tokens = where.wrong_tokens();
  std::string text;
  for (const auto& [attribute, what] : asked) {
    Range wrong, right;
    for (const std::int64_t token : where.tokens) {
      const std::int64_t v = attributes_of(f, token, 0, /*with_pages=*/false).value[static_cast<std::size_t>(attribute)];
      (std::binary_search(wrong_tokens.begin(), wrong_tokens.end(), token) ? wrong : right).add(v);
    }
    text += (text.empty() ? "" : "; ") + range_words(what, wrong, right);
  }
  return text;
}

std::vector<const Compared*> sample(const Localisation& where) {
  std::vector<const Compared*> wrong;
  for (const Compared& cell : where.rows)
    if (cell.wrong) wrong.push_back(&cell);
  const std::size_t step = semantics::ceil_div(wrong.size(), kCells);
  std::vector<const Compared*> list;
  for (std::size_t i = 0; i < wrong.size(); i += step) list.push_back(wrong[i]);
  return list;
}

std::vector<ObservedCell> cells_with_ratios(const Observed& observed, const Localisation& where,
                                            const std::vector<const Compared*>& from) {
  const numerics::OutputType type = numerics::output_type(where.reference, observed.output.dtype);
  std::vector<ObservedCell> cells;
  for (const Compared* at : from) {
    if (at->wrong_dims == 0 || at->nonfinite > 0) continue;
    ObservedCell cell{at->head, {}, 0};
    double numerator = 0, denominator = 0;
    for (std::int64_t d = 0; d < where.reference.v_head_dim; ++d) {
      const std::int64_t e = at->reference_row * where.reference.v_head_dim + d;
      const Element element{observed.at(at->token, at->head, d), where.reference.out[Facts::at(e)],
                            numerics::output_tolerance(where.reference, at->reference_row, e, type)};
      if (!(std::fabs(element.expected) > kClear * element.tolerance)) continue;
      numerator += element.observed * element.expected;
      denominator += element.expected * element.expected;
      cell.elements.push_back(element);
    }
    if (cell.elements.size() < kFewestRatios) continue;
    cell.ratio = numerator / denominator;
    cells.push_back(std::move(cell));
  }
  return cells;
}

/// Whether out = ratio * expected within what rounding allows to both.
bool fits(const ObservedCell& cell, double ratio) {
  return std::all_of(cell.elements.begin(), cell.elements.end(), [&](const Element& e) {
    return std::fabs(e.observed - ratio * e.expected) <= (1 + std::fabs(ratio)) * e.tolerance;
  });
}

double median_ratio(const std::vector<const ObservedCell*>& cells) {
  std::vector<double> ratios;
  for (const ObservedCell* cell : cells) ratios.push_back(cell->ratio);
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
  std::nth_element(ratios.begin(), middle, ratios.end());
  return *middle;
}

std::optional<double> common_ratio(const std::vector<const ObservedCell*>& cells) {
  const double ratio = median_ratio(cells);
  return std::all_of(cells.begin(), cells.end(), [&](const ObservedCell* c) { return fits(*c, ratio); }) ? std::optional(ratio)
                                                                                                         : std::nullopt;
}

std::string ratio_words(const std::vector<ObservedCell>& cells) {
  std::vector<const ObservedCell*> all;
  std::map<std::int64_t, std::vector<const ObservedCell*>> by_head;
  for (const ObservedCell& cell : cells) {
    all.push_back(&cell);
    by_head[cell.head].push_back(&cell);
  }
  const auto ratio = common_ratio(all);
  if (ratio && std::fabs(*ratio) < kZero) return formatted("out is 0 in every wrong cell looked at ({})", cells.size());
  if (ratio) return formatted("out is {:.4g} x the expected one in every wrong cell looked at ({})", *ratio, cells.size());
  std::string heads;
  std::size_t constant = 0;
  for (const auto& [head, own] : by_head) {
    const auto of_head = common_ratio(own);
    if (!of_head) break;
    if (constant++ < kListedHeads) heads += formatted("{}head {}: {:.4g}", heads.empty() ? "" : ", ", head, *of_head);
  }
  if (constant == by_head.size() && cells.size() > constant)
    return formatted("out / expected is one number per head: {}{}", heads, constant > kListedHeads ? ", ..." : "");
  if (std::all_of(cells.begin(), cells.end(), [](const ObservedCell& c) { return fits(c, c.ratio); })) {
    const auto [low, high] = std::minmax_element(cells.begin(), cells.end(),
                                                 [](const ObservedCell& a, const ObservedCell& b) { return a.ratio < b.ratio; });
    return formatted("out / expected is one number per (row, head), from {:.4g} to {:.4g}", low->ratio, high->ratio);
  }
  return "out / expected differs from dim to dim";
}

/// Size and sign of the errors.
std::string error_words(const Observed& observed, const Localisation& where, const std::vector<const Compared*>& from) {
  std::vector<double> errors;
  double worst_ratio = 0;
  std::int64_t smaller = 0;
  for (const Compared* at : from) {
    worst_ratio = std::max(worst_ratio, at->worst_ratio);
    for (std::int64_t d = 0; d < where.reference.v_head_dim; ++d) {
      if (!where.wrong_dim(Facts::at(at->reference_row), d)) continue;
      const double o = observed.at(at->token, at->head, d);
      const double e = where.reference.out[Facts::at(at->reference_row * where.reference.v_head_dim + d)];
      if (!std::isfinite(o - e)) continue;
      errors.push_back(std::fabs(o - e));
      if (std::fabs(o) < std::fabs(e)) ++smaller;
    }
  }
  if (errors.empty()) return "";
  const auto middle = errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2);
  std::nth_element(errors.begin(), middle, errors.end());
  const double half = *middle, most = *std::max_element(errors.begin(), errors.end());
  return formatted(
      "|error| is {:.3g} at the median and {:.3g} at most, {:.3g} tolerances; |out| is too small in {:.0f} % of the wrong "
      "elements",
      half, most, worst_ratio, 100.0 * static_cast<double>(smaller) / static_cast<double>(errors.size()));
}

std::string lse_words(const Observed& observed, const Localisation& where, const std::vector<const Compared*>& from) {
  std::vector<double> differences;
  std::size_t wrong = 0;
  bool out_right = true;
  for (const Compared* at : from) {
    out_right = out_right && at->wrong_dims == 0;
    if (!at->wrong_lse) continue;
    ++wrong;
    const double d = observed.lse_at(at->token, at->head) - where.reference.lse[Facts::at(at->reference_row)];
    if (std::isfinite(d)) differences.push_back(d);
  }
  if (wrong == 0) return "lse is right in the wrong cells";
  const std::string which = wrong == from.size() ? "every wrong cell" : formatted("{} of {} wrong cells", wrong, from.size());
  const std::string tail = out_right ? "; out is right" : "";
  if (differences.size() != wrong)
    return formatted("lse is wrong in {}, NaN or infinite in {}", which, wrong - differences.size()) + tail;
  const auto [low, high] = std::minmax_element(differences.begin(), differences.end());
  double slack = 0;
  for (const Compared* at : from) slack = std::max(slack, 2 * numerics::lse_tolerance(where.reference, at->reference_row));
  if (*high - *low <= slack) return formatted("lse is off by {:.4g} in {}", (*high + *low) / 2, which) + tail;
  return formatted("lse is off by {:.3g} to {:.3g} in {}", *low, *high, which) + tail;
}

}  // namespace

std::vector<std::string> observations(const Facts& facts, const Observed& observed, const Localisation& where) {
  if (!where.any_wrong()) return {};
  const std::vector<const Compared*> wrong = sample(where);
  std::vector<std::string> lines = {sizes(facts, where)};
  std::int64_t nonfinite = 0;
  for (const Compared* at : wrong) nonfinite += at->nonfinite > 0 ? 1 : 0;
  if (nonfinite > 0)
    lines.push_back(formatted("NaN or infinite where a number is expected, or the reverse: in {} of {} wrong cells", nonfinite,
                              wrong.size()));
  const std::vector<ObservedCell> cells = cells_with_ratios(observed, where, wrong);
  if (!cells.empty()) lines.push_back(ratio_words(cells));
  if (std::string text = error_words(observed, where, wrong); !text.empty()) lines.push_back(std::move(text));
  if (observed.lse.present()) lines.push_back(lse_words(observed, where, wrong));
  return lines;
}

}  // namespace quire::diagnose_detail
