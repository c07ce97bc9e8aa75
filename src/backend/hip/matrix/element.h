// SPDX-License-Identifier: Apache-2.0
// The 16-bit types of matrix operands.
#pragma once

#include "backend/hip/matrix/instructions.h"
#include "quire/tensor.hpp"

namespace quire::hip::matrix {

struct F16 {
  static constexpr DType kDType = DType::f16;
  /// Weights are made 2^14 times as large: what two parts of f16 cannot hold of them is then below 2^-38 of the largest.
  static constexpr float kWeightShift = 14.0f;
  static constexpr std::uint32_t kExponentMask = 0x7C00u;

  QUIRE_DEVICE static std::uint32_t encode(float value) { return gpu::f16_encode(value); }
  QUIRE_DEVICE static float decode(std::uint32_t code) { return gpu::f16_decode(static_cast<std::uint16_t>(code)); }
  /// Two values that the type holds exactly.
  QUIRE_DEVICE static std::uint32_t pack_exact(float low, float high) { return pack_exact_f16(low, high); }
  /// Two parts of weights, off by at most 2^-11.
  QUIRE_DEVICE static std::uint32_t pack_weights(float low, float high) { return encode(low) | encode(high) << 16; }
};

struct Bf16 {
  static constexpr DType kDType = DType::bf16;
  static constexpr float kWeightShift = 0.0f;
  static constexpr std::uint32_t kExponentMask = 0x7F80u;

  QUIRE_DEVICE static std::uint32_t encode(float value) { return semantics::bf16_encode(value); }
  QUIRE_DEVICE static float decode(std::uint32_t code) { return semantics::bits_to_float(code << 16); }
  QUIRE_DEVICE static std::uint32_t pack_exact(float low, float high) {
    return semantics::float_to_bits(low) >> 16 | (semantics::float_to_bits(high) & 0xFFFF0000u);
  }
  /// Ties go away from zero: off by at most 2^-8 like rounding to even, in half the instructions. The NaN of a weight stays one.
  QUIRE_DEVICE static std::uint32_t pack_weights(float low, float high) {
    return (semantics::float_to_bits(low) + 0x8000u) >> 16 | ((semantics::float_to_bits(high) + 0x8000u) & 0xFFFF0000u);
  }
};

}  // namespace quire::hip::matrix
