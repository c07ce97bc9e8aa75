// SPDX-License-Identifier: Apache-2.0
// The matrix kernels compiled for the stand-in, one table per device.
#pragma once

#include <vector>

#include "backend/gpu/args.h"

namespace quire::simt {

struct MatrixKernel {
  bool tall = false;
  DType type = DType::none;
  int head_dim = 0;
  int threads = 0, shared_bytes = 0;
  void (*run)(const gpu::AttendArgs& a) = nullptr;
};

struct MatrixGpu {
  const char* name = "";
  int wave = 0;
  std::vector<MatrixKernel> kernels;
  const MatrixKernel& find(bool tall, DType type, int head_dim) const;
};

/// matrix_gfx*.cpp: gfx942 (MFMA, fnuz conversions), gfx1100 (WMMA of RDNA3, no conversions), gfx1201 (WMMA of RDNA4, OCP).
extern const MatrixGpu kGfx942, kGfx1100, kGfx1201;

}  // namespace quire::simt
