// SPDX-License-Identifier: Apache-2.0
// Fragments of v_mfma_f32_16x16x16 (CDNA2 to CDNA4: gfx90a, gfx942, gfx950), wave of 64.
//
// What every fragment file says of D = A * B, all 16x16: lane l brings row l % 16 of A and column l % 16 of B, and holds elements
// of column l % 16 of D. Lanes with equal l % 16 share that row and column; l / 16 is the lane's group. Which elements of k a
// group brings does not matter as long as A and B agree, and the kernels make use of that: they say "the elements of group g",
// never k. AMD's layouts: amd_matrix_instruction_calculator, recorded in tests/simt/layouts/.
#pragma once

#include "backend/hip/matrix/element.h"
#include "backend/hip/matrix/instructions.h"

namespace quire::hip::matrix {

struct Mfma {
  static constexpr int kWave = 64;
  using Operand = Words<2>;  ///< 4 elements of k
  using Sums = Floats<4>;
  static constexpr int kSums = 4;

  /// A run is what a lane loads of a row of K or of the query at once: kRunElements dims from run_begin(group), operands of
  /// kProducts products, which together cover kRunDims dims.
  static constexpr int kRunElements = 8, kRunDims = 32, kProducts = 2;
  using Run = Words<kRunElements / 2>;
  QUIRE_DEVICE static int run_begin(int group) { return 8 * group; }
  template <int kProduct>
  QUIRE_DEVICE static Operand part(const Run& run) {
    return {run.word[2 * kProduct], run.word[2 * kProduct + 1]};
  }

  /// Row of D that the lane holds in register i.
  QUIRE_DEVICE static int sum_row(int group, int i) { return 4 * group + i; }

  /// A column of weights, kept in the rows of D, as operand B: it is one already. Its elements are keys 4 * group to 4 * group +
  /// 3, one quad of four keys, so operand A takes that quad of V.
  static constexpr int kQuads = 1;
  QUIRE_DEVICE static int first_quad(int group) { return group; }
  QUIRE_DEVICE static Operand weights(const Words<kSums / 2>& pairs, int) { return pairs; }

  template <class T>
  QUIRE_DEVICE static void multiply(Sums& d, const Operand& a, const Operand& b) {
    if constexpr (T::kDType == DType::f16) {
      mfma_f16(d, a, b);
    } else {
      mfma_bf16(d, a, b);
    }
  }
};

struct Gfx90a : Mfma {
  static constexpr Fp8Unit kFp8 = Fp8Unit::none;
};
struct Gfx942 : Mfma {
  static constexpr Fp8Unit kFp8 = Fp8Unit::fnuz;
};
struct Gfx950 : Mfma {
  static constexpr Fp8Unit kFp8 = Fp8Unit::ocp;
};

}  // namespace quire::hip::matrix
