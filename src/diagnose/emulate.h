// SPDX-License-Identifier: Apache-2.0
// What a right kernel with a numerics profile writes, by the second model: to see how its rounding shows on this very batch.
#pragma once

#include "faults/model.h"
#include "quire/diagnose.hpp"

namespace quire::diagnose_detail {

/// The truth, rounded where the profile rounds. An accumulator's roundings depend on the kernel's order and are left out.
faults_detail::Model emulated(const faults_detail::Facts& facts, const NumericsProfile& profile);

}  // namespace quire::diagnose_detail
