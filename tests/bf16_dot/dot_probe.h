// SPDX-License-Identifier: Apache-2.0
// The instruction itself, called from a unit compiled for it.
#pragma once

#include <cstdint>

namespace quire::test {

/// out[i] = c[i] + a[i] . b[i] for 16 lanes of bf16 pairs by VDPBF16PS; null if this build has no such instruction.
using HardwareDot = void (*)(const std::uint32_t* a, const std::uint32_t* b, const float* c, float* out);
extern const HardwareDot kHardwareDot;

}  // namespace quire::test
