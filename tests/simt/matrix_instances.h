// SPDX-License-Identifier: Apache-2.0
// Included by the matrix_gfx*.cpp files alone.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/hip/matrix/attend_short.h"
#include "backend/hip/matrix/attend_tall.h"
#include "simt/matrix_gpu.h"

namespace quire::simt {

template <class Gpu, class T, int kDim>
void add_matrix_kernels(MatrixGpu& to) {
  namespace matrix = hip::matrix;
  using Short = matrix::Short<Gpu, T, kDim>;
  using Tall = matrix::Tall<Gpu, T, kDim>;
  to.kernels.push_back({false, T::kDType, kDim, Short::kThreads, Short::Shared::kBytes,
                        [](const gpu::AttendArgs& a) { matrix::attend_short<Gpu, T, kDim>(a, gpu::SharedArea()); }});
  to.kernels.push_back({true, T::kDType, kDim, Tall::kThreads, Tall::Shared::kBytes,
                        [](const gpu::AttendArgs& a) { matrix::attend_tall<Gpu, T, kDim>(a, gpu::SharedArea()); }});
}

template <class Gpu>
MatrixGpu matrix_gpu(const char* name) {
  MatrixGpu made{name, Gpu::kWave, {}};
  add_matrix_kernels<Gpu, hip::matrix::F16, 64>(made);
  add_matrix_kernels<Gpu, hip::matrix::F16, 128>(made);
  add_matrix_kernels<Gpu, hip::matrix::F16, 256>(made);
  add_matrix_kernels<Gpu, hip::matrix::Bf16, 64>(made);
  add_matrix_kernels<Gpu, hip::matrix::Bf16, 128>(made);
  add_matrix_kernels<Gpu, hip::matrix::Bf16, 256>(made);
  return made;
}

}  // namespace quire::simt
