// SPDX-License-Identifier: Apache-2.0
// The search for the cheapest rule over rows and heads, and for as many rules as there are separate sets of wrong cells.
#pragma once

#include <vector>

#include "diagnose/pattern_price.h"

namespace quire::diagnose_detail {

/// A conjunction and what it selects of the compared cells.
struct Rule {
  std::vector<Condition> row_conditions, head_conditions;
  Mask rows, heads;
  Tally inside;
  double bits = 0;      ///< price of all conditions
  double row_bits = 0;  ///< price of the conditions on the row
  double data = 0;      ///< surprise that is left
  double cost() const { return bits + data; }
};

/// Rules that together describe the wrong cells, in the order in which they were found; empty if no rule does.
std::vector<Rule> find_rules(const Columns& columns, const Cells& cells);

/// Says the rule's rows in the cheapest words that select the same ones (pattern_rephrase.cpp).
void rephrase(const Columns& columns, Rule& rule);

}  // namespace quire::diagnose_detail
