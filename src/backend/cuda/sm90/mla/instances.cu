// SPDX-License-Identifier: Apache-2.0
// The instances of mla/kernel.h and mla/merge.h, by the type of query and cache. Budget: 4 kernels.
#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/mla/kernel.h"
#include "backend/cuda/sm90/mla/merge.h"

namespace quire::cuda::sm90 {

namespace {

template <typename T>
cudaError_t start_mla(const gpu::AttendArgs& args, const LatentMaps& maps, int blocks, cudaStream_t stream) {
  const LaunchShape attend{blocks, mla::kThreads, sizeof(mla::Shared)}, merge{blocks, mla::kMergeThreads};
  const cudaError_t error = launch_dependent(mla::attend_mla<T>, attend, stream, args, maps);
  return error != cudaSuccess ? error : launch_dependent(mla::merge_mla<T>, merge, stream, args);
}

}  // namespace

cudaError_t launch_mla(const gpu::AttendArgs& args, const LatentMaps& maps, int blocks, cudaStream_t stream) {
  return args.query.dtype == DType::bf16 ? start_mla<tile::Bf16>(args, maps, blocks, stream)
                                         : start_mla<tile::F16>(args, maps, blocks, stream);
}

}  // namespace quire::cuda::sm90
