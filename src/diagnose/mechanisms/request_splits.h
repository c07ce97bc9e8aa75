// SPDX-License-Identifier: Apache-2.0
// Splits whose size differs by request, as where a kernel cuts every sequence into a few parts of whole tiles. The size follows
// from one opened cell of each wrong request, for a mistake that is given; other cells then confirm or refute it.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "diagnose/mechanisms/cut.h"
#include "diagnose/mechanisms/mechanism.h"

namespace quire::diagnose_detail {

/// Keys of a split, by request. A request without an entry is not split.
using SplitSizes = std::map<std::int64_t, std::int64_t>;

/// The size of a request's splits; without splits, more than any sequence has.
std::int64_t size_of_splits(const SplitSizes& sizes, std::int64_t req);
Cut cut_by_request(const SplitSizes& sizes);
std::string text_of(const SplitSizes& sizes);

/// A cell with its sums over short runs of keys.
struct CellOfRequest {
  OpenCell cell;
  std::vector<Key> keys;            ///< those that the row sees
  std::vector<double> sums;         ///< [run][dim] of weight * V
  std::vector<std::int64_t> sizes;  ///< sizes of splits that kernels choose for this length
};

/// The cell of each wrong request that sees most keys. Empty if there are too many requests, or a cell that cannot be opened.
std::vector<CellOfRequest> cell_of_each_request(const Scene& scene);

/// Sizes of splits under which the planted mistake explains every cell; none if one of them finds no size. The mistake changes
/// keys or softmax only.
std::optional<SplitSizes> fitted_sizes(const Facts& facts, std::span<const CellOfRequest> cells,
                                       const std::function<Plant(const SplitSizes&)>& mistake);

}  // namespace quire::diagnose_detail
