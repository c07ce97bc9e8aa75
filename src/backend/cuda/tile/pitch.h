// SPDX-License-Identifier: Apache-2.0
// Layout of a tile of 16-bit rows in shared memory: eight elements of padding per row, so that the eight rows that one ldmatrix
// phase touches fall into eight different groups of banks. A permutation of chunks (swizzle) would save 6 % of the memory but
// cost a register or an instruction for every address (measured: spills).
#pragma once

namespace quire::cuda::tile {

template <int kDim>
inline constexpr int kPitch = kDim + 8;

/// Element offset of chunk `chunk` (8 elements) of row `row` in a tile of kDim columns.
template <int kDim>
__device__ inline int in_tile(int row, int chunk) {
  return row * kPitch<kDim> + chunk * 8;
}

}  // namespace quire::cuda::tile
