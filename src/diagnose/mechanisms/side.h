// SPDX-License-Identifier: Apache-2.0
// K, V, or both: a mechanism that reads the cache elsewhere may do so on one side only.
#pragma once

#include <array>
#include <string>

#include "faults/model.h"

namespace quire::diagnose_detail {

struct Sides {
  bool key = true, value = true;
  bool has(faults_detail::Side side) const { return side == faults_detail::Side::key ? key : value; }
  std::string text() const { return key && value ? "K and V" : key ? "K" : "V"; }
};
inline constexpr std::array<Sides, 3> kSideSets{{{true, true}, {true, false}, {false, true}}};

}  // namespace quire::diagnose_detail
