// SPDX-License-Identifier: Apache-2.0
// See find_profile.h.
#include "diagnose/find_profile.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace quire::diagnose_detail {
namespace {

// Explained against left variance, each per degree of freedom. Chance exceeds 10 once in some thousand calls with as few cells as
// kFewestLeft allows; a factor that matters reaches hundreds.
constexpr double kFarBeyondChance = 36;
constexpr std::int64_t kFewestLeft = 8;  // degrees of freedom: cells less groups

struct Group {
  double along = 0, length = 0;
};

bool says_something(const Projection& c) { return c.noise > 0 && c.length > 0; }

}  // namespace

bool have_common_factor(std::span<const Projection> cells, double lawful) {
  std::map<std::int64_t, Group> groups;
  double total = 0;
  std::int64_t count = 0;
  for (const Projection& c : cells) {
    if (!says_something(c)) continue;
    Group& group = groups[c.group];
    group.along += c.along / c.noise;
    group.length += c.length / c.noise;
    total += c.along * c.along / c.length / c.noise;
    ++count;
  }
  const std::int64_t left_freedom = count - std::ssize(groups);
  if (left_freedom < kFewestLeft) return false;
  double explained = 0, beyond = 0;
  for (const auto& [id, group] : groups) {
    const double factor = std::fabs(group.along / group.length);
    explained += factor * factor * group.length;
    const double unlawful = std::max(0.0, factor - lawful);
    beyond += unlawful * unlawful * group.length;
  }
  const double left = std::max(total - explained, 0.0) / static_cast<double>(left_freedom);
  return beyond / static_cast<double>(groups.size()) > kFarBeyondChance * left;
}

}  // namespace quire::diagnose_detail
