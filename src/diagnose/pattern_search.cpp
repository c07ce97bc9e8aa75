// SPDX-License-Identifier: Apache-2.0
// Conjunctions grow condition by condition in a small beam; sets that one conjunction does not cover are covered one after the
// other.
#include "diagnose/pattern_search.h"

#include <algorithm>
#include <optional>

#include "diagnose/pattern_conditions.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kBeam = 4, kChildren = 6, kRules = 4;  // beam search: rules kept, children of each; rules of a cover
constexpr std::size_t kFew = 4;                              // rows
constexpr std::size_t kMostConditions = 5;                   // two bounds of one attribute count as one afterwards
// Least saving of one more condition beyond its price: bits, and a share of the bits that can still be saved.
constexpr double kWorthBits = 4, kWorthShare = 0.03;
// Largest cost of several rules, as a share of the cost of one rule.
constexpr double kWorthMoreRules = 0.85;
constexpr double kSoundPrecision = 0.75, kSoundRecall = 0.97;  // least precision and recall of a sound cover of several rules
constexpr double kForExact = 6;       // bits that a rule without any exception may cost more than listing the exceptions
constexpr double kMostlyWrong = 0.5;  // share of wrong cells from which "every row, every head" is a rule

bool is_bound(const Condition& c) { return c.test == Test::from || c.test == Test::to; }

/// Two bounds of one attribute are one condition.
std::size_t count(const std::vector<Condition>& conditions) {
  std::size_t n = conditions.size();
  for (std::size_t i = 0; i < conditions.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (conditions[i].attribute == conditions[j].attribute && is_bound(conditions[i]) && is_bound(conditions[j])) --n;
  return n;
}

bool of_heads(const Condition& c) { return c.attribute >= Attribute::head; }

Rule with(const Rule& rule, const Candidate& candidate, const Columns& columns, const Cells& cells, const Score& score) {
  Rule next = rule;
  const bool heads = of_heads(candidate.condition);
  const Mask mask = heads ? columns.heads_where(candidate.condition) : columns.rows_where(candidate.condition);
  Mask& own = heads ? next.heads : next.rows;
  for (std::size_t i = 0; i < own.size(); ++i) own[i] &= mask[i];
  (heads ? next.head_conditions : next.row_conditions).push_back(candidate.condition);
  // A page may stand twice in a table: only then the candidate's sum is not the rule's.
  next.inside = candidate.condition.attribute == Attribute::page ? cells.total(next.rows, next.heads) : candidate.inside;
  next.bits += candidate.bits;
  if (!heads) next.row_bits += candidate.bits;
  next.data = score.data(next.inside);
  return next;
}

bool same_cells(const Rule& a, const Rule& b) { return a.rows == b.rows && a.heads == b.heads; }

bool allowed(const Rule& rule) { return count(rule.row_conditions) <= 2 && count(rule.head_conditions) <= 2; }

bool perfect(const Tally& inside, const Score& score) { return inside.right <= 0 && inside.wrong >= score.total().wrong; }

/// Rules with one condition more, if that lowers the cost below `limit`, or leaves no exception.
void add_children(const Rule& rule, const Columns& columns, const Cells& cells, const Score& score, double limit,
                  std::vector<Rule>& children) {
  Candidates candidates(score);
  offer_rows(columns, cells.by_row(rule.rows, rule.heads), candidates);
  offer_heads(columns.facts, cells.by_head(rule.rows, rule.heads), candidates);
  std::size_t taken = 0;
  for (const Candidate& candidate : candidates.cheapest_first()) {
    if (rule.bits + candidate.cost >= limit + kForExact) break;
    if (rule.bits + candidate.cost >= limit && !perfect(candidate.inside, score)) continue;
    if (taken >= kChildren && !perfect(candidate.inside, score)) continue;
    Rule child = with(rule, candidate, columns, cells, score);
    if (!allowed(child) || same_cells(child, rule)) continue;
    if (child.cost() >= limit && !perfect(child.inside, score)) continue;
    ++taken;
    const auto twin = std::find_if(children.begin(), children.end(), [&](const Rule& r) { return same_cells(r, child); });
    if (twin == children.end()) {
      children.push_back(std::move(child));
    } else if (child.bits < twin->bits) {
      *twin = std::move(child);
    }
  }
}

/// Whether the longer rule is worth its words.
bool worth(const Rule& longer, const Rule& rule, const Score& score) {
  return longer.cost() <= rule.cost() - kWorthBits - kWorthShare * score.savable(rule.inside);
}

/// Whether the longer rule leaves out every right cell and no wrong one.
bool purifies(const Rule& longer, const Rule& rule) {
  return rule.inside.right > 0 && longer.inside.right <= 0 && longer.inside.wrong >= rule.inside.wrong;
}

/// The cheapest rule; a longer one only if it is worth it. Nothing if the wrong cells are scattered.
std::optional<Rule> find_rule(const Columns& columns, const Cells& cells, const Score& score) {
  Rule chosen;
  chosen.rows.assign(cells.rows(), 1);
  chosen.heads.assign(cells.heads(), 1);
  chosen.inside = score.total();
  chosen.data = score.data(chosen.inside);
  const double limit = chosen.cost();
  std::size_t length = 0;
  std::vector<Rule> beam = {chosen};
  for (std::size_t i = 1; i <= kMostConditions && i <= length + 2; ++i) {
    std::vector<Rule> children;
    for (const Rule& rule : beam) add_children(rule, columns, cells, score, limit, children);
    if (children.empty()) break;
    std::stable_sort(children.begin(), children.end(), [](const Rule& a, const Rule& b) { return a.cost() < b.cost(); });
    // Exceptions are rare: a rule without any is better than one whose exceptions would be a little shorter to list.
    const auto exact = std::find_if(children.begin(), children.end(), [&](const Rule& r) { return perfect(r.inside, score); });
    if (exact != children.end()) return *exact;
    if (children.size() > kBeam) children.resize(kBeam);
    const auto pure = std::find_if(children.begin(), children.end(), [&](const Rule& r) { return purifies(r, chosen); });
    const Rule& best = pure != children.end() ? *pure : children.front();
    if (pure != children.end() || worth(best, chosen, score)) chosen = best, length = i;
    beam = std::move(children);
  }
  const Tally& inside = chosen.inside;
  if (length == 0 && inside.wrong < kMostlyWrong * (inside.wrong + inside.right)) return std::nullopt;
  return chosen;
}

/// Cells of one row err together, and then count as one.
double scale_of(const Cells& cells) {
  const std::size_t rows = cells.wrong_rows();
  return rows <= 1 ? 1 : std::min(1.0, static_cast<double>(rows) / cells.total().wrong);
}

/// Scale of all cells, larger for a few wrong rows: any rule is worth its price then, because few rows cannot be scattered.
double scale_of_all(const Cells& cells) {
  const std::size_t rows = cells.wrong_rows();
  return rows < kFew ? static_cast<double>(kFew) / static_cast<double>(std::max<std::size_t>(1, rows)) : scale_of(cells);
}

struct Cover {
  std::vector<Rule> rules;
  double cost = 0;
  bool exact = true;  ///< no exception to any rule, no wrong cell left
  bool sound = true;  ///< few exceptions, hardly a wrong cell left: only then several rules are several sets
};

/// Finds one rule after the other, at most `most`, each for the cells that earlier rules leave.
Cover cover(const Columns& columns, Cells cells, bool local, std::size_t most) {
  Cover cover;
  // A single rule should contain every wrong cell; each of several rules leaves the cells of the other rules outside.
  const double outside = most == 1 ? kOutside : 1;
  const double scale = scale_of(cells), all_wrong = cells.total().wrong;
  while (cover.rules.size() < most) {
    const Score score(cells.total(), cover.rules.empty() ? scale_of_all(cells) : scale_of(cells), local, outside);
    if (score.total().wrong <= 0) break;
    std::optional<Rule> rule = find_rule(columns, cells, score);
    if (!rule) break;
    cover.cost += rule->bits + scale * surprise(rule->inside);
    cover.exact = cover.exact && rule->inside.right <= 0;
    cover.sound = cover.sound && rule->inside.wrong >= kSoundPrecision * (rule->inside.wrong + rule->inside.right);
    cells.remove(rule->rows, rule->heads);
    cover.rules.push_back(std::move(*rule));
  }
  const Tally rest = cells.total();
  cover.exact = cover.exact && rest.wrong <= 0;
  cover.sound = cover.sound && rest.wrong <= (1 - kSoundRecall) * all_wrong;
  cover.cost += scale * kOutside * surprise(rest);
  return cover;
}

std::vector<Rule> cheapest_cover(const Columns& columns, const Cells& cells) {
  const Cover one = cover(columns, cells, /*local=*/false, 1);
  if (one.exact) return one.rules;
  const double unknown = scale_of(cells) * surprise(cells.total());
  Cover best = one;
  for (const bool local : {false, true}) {
    Cover several = cover(columns, cells, local, kRules);
    const bool good = several.exact ? several.cost + kWorthBits < unknown && !best.exact
                                    : several.sound && several.cost < kWorthMoreRules * best.cost;
    if (good) best = std::move(several);
  }
  return best.rules;
}

bool within(const Mask& inner, const Mask& outer) {
  return std::equal(inner.begin(), inner.end(), outer.begin(), [](std::uint8_t a, std::uint8_t b) { return a <= b; });
}

/// A rule inside of a later one only said where the later one is clearest.
void drop_nested(std::vector<Rule>& rules) {
  for (std::size_t i = 0; i < rules.size();) {
    const bool nested = std::any_of(rules.begin() + static_cast<std::ptrdiff_t>(i) + 1, rules.end(), [&](const Rule& later) {
      return within(rules[i].rows, later.rows) && within(rules[i].heads, later.heads);
    });
    if (nested) {
      rules.erase(rules.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

}  // namespace

std::vector<Rule> find_rules(const Columns& columns, const Cells& cells) {
  std::vector<Rule> rules = cheapest_cover(columns, cells);
  drop_nested(rules);
  for (Rule& rule : rules) rephrase(columns, rule);
  return rules;
}

}  // namespace quire::diagnose_detail
