// SPDX-License-Identifier: Apache-2.0
// A pattern in words.
#pragma once

#include "diagnose/pattern.h"

namespace quire::diagnose_detail {

/// Numbers of compared rows and heads that a rule selects.
struct Selection {
  std::int64_t rows = 0, heads = 0;
};

/// The sentence of pattern `index` of `count`.
std::string text_of(const Facts& facts, const Localisation& where, const Pattern& pattern, const Selection& selection,
                    std::size_t index, std::size_t count);
std::string text_without_rule(const Localisation& where, const Pattern& pattern);

}  // namespace quire::diagnose_detail
