// SPDX-License-Identifier: Apache-2.0
// The matrix kernels with the fragments of gfx1201.
#include "simt/matrix_instances.h"

#include "backend/hip/matrix/wmma_gfx12.h"

namespace quire::simt {

const MatrixGpu kGfx1201 = matrix_gpu<hip::matrix::Gfx1201>("gfx1201");

}  // namespace quire::simt
