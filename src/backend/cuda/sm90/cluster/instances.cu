// SPDX-License-Identifier: Apache-2.0
// The instances of cluster/kernel.h: query type x head_dim x (cache of the same type, e4m3fn, e5m2). Budget: 2 x 2 x 3 = 12
// kernels.
#include <bit>
#include <cstdint>

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/cluster/kernel.h"

namespace quire::cuda::sm90 {
namespace {

int logarithm_of(std::int32_t x) { return std::countr_zero(static_cast<std::uint32_t>(x)); }

template <typename Products>
cudaError_t start(const gpu::AttendArgs& args, int blocks, cudaStream_t stream) {
  const bool is_power = (args.page_size & (args.page_size - 1)) == 0;
  const cluster::ClusterArgs mine{args, blocks, logarithm_of(blocks), is_power ? logarithm_of(args.page_size) : -1};
  const LaunchShape shape{.blocks = blocks,
                          .threads = cluster::kThreads,
                          .shared_bytes = sizeof(typename Products::Memory::Shared),
                          .cluster = blocks,
                          .rows = args.num_kv_heads,
                          .layers = args.num_reqs};
  return launch_dependent(cluster::attend_cluster<Products>, shape, stream, mine);
}

template <typename T, int kDim>
cudaError_t start_dim(const gpu::AttendArgs& args, int blocks, cudaStream_t stream) {
  if (args.cache_k.dtype == DType::fp8_e4m3fn) return start<cluster::CodeUnit<T, kDim, true>>(args, blocks, stream);
  if (args.cache_k.dtype == DType::fp8_e5m2) return start<cluster::CodeUnit<T, kDim, false>>(args, blocks, stream);
  return start<cluster::PlainUnit<T, kDim>>(args, blocks, stream);
}

template <typename T>
cudaError_t start_type(const gpu::AttendArgs& args, int blocks, cudaStream_t stream) {
  if (args.head_dim == 64) return start_dim<T, 64>(args, blocks, stream);
  if (args.head_dim == 128) return start_dim<T, 128>(args, blocks, stream);
  return cudaErrorInvalidValue;
}

}  // namespace

/// 8-bit queries become f16.
cudaError_t launch_cluster(const gpu::AttendArgs& args, int blocks, cudaStream_t stream) {
  return args.query.dtype == DType::bf16 ? start_type<tile::Bf16>(args, blocks, stream)
                                         : start_type<tile::F16>(args, blocks, stream);
}

}  // namespace quire::cuda::sm90
