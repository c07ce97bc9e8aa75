// SPDX-License-Identifier: Apache-2.0
// observed / expected of whole cells: the one inversion that needs neither keys nor weights, so that it covers every wrong cell.
#pragma once

#include <map>
#include <vector>

#include "diagnose/mechanisms/mechanism.h"

namespace quire::diagnose_detail {

struct Ratio {
  const Compared* cell = nullptr;
  double factor = 1;        ///< observed = factor * expected fits best, over the wrong dims
  double left = 1;          ///< share of the squared error that is left
  double left_per_dim = 1;  ///< squared error that is left, in tolerances, per wrong dim
};

/// Ratios of all wrong cells of the scene that hold finite numbers.
std::vector<Ratio> ratios(const Scene& scene);

/// Ratios that explain their cells, if nearly all ratios do; else none.
std::vector<Ratio> explaining_ratios(const Scene& scene);

/// Returns a number per query head from values of cells, if the cells of each head agree; empty otherwise.
std::map<std::int64_t, double> by_head(const std::vector<Ratio>& list, const std::vector<double>& values, double relative);

/// Returns a number per query head: the value of the cell whose factor is furthest from 1, which is the most precise one.
std::map<std::int64_t, double> clearest_by_head(const std::vector<Ratio>& list, const std::vector<double>& values);

/// "head 3: 0.5, head 4: 0.25, ..." (the first six).
std::string heads_text(const std::map<std::int64_t, double>& values);

}  // namespace quire::diagnose_detail
