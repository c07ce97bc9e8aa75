// GPU plans: how much room the device's own planning needs, whatever lengths it finds.
#pragma once

#include <cstdint>

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// The bounds of a problem whose lengths are known.
Bounds bounds_of(const Problem& problem);

/// Fills plan.lists from plan.bounds; fails if a count would not fit the device's 32-bit numbers.
Status size_lists(Plan& plan);

}  // namespace quire::plan_detail
