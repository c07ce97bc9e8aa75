// SPDX-License-Identifier: Apache-2.0
// The matrix kernels with the fragments of gfx942.
#include "simt/matrix_instances.h"

#include "backend/gpu/matrix/mfma.h"

namespace quire::simt {

const MatrixGpu kGfx942 = matrix_gpu<gpu::matrix::Gfx942>("gfx942");

}  // namespace quire::simt
