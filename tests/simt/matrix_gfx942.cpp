// SPDX-License-Identifier: Apache-2.0
// The matrix kernels with the fragments of gfx942.
#include "simt/matrix_instances.h"

#include "backend/hip/matrix/mfma.h"

namespace quire::simt {

const MatrixGpu kGfx942 = matrix_gpu<hip::matrix::Gfx942>("gfx942");

}  // namespace quire::simt
