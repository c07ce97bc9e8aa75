// SPDX-License-Identifier: Apache-2.0
// Patterns: the shortest rules over the batch's attributes that select the wrong cells. A cell is a (token, head).
//
// A rule is a conjunction: at most two conditions on the row, two on the head, one on the dims. Each condition has a price in
// bits (pattern_search.h), each exception one by its surprise; the cheapest description wins. Two faults in different scopes give
// two rules.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/localise.h"

namespace quire::diagnose_detail {

using Attribute = CellAttribute;
using Test = CellTest;
using Condition = CellCondition;
using Pattern = CellPattern;

inline constexpr std::size_t kRowAttributes = 11;  ///< attributes before `page`, each a number per row
inline constexpr std::size_t kAttributes = 16;

/// Values of a cell that conditions compare; `dim` is not among them.
struct CellAttributes {
  std::array<std::int64_t, kAttributes> value{};
  std::vector<std::int64_t> pages;  ///< physical pages that the visible keys lie in, in logical order
};

/// `value` modulo `modulus`, in [0, modulus): rows that stand before their keys have negative positions.
constexpr std::int64_t remainder(std::int64_t value, std::int64_t modulus) { return (value % modulus + modulus) % modulus; }
CellAttributes attributes_of(const Facts& facts, std::int64_t token, std::int64_t head, bool with_pages = true);

bool selects(const Pattern& pattern, const CellAttributes& cell);

/// Returns a pattern per separate set of wrong cells, largest first, at most four; one without a rule if no rule holds; empty if
/// no cell is wrong.
std::vector<Pattern> find_patterns(const Facts& facts, const Localisation& where);

/// Returns a pattern per class of bytes among the wrong cells; empty if there is one class, or if one of them has no exact rule.
std::vector<Pattern> find_patterns_by_bytes(const Facts& facts, const Localisation& where);

/// A pattern of given conditions, with counts of the compared cells that it selects.
Pattern counted_pattern(const Facts& facts, const Localisation& where, std::vector<Condition> conditions);

/// Whether the rule selects a cell of the batch, compared or not.
bool contains(const Facts& facts, const Pattern& pattern, std::int64_t token, std::int64_t head);

/// "the decode rows, heads 16-31, dims 0-31": conditions in words.
std::string words(const Facts& facts, const std::vector<Condition>& conditions);

/// Returns at most five facts that need no hypothesis: keys, pages and rows of wrong and right cells, the ratio to the expected
/// values, size and sign of the error, lse.
std::vector<std::string> observations(const Facts& facts, const Observed& observed, const Localisation& where);

/// Numbers of compared rows and heads that a rule selects, and of the cells among them that do not count: see unmoved.h.
struct Selection {
  std::int64_t rows = 0, heads = 0, unmoved = 0;
};

/// The sentence of pattern `index` of `count`.
std::string text_of(const Facts& facts, const Localisation& where, const Pattern& pattern, const Selection& selection,
                    std::size_t index, std::size_t count);
std::string text_without_rule(const Localisation& where, const Pattern& pattern);

}  // namespace quire::diagnose_detail
