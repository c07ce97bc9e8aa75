// SPDX-License-Identifier: Apache-2.0
// The entry of cuda_mma: picks the instance by query type and head_dim, and the kernel by the list's tile shape.
#include "backend/cuda/launches.h"
#include "backend/cuda/mma/instance.h"
#include "backend/cuda/mma/whole_chunks.h"
#include "plan/device_lists.h"

namespace quire::cuda {
namespace {

const mma::Instance* find_instance(const gpu::AttendArgs& args) {
  const bool f16 = args.query.dtype == DType::f16, fp8 = is_fp8(args.cache_k.dtype);
  switch (args.head_dim) {
    case 64:
      if (fp8) return f16 ? &mma::kF16Dim64Fp8 : &mma::kBf16Dim64Fp8;
      return f16 ? &mma::kF16Dim64 : &mma::kBf16Dim64;
    case 128:
      if (fp8) return f16 ? &mma::kF16Dim128Fp8 : &mma::kBf16Dim128Fp8;
      return f16 ? &mma::kF16Dim128 : &mma::kBf16Dim128;
    case 256: return f16 ? &mma::kF16Dim256 : &mma::kBf16Dim256;
    default: return nullptr;
  }
}

cudaError_t launch(const gpu::AttendArgs& args, const Plan& plan, std::size_t list, cudaStream_t stream) {
  const mma::Instance* instance = find_instance(args);
  if (instance == nullptr) return cudaErrorInvalidValue;
  const DeviceList& shape = plan.lists[list];
  gpu::AttendArgs mine = args;
  mine.output_pairs = mma::has_output_pairs(args);
  const mma::Launch how{static_cast<unsigned>(shape.num_blocks), mma::has_whole_chunks(args), stream};
  return shape.tile_rows == plan_detail::kShortTileRows ? instance->attend_short(mine, how) : instance->attend_tall(mine, how);
}

}  // namespace

const KernelEntry kMmaEntry = {"cuda_mma", launch, nullptr, nullptr, nullptr};

}  // namespace quire::cuda
