// SPDX-License-Identifier: Apache-2.0
// Included by matrix_f16.hip and matrix_bf16.hip alone, which choose rows of matrix_kernels.inc.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/hip/matrix/attend_short.h"
#include "backend/hip/matrix/attend_tall.h"
#include "backend/hip/matrix/this_gpu.h"

namespace quire::hip::matrix {

template <class T, int kDim>
using Kernel_short = Short<ThisGpu, T, kDim>;
template <class T, int kDim>
using Kernel_tall = Tall<ThisGpu, T, kDim>;
constexpr int kRows_short = kShortRows, kRows_tall = kTallRows;

}  // namespace quire::hip::matrix

#define QUIRE_DEFINE_KERNEL(name, shape, type, head_dim, tile_rows, tile_keys)                                             \
  static_assert(tile_rows == quire::hip::matrix::kRows_##shape && tile_keys == quire::hip::matrix::kPartKeys);             \
  extern "C" __attribute__((global)) __attribute__((                                                                       \
      amdgpu_flat_work_group_size(quire::hip::matrix::Kernel_##shape<quire::hip::matrix::type, head_dim>::kThreads,        \
                                  quire::hip::matrix::Kernel_##shape<quire::hip::matrix::type, head_dim>::kThreads))) void \
  name(const quire::gpu::AttendArgs args) {                                                                                \
    using Kernel = quire::hip::matrix::Kernel_##shape<quire::hip::matrix::type, head_dim>;                                 \
    QUIRE_SHARED(memory, Kernel::Shared::kBytes);                                                                          \
    quire::hip::matrix::attend_##shape<quire::hip::matrix::ThisGpu, quire::hip::matrix::type, head_dim>(                   \
        args, quire::gpu::SharedArea(memory));                                                                             \
  }
