// SPDX-License-Identifier: Apache-2.0
// The matrix instructions of the stand-in, as tables: which element of A, B and D lies in which lane and register. The tables
// follow AMD's matrix instruction calculator; matrix_unit_test.cpp compares them with what it prints (layouts/).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/hip/matrix/instructions.h"

namespace quire::simt {

/// Element (row, column) of a 16x16 matrix.
struct Place {
  int row = 0, column = 0;
  bool operator==(const Place&) const = default;
};

/// One instruction for all lanes of a wave. Register `word` of A and B holds two 16-bit elements, 2 * word in its lower half.
struct MatrixLayout {
  int lanes = 0;
  std::vector<std::vector<Place>> a, b, d;  ///< [lane][element]
};

/// 16x16x16 of 16-bit elements into f32.
const MatrixLayout& layout_of(MatrixUnit unit);

/// Faults that a test plants in the instructions of a unit.
enum class MatrixFault {
  none,
  swapped_rows,  ///< D rows 0 and 1 are exchanged
  swapped_keys   ///< k 0 and 1 of B are exchanged, as if A and B disagreed on the order of k
};
void set_matrix_fault(MatrixFault fault);

}  // namespace quire::simt
