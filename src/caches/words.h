// SPDX-License-Identifier: Apache-2.0
// Words for labels, as a comparison of caches prints them.
#pragma once

#include <string>

#include "caches/trace.h"

namespace quire::caches {

/// "position 3", "positions 16 to 31".
std::string positions_text(std::int64_t first, std::int64_t last);

/// The rows that a text is about: heads by the model's numbers, and sides.
struct Told {
  std::int64_t first_head = 0, last_head = 0;
  bool k = false, v = false;
};

/// What became of a run: "at positions 32 to 47", "zeros in B". `last` is the last position, resolved.
std::string text_of(const Segment& segment, std::int64_t last, const Told& told, const View& b, const Trace& trace);

/// The fate of the rows of a label, without positions, for a summary: "moved by 1 position", "K and V are swapped".
std::string summary_of(const Label& label, const Told& told, const Trace& trace);

}  // namespace quire::caches
