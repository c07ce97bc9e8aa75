// SPDX-License-Identifier: Apache-2.0
// What a right kernel with a numerics profile writes, by the second model: to see how its rounding shows on this very batch.
#pragma once

#include "faults/model.h"
#include "quire/diagnose.hpp"

namespace quire::cause {

/// The truth, rounded where the profile rounds. An accumulator's roundings depend on the kernel's order and are left out.
fault::Model emulated(const fault::Facts& facts, const NumericsProfile& profile);

}  // namespace quire::cause
