// SPDX-License-Identifier: Apache-2.0
// The HIP backend as the attention stage calls it.
#pragma once

#include "backend/gpu/entry.h"

namespace quire::hip {

extern const gpu::Vendor kVendor;  ///< vendor.cpp

}  // namespace quire::hip
