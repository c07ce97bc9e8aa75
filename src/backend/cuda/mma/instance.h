// SPDX-License-Identifier: Apache-2.0
// One file per query type, head_dim and cache element size instantiates the kernels (short tiles, and tall ones with exact and
// with rounded weights) and exports their launches; those of packed caches are a file for each type and element size. Instance
// budget: 2 query types x (head_dim 64, 128, 256 for 16-bit caches + 64, 128 for fp8) x 3 tile shapes x (rows and packed) = 60
// kernels, and 4 of fewer keys for head_dim 256. All else is a run-time value, the fp8 format included.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/gpu/args.h"

namespace quire::cuda::mma {

/// Ways in which the memory of a call can be accessed.
struct Access {
  bool whole_chunks;   ///< rows of query, cache, key and value are aligned runs of 16-byte chunks
  bool output_chunks;  ///< rows of the output are aligned runs of 16-byte chunks of the query's type
};

/// Launch parameters of one call.
struct Launch {
  unsigned blocks;
  Access access;
  cudaStream_t stream;
};

struct Instance {
  cudaError_t (*attend_short)(const gpu::AttendArgs& args, const Launch& launch);
  cudaError_t (*attend_tall)(const gpu::AttendArgs& args, const Launch& launch);
  /// Tall tiles of rounded weights.
  cudaError_t (*attend_prefill)(const gpu::AttendArgs& args, const Launch& launch);
  /// Tall tiles of plan_detail::kMmaFewKeys keys; null where all devices have room for more.
  cudaError_t (*attend_few_keys)(const gpu::AttendArgs& args, const Launch& launch);
};

extern const Instance kF16Dim64, kF16Dim128, kF16Dim256, kF16Dim64Fp8, kF16Dim128Fp8;
extern const Instance kBf16Dim64, kBf16Dim128, kBf16Dim256, kBf16Dim64Fp8, kBf16Dim128Fp8;
extern const Instance kPackedF16Dim64, kPackedF16Dim128, kPackedF16Dim256, kPackedF16Dim64Fp8, kPackedF16Dim128Fp8;
extern const Instance kPackedBf16Dim64, kPackedBf16Dim128, kPackedBf16Dim256, kPackedBf16Dim64Fp8, kPackedBf16Dim128Fp8;

}  // namespace quire::cuda::mma
