// SPDX-License-Identifier: Apache-2.0
// Keys that a row sees, range by range from the condition of batch.hpp, and what a kernel may believe of it.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "faults/model.h"
#include "quire/problem.hpp"

namespace quire::faults_detail {

/// Beliefs about the shape of a mask; positions are those of the sequence.
struct Shapes {
  /// The first key that the window leaves, and the last one that order leaves; counted from the request's first key.
  std::function<std::int64_t(const Row&)> first, last;
  bool spans_beyond_window = false;
  bool prefix_is_ordered = true;  ///< false: rows within the prefix see its later keys
  bool tree_alone = false;        ///< true: rows of a tree do not see the keys before it
  std::function<std::int64_t(const Row&, std::int64_t position)> chunk_of;  ///< chunk of a position; never decreases
  std::function<std::int64_t(const Row&)> prefix;
  std::function<std::optional<Span>(const Row&, std::int64_t position)> span_of;
  std::function<std::int64_t(const Row&)> tree_len;
  std::function<bool(const Row&, std::int64_t bit)> bit;
};

/// position / chunk, towards minus infinity: rows may stand before position 0.
std::int64_t rounded_down(std::int64_t position, std::int64_t chunk);

/// The truth.
Shapes shapes_of(const Facts& facts);

/// Returns the keys that a row sees by `shapes`, without those of a tree: disjoint ranges in rising order, counted from the
/// request's first key. The last one reaches beyond the request's keys if `last` does.
std::vector<Span> ranges_of(const Facts& facts, const Shapes& shapes, const Row& row);

/// Appends the keys that a row sees by `shapes`, counted from the request's first.
void keys_by(const Facts& facts, const Shapes& shapes, const Row& row, std::vector<Key>& keys);

/// A kernel whose rows see what `shapes` leaves.
std::function<void(Model&)> sees_by(const Facts& facts, const Shapes& shapes);

/// Appends the keys that the mask leaves to a row, if the window begins at `first` and order ends at `last`: the rest of the mask
/// (chunk, prefix, spans, tree) is true.
void keys_within(const Facts& facts, const Row& row, std::int64_t first, std::int64_t last, std::vector<Key>& keys);

}  // namespace quire::faults_detail
