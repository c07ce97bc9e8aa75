// SPDX-License-Identifier: Apache-2.0
// The f32 value of every fp8 code, for kernels that decode by table look-up (subnormals included, unlike bf16 bit tricks).
#pragma once

#include <cstdint>

#include "quire/tensor.hpp"

namespace quire::cpu {

/// [256] values by code, or null if the dtype is neither an fp8 format nor fp8_e8m0. The tables live as long as the program.
const float* fp8_table(DType dtype) noexcept;

/// Values of the codes as bf16 codes: every fp8 value is a bf16.
const std::uint16_t* fp8_bf16_table(DType dtype) noexcept;

}  // namespace quire::cpu
