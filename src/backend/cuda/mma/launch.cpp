// SPDX-License-Identifier: Apache-2.0
// The entry of cuda_mma: picks the instance by types, head_dim and layout, and the kernel by the list's tile shape.
#include "backend/cuda/launches.h"
#include "backend/cuda/mma/instance.h"
#include "backend/cuda/tile/whole_chunks.h"
#include "plan/device_lists.h"

namespace quire::cuda {
namespace {

/// The instances of a query type, by head_dim.
struct Instances {
  const mma::Instance *dim64, *dim128, *dim256;
};
const Instances kF16 = {&mma::kF16Dim64, &mma::kF16Dim128, &mma::kF16Dim256};
const Instances kBf16 = {&mma::kBf16Dim64, &mma::kBf16Dim128, &mma::kBf16Dim256};
const Instances kF16Fp8 = {&mma::kF16Dim64Fp8, &mma::kF16Dim128Fp8, nullptr};
const Instances kBf16Fp8 = {&mma::kBf16Dim64Fp8, &mma::kBf16Dim128Fp8, nullptr};
const Instances kPackedF16 = {&mma::kPackedF16Dim64, &mma::kPackedF16Dim128, &mma::kPackedF16Dim256};
const Instances kPackedBf16 = {&mma::kPackedBf16Dim64, &mma::kPackedBf16Dim128, &mma::kPackedBf16Dim256};
const Instances kPackedF16Fp8 = {&mma::kPackedF16Dim64Fp8, &mma::kPackedF16Dim128Fp8, nullptr};
const Instances kPackedBf16Fp8 = {&mma::kPackedBf16Dim64Fp8, &mma::kPackedBf16Dim128Fp8, nullptr};

const mma::Instance* find_instance(const gpu::AttendArgs& args, bool packed) {
  const bool f16 = args.query.dtype == DType::f16, fp8 = is_fp8(args.cache_k.dtype);
  const Instances& rows = fp8 ? (f16 ? kF16Fp8 : kBf16Fp8) : (f16 ? kF16 : kBf16);
  const Instances& pieces = fp8 ? (f16 ? kPackedF16Fp8 : kPackedBf16Fp8) : (f16 ? kPackedF16 : kPackedBf16);
  const Instances& of_type = packed ? pieces : rows;
  switch (args.head_dim) {
    case 64: return of_type.dim64;
    case 128: return of_type.dim128;
    case 256: return of_type.dim256;
    default: return nullptr;
  }
}

cudaError_t launch(const gpu::AttendArgs& args, const Plan& plan, std::size_t list, cudaStream_t stream) {
  const bool packed = tile::has_packed_pieces(args);
  const mma::Instance* instance = find_instance(args, packed);
  if (instance == nullptr) return cudaErrorInvalidValue;
  const DeviceList& shape = plan.lists[list];
  gpu::AttendArgs mine = args;
  mine.output_pairs = tile::has_output_pairs(args);
  const mma::Launch how{static_cast<unsigned>(shape.num_blocks), packed || tile::has_whole_chunks(args), stream};
  return shape.tile_rows == plan_detail::kShortTileRows ? instance->attend_short(mine, how) : instance->attend_tall(mine, how);
}

}  // namespace

const KernelEntry kMmaEntry = {"cuda_mma", launch, nullptr, nullptr, nullptr};

}  // namespace quire::cuda
