// SPDX-License-Identifier: Apache-2.0
// Keys that a row sees where masks have a shape, key by key from the condition of batch.hpp, and what a kernel may believe of it.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "faults/model.h"
#include "quire/problem.hpp"

namespace quire::faults_detail {

/// Beliefs about the shape of a mask; positions are those of the sequence.
struct Shapes {
  std::int64_t window = 0;  ///< far beyond every key if there is none
  bool spans_beyond_window = false;
  bool prefix_is_ordered = true;  ///< false: rows within the prefix see its later keys
  bool tree_alone = false;        ///< true: rows of a tree do not see the keys before it
  std::function<std::int64_t(const Row&, std::int64_t position)> chunk_of;  ///< never falls from a position to the next
  std::function<std::int64_t(const Row&)> prefix;
  std::function<std::optional<Span>(const Row&, std::int64_t position)> span_of;
  std::function<std::int64_t(const Row&)> tree_len;
  std::function<bool(const Row&, std::int64_t bit)> bit;
};

/// position / chunk, towards minus infinity: rows may stand before position 0.
std::int64_t rounded_down(std::int64_t position, std::int64_t chunk);

/// The truth.
Shapes shapes_of(const Facts& facts);

/// Returns ranges of positions outside of which a row sees no key but a tree's: the prefix, the span, and the keys around the
/// row. The ranges are sorted by their begin, and may overlap.
std::vector<Span> ranges_of(const Facts& facts, const Shapes& shapes, const Row& row);

/// Appends the keys that a row sees by `shapes`, counted from the request's first.
void keys_by(const Facts& facts, const Shapes& shapes, const Row& row, std::vector<Key>& keys);

}  // namespace quire::faults_detail
