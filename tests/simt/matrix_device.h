// SPDX-License-Identifier: Apache-2.0
// A call on the matrix kernels of the stand-in: both lists as a plan has them, and who takes what.
#pragma once

#include "backend/hip/matrix/sizes.h"
#include "simt/device.h"
#include "simt/matrix_gpu.h"
#include "simt/on_device.h"

namespace quire::simt {

inline const MatrixKernel& MatrixGpu::find(bool tall, DType type, int head_dim) const {
  for (const MatrixKernel& kernel : kernels)
    if (kernel.tall == tall && kernel.type == type && kernel.head_dim == head_dim) return kernel;
  std::abort();
}

/// Rows of the short list, then all others; batch_invariant (split_keys) leaves all to the tall one.
inline std::vector<ListShape> matrix_lists(const Device& device) {
  namespace matrix = hip::matrix;
  ListShape tall{matrix::kTallRows, matrix::kPartKeys, 0, 0x7FFFFFFF};
  if (device.split_keys > 0) return {tall};
  tall.min_rows = matrix::kShortRows;
  return {{matrix::kShortRows, matrix::kPartKeys, 0, matrix::kShortRows}, tall};
}

inline Status attend_matrix(const MatrixGpu& on, const Device& device, const Case& c, std::int64_t& rows) {
  Device d = device;
  d.wave = on.wave;
  const gpu::GenericArgs args = attend_args(c);
  std::vector<WorkMemory> memory;
  for (const ListShape& shape : matrix_lists(d)) memory.emplace_back(args, d.max_slices, d.split_keys, d.target_items, shape);
  return run_lists(d, args, memory, rows, [&](const gpu::AttendArgs& a) {
    const MatrixKernel& kernel = on.find(a.work.tile_rows == hip::matrix::kTallRows, a.query.dtype, a.head_dim);
    return run(d.launch(d.blocks, kernel.threads, kernel.shared_bytes), [&] { kernel.run(a); });
  });
}

}  // namespace quire::simt

namespace quire::test {

/// The stand-in's matrix kernels as a kernel under test.
inline Attend on_matrix_device(const simt::MatrixGpu& gpu, const simt::Device& device) {
  return [&gpu, device](const Case& c, int num_threads, std::int64_t& rows) -> Status {
    return simt::attend_matrix(gpu, varied(device, num_threads), c, rows);
  };
}

}  // namespace quire::test
