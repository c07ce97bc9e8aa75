// SPDX-License-Identifier: Apache-2.0
// What became of one row, in terms that rows beside each other share: how far it moved, not where it is.
#pragma once

#include <cstdint>
#include <vector>

#include "caches/in_place.h"
#include "quire/tools/compare_caches.hpp"

namespace quire::caches {

enum class NoPlace { none, request, position, head, page };

struct Label {
  RowFate fate = RowFate::identical;
  bool other_side = false;    ///< K was found in V, or V in K
  std::int64_t request = -1;  ///< moved to another request: its id
  std::int64_t head_by = 0;   ///< head in B minus head in A, by the model's numbers
  std::int64_t shift = 0;     ///< moved: position in B minus position in A; unlisted: slot minus position
  NoPlace no_place = NoPlace::none;
  Found found{};               ///< changed: how the row in its place differs
  bool holds_another = false;  ///< changed: A's row that `request`, `head_by`, `shift` and `other_side` lead to stands there

  bool operator==(const Label& other) const noexcept;
};

/// Positions [first, last] of one request, head and side; `last` is -1 at the end of a request.
struct Segment {
  std::int64_t first = 0, last = 0, rows = 0;
  Label label{};
  std::vector<Segment> pages{};  ///< whole pages that went to several places; their labels count instead of `label`
  bool operator==(const Segment& other) const noexcept {
    return first == other.first && last == other.last && label == other.label && pages == other.pages;
  }
};

}  // namespace quire::caches
