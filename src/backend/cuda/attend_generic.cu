// SPDX-License-Identifier: Apache-2.0
// Stage: attend. The kernel that takes every valid problem: src/backend/gpu/attend_generic.h on CUDA.
#include "backend/gpu/runtime.h"

#include "backend/cuda/launches.h"
#include "backend/gpu/attend_generic.h"

namespace quire::cuda {
namespace {

__global__ void __launch_bounds__(gpu::kGenericThreads, gpu::kGenericBlocksPerUnit)
    generic_kernel(const __grid_constant__ gpu::GenericArgs args) {
  QUIRE_SHARED(memory, gpu::kGenericSharedBytes);
  gpu::attend_generic(args, gpu::SharedArea(memory));
}

cudaError_t launch(const gpu::GenericArgs& args, const DeviceList& list, Turn, cudaStream_t stream) {
  generic_kernel<<<static_cast<unsigned>(list.num_blocks), gpu::kGenericThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

const KernelEntry kGenericEntry = {.row = &plan_detail::rows::cuda_generic, .attend = launch};

}  // namespace quire::cuda
