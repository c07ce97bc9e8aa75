// SPDX-License-Identifier: Apache-2.0
// The words of the fault model (src/faults/model.h) that every part of a diagnosis uses.
#pragma once

#include <array>
#include <string>

#include "faults/families.h"

namespace quire::diagnose_detail {

using faults_detail::cached_place_changed;
using faults_detail::Facts;
using faults_detail::Fault;
using faults_detail::function_changed;
using faults_detail::function_set;
using faults_detail::Key;
using faults_detail::keys_changed;
using faults_detail::keys_dropped;
using faults_detail::Model;
using faults_detail::Place;
using faults_detail::Plant;
using faults_detail::result_changed;
using faults_detail::rounded;
using faults_detail::Row;
using faults_detail::row_changed;
using faults_detail::RowHead;
using faults_detail::RowResult;
using faults_detail::Sample;
using faults_detail::Side;

/// K, V, or both: a kernel that reads the cache elsewhere may do so on one side only.
struct Sides {
  bool key = true, value = true;
  bool has(Side side) const { return side == Side::key ? key : value; }
  bool both() const { return key && value; }
  std::string text() const { return both() ? "K and V" : key ? "K" : "V"; }
};
inline constexpr std::array<Sides, 3> kSideSets{{{true, true}, {true, false}, {false, true}}};

}  // namespace quire::diagnose_detail
