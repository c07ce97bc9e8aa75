// SPDX-License-Identifier: Apache-2.0
// The matrix kernels with the fragments of gfx1100.
#include "simt/matrix_instances.h"

#include "backend/hip/matrix/wmma_gfx11.h"

namespace quire::simt {

const MatrixGpu kGfx1100 = matrix_gpu<hip::matrix::Gfx1100>("gfx1100");

}  // namespace quire::simt
