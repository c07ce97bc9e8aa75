// SPDX-License-Identifier: Apache-2.0
// Keys that the mask hides from a row and a kernel reads all the same, in sets that tiles and pages make, and a plant that gives
// them a score.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnose/mechanisms/mechanism.h"

namespace quire::diagnose_detail {

inline constexpr const char* kNextHiddenKeys = "the mask sets scores to -infinity before the maximum is taken";

/// Hidden keys that a kernel reads.
struct HiddenKeys {
  std::string text;
  std::function<std::int64_t(const Row&)> end;
  bool before = false;  ///< those before the row's first key, too
  std::int64_t first(const Facts& facts, const Row& row) const;
};

/// Sets of hidden keys that kernels read: up to the end of the sequence, of a page or a tile, and before the window, if there is
/// one.
std::vector<HiddenKeys> hidden_keys(const Facts& facts);

/// Folds hidden keys in.
void plant_hidden_keys(Model& m, const HiddenKeys& hidden);
/// Gives hidden keys a score in place of -infinity.
void plant_scores(Model& m, const HiddenKeys& hidden, double score);

}  // namespace quire::diagnose_detail
