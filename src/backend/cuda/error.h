// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime's failures as Status.
#pragma once

#include <cuda_runtime_api.h>

#include "quire/status.hpp"
#include "text/formatted.h"

namespace quire::cuda {

/// OK, or device_error: "cudaMemcpy: an illegal memory access was encountered (cudaErrorIllegalAddress)".
inline Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation ? Code::out_of_memory : Code::device_error;
  return {code, formatted("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error))};
}

}  // namespace quire::cuda
