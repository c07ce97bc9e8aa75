// SPDX-License-Identifier: Apache-2.0
// Output of a right kernel with a numerics profile, by the model of src/faults: shows the effect of its rounding on this batch.
#pragma once

#include "diagnose/fault_model.h"
#include "quire/diagnose.hpp"

namespace quire::diagnose_detail {

/// The truth, rounded where the profile rounds. An accumulator's roundings depend on the kernel's order and are left out.
Model emulated(const Facts& facts, const NumericsProfile& profile);

}  // namespace quire::diagnose_detail
