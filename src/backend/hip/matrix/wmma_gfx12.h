// SPDX-License-Identifier: Apache-2.0
// Fragments of v_wmma_f32_16x16x16 on RDNA4 (gfx1201), wave of 32. The names are explained in mfma.h.
//
// A lane brings 8 elements of k; the hardware interleaves those of the two groups, which no kernel need know. D has rows 0 to 7
// in group 0 and rows 8 to 15 in group 1.
#pragma once

#include "backend/hip/matrix/element.h"
#include "backend/hip/matrix/instructions.h"

namespace quire::hip::matrix {

struct WmmaGfx12 {
  static constexpr int kWave = 32;
  using Operand = Words<4>;
  using Sums = Floats<8>;
  static constexpr int kSums = 8;

  static constexpr int kRunElements = 8, kRunDims = 16, kProducts = 1;
  using Run = Words<kRunElements / 2>;
  QUIRE_DEVICE static int run_begin(int group) { return 8 * group; }
  template <int kProduct>
  QUIRE_DEVICE static Operand part(const Run& run) {
    return run;
  }

  QUIRE_DEVICE static int sum_row(int group, int i) { return 8 * group + i; }

  /// The weights are operand B already: their elements are keys 8 * group to 8 * group + 7, two quads.
  static constexpr int kQuads = 2;
  QUIRE_DEVICE static int first_quad(int group) { return 2 * group; }
  QUIRE_DEVICE static Operand weights(const Words<kSums / 2>& pairs, int) { return pairs; }

  template <class T>
  QUIRE_DEVICE static void multiply(Sums& d, const Operand& a, const Operand& b) {
    if constexpr (T::kDType == DType::f16) {
      wmma_gfx12_f16(d, a, b);
    } else {
      wmma_gfx12_bf16(d, a, b);
    }
  }
};

struct Gfx1201 : WmmaGfx12 {
  static constexpr Fp8Unit kFp8 = Fp8Unit::ocp;
};

}  // namespace quire::hip::matrix
