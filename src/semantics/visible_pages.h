// SPDX-License-Identifier: Apache-2.0
// Which entries of a request's row of the block table may be read: those of pages that hold a cached key which some row of the
// request sees. All other entries may hold anything. The rules of the contract, the checks on devices and all kernels ask here;
// the reference and the fault model do not (tests/semantics compares).
#pragma once

#include <cstdint>

#include "semantics/ceil_div.h"
#include "semantics/mask.h"
#include "semantics/qualifiers.h"

namespace quire::semantics {

/// The bits of all rows of a request.
struct TreeRows {
  TreeBits first;  ///< bits of row 0
  std::int64_t bytes_of_row = 0, rows = 0, tree_begin = 0;

  QUIRE_HD TreeBits of_row(std::int64_t row) const { return {first.data + row * bytes_of_row, first.stride}; }
  /// Whether some row sees one of the keys [begin, end), which are of the tree.
  QUIRE_HD bool see(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      const TreeBits bits = of_row(row);
      for (std::int64_t key = begin; key < end; ++key)
        if (bits.sees(key - tree_begin)) return true;
    }
    return false;
  }
};

/// The columns of a request's row whose entries are read. The bits of a tree are read for columns that have keys of the tree
/// alone: few requests have a tree, and few entries of a tree are wild.
struct VisiblePages {
  SeenKeys keys;  ///< cached keys
  std::int64_t page_size = 1;
  TreeRows tree;

  /// Columns of a range of keys.
  QUIRE_HD KeyRange columns(const KeyRange& range) const { return {range.begin / page_size, ceil_div(range.end, page_size)}; }
  /// Whether the column's page holds a key that some row sees.
  QUIRE_HD bool has(std::int64_t column) const {
    const std::int64_t first = column * page_size, end = first + page_size;
    if (meet(keys.prefix, first, end) || meet(keys.middle, first, end)) return true;
    return meet(keys.tree, first, end) &&
           tree.see(first > keys.tree.begin ? first : keys.tree.begin, end < keys.tree.end ? end : keys.tree.end);
  }
  /// Calls visit(begin, end) for each range of keys below `limit` that some row sees.
  template <class Visit>
  void for_each_range(std::int64_t limit, Visit&& visit) const {
    const SeenKeys below = keys.below(limit);
    for (const KeyRange& range : {below.prefix, below.middle})
      if (range.begin < range.end) visit(range.begin, range.end);
    for (std::int64_t key = below.tree.begin, end = key; key < below.tree.end; key = end + 1) {
      for (end = key; end < below.tree.end && tree.see(end, end + 1);) ++end;
      if (key < end) visit(key, end);
    }
  }
  /// Columns that a table needs. A tree's bits are read if the table has fewer columns, `width`, than all keys would need.
  QUIRE_HD std::int64_t needed(std::int64_t width) const {
    std::int64_t last = columns(keys.hull()).end;
    if (last <= width || keys.tree.end == 0) return last;
    const std::int64_t other = columns(keys.below(keys.tree.begin).hull()).end;
    while (last > other && !has(last - 1)) --last;
    return last;
  }

 private:
  QUIRE_HD static bool meet(const KeyRange& range, std::int64_t first, std::int64_t end) {
    return range.begin < end && first < range.end;
  }
};

}  // namespace quire::semantics
