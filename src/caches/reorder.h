// SPDX-License-Identifier: Apache-2.0
// Pages read in another order of tokens and heads than they were written in: "nhd read as hnd", "tokens 0-7 of 4 heads read as 16
// tokens of 2".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "caches/view.h"

namespace quire::caches {

/// A page as a list of rows: token by token (nhd), or head by head (hnd).
struct PageOrder {
  bool by_token = true;
  std::int64_t tokens = 1, heads = 1;
  std::int64_t at(std::int64_t token, std::int64_t head) const noexcept {
    return by_token ? token * heads + head : head * tokens + token;
  }
  std::int64_t token(std::int64_t row) const noexcept { return by_token ? row / heads : row % tokens; }
  std::int64_t head(std::int64_t row) const noexcept { return by_token ? row % heads : row / tokens; }
};

/// The rows of a page of `source`, from row `first` on, were taken for a page of `target`. A's page is the heads of the source
/// from `first_head` on.
struct Reorder {
  PageOrder source, target;
  std::int64_t first = 0, first_head = 0;

  /// The place in B where this order puts a row of A; nullopt if the order cuts the row off.
  std::optional<Place> of(const Place& place, std::int64_t page_size_of_a) const noexcept;
  std::string text() const;
};

/// Every order in which the pages could have been read, beginning with those that keep the caches' declared layouts. An order
/// that only moves heads or pages is left out.
std::vector<Reorder> reorders(const View& a, const View& b);

}  // namespace quire::caches
