// SPDX-License-Identifier: Apache-2.0
// Place of each matrix element in the registers of a wave, for the dense matrix instructions with f32 accumulators.
//
// Source: AMD's instruction set manuals; check_layouts.py compares every entry with AMD's Matrix Instruction Calculator, which
// does not know gfx950. A is [kSize, kDepth], B is [kDepth, kSize], D is [kSize, kSize]. Row of A and column of B and D are lane
// % kSize.
#pragma once

namespace quire::amd {

/// MFMA 16x16: a lane's elements are consecutive in k.
template <int depth>
struct Mfma16 {
  static constexpr int kSize = 16, kDepth = depth, kLanes = 64, kElements = depth / 4, kResults = 4;
  static constexpr int k(int lane, int element) { return kElements * (lane / 16) + element; }
  static constexpr int row(int lane, int result) { return 4 * (lane / 16) + result; }
};

/// MFMA 32x32.
template <int depth>
struct Mfma32 {
  static constexpr int kSize = 32, kDepth = depth, kLanes = 64, kElements = depth / 2, kResults = 16;
  static constexpr int k(int lane, int element) { return kElements * (lane / 32) + element; }
  static constexpr int row(int lane, int result) { return 8 * (result / 4) + 4 * (lane / 32) + result % 4; }
};

/// RDNA3 WMMA: every lane holds all of k, and lanes 16 to 31 must repeat lanes 0 to 15.
struct Wmma11 {
  static constexpr int kSize = 16, kDepth = 16, kLanes = 32, kElements = 16, kResults = 8;
  static constexpr int k(int, int element) { return element; }
  static constexpr int row(int lane, int result) { return 2 * result + lane / 16; }
};

/// RDNA4 WMMA of 16-bit elements: groups of four in k alternate between the halves of the wave.
struct Wmma12 {
  static constexpr int kSize = 16, kDepth = 16, kLanes = 32, kElements = 8, kResults = 8;
  static constexpr int k(int lane, int element) { return 8 * (element / 4) + 4 * (lane / 16) + element % 4; }
  static constexpr int row(int lane, int result) { return 8 * (lane / 16) + result; }
};

/// RDNA4 WMMA of 8-bit elements.
struct Wmma12Bytes : Wmma12 {
  static constexpr int k(int lane, int element) { return 8 * (lane / 16) + element; }
};

}  // namespace quire::amd
