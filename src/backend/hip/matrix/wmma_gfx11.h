// SPDX-License-Identifier: Apache-2.0
// Fragments of v_wmma_f32_16x16x16 on RDNA3 (gfx1100), wave of 32. The names are explained in mfma.h.
//
// Each lane brings all 16 elements of k, in order; lanes 16 to 31 repeat what lanes 0 to 15 bring. D has even rows in group 0 and
// odd rows in group 1.
#pragma once

#include "backend/hip/matrix/element.h"
#include "backend/hip/matrix/instructions.h"

namespace quire::hip::matrix {

struct WmmaGfx11 {
  static constexpr int kWave = 32;
  using Operand = Words<8>;
  using Sums = Floats<8>;
  static constexpr int kSums = 8;

  static constexpr int kRunElements = 16, kRunDims = 16, kProducts = 1;
  using Run = Words<kRunElements / 2>;
  QUIRE_DEVICE static int run_begin(int) { return 0; }
  template <int kProduct>
  QUIRE_DEVICE static Operand part(const Run& run) {
    return run;
  }

  QUIRE_DEVICE static int sum_row(int group, int i) { return 2 * i + group; }

  /// The lane has the weights of every other key of its column, the lane 16 further has those between.
  static constexpr int kQuads = 4;
  QUIRE_DEVICE static int first_quad(int) { return 0; }
  QUIRE_DEVICE static Operand weights(const Words<kSums / 2>& pairs, int group) {
    Operand all;
    QUIRE_UNROLL
    for (int i = 0; i < kSums / 2; ++i) {
      const std::uint32_t other = gpu::shuffle_xor(pairs.word[i], 16);
      const std::uint32_t even = group == 0 ? pairs.word[i] : other, odd = group == 0 ? other : pairs.word[i];
      all.word[2 * i] = (even & 0xFFFFu) | odd << 16;
      all.word[2 * i + 1] = even >> 16 | (odd & 0xFFFF0000u);
    }
    return all;
  }

  template <class T>
  QUIRE_DEVICE static void multiply(Sums& d, const Operand& a, const Operand& b) {
    if constexpr (T::kDType == DType::f16) {
      wmma_gfx11_f16(d, a, b);
    } else {
      wmma_gfx11_bf16(d, a, b);
    }
  }
};

struct Gfx1100 : WmmaGfx11 {
  static constexpr Fp8Unit kFp8 = Fp8Unit::none;
};

}  // namespace quire::hip::matrix
