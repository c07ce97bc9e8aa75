// SPDX-License-Identifier: Apache-2.0
// The entry of cuda_mma: picks the instance by types, head_dim and layout, and the kernel by the list's role.
#include "backend/cuda/launches.h"
#include "backend/cuda/mma/instance.h"
#include "backend/cuda/tile/whole_chunks.h"
#include "plan/kernels/cuda_mma.h"

namespace quire::cuda {
namespace {

/// Instances by packed pieces, 8-bit cache and f16 query; then by head_dim: 64, 128, 256.
const mma::Instance* const kInstances[2][2][2][3] = {
    {{{&mma::kBf16Dim64, &mma::kBf16Dim128, &mma::kBf16Dim256}, {&mma::kF16Dim64, &mma::kF16Dim128, &mma::kF16Dim256}},
     {{&mma::kBf16Dim64Fp8, &mma::kBf16Dim128Fp8, nullptr}, {&mma::kF16Dim64Fp8, &mma::kF16Dim128Fp8, nullptr}}},
    {{{&mma::kPackedBf16Dim64, &mma::kPackedBf16Dim128, &mma::kPackedBf16Dim256},
      {&mma::kPackedF16Dim64, &mma::kPackedF16Dim128, &mma::kPackedF16Dim256}},
     {{&mma::kPackedBf16Dim64Fp8, &mma::kPackedBf16Dim128Fp8, nullptr},
      {&mma::kPackedF16Dim64Fp8, &mma::kPackedF16Dim128Fp8, nullptr}}}};

const mma::Instance* find_instance(const gpu::AttendArgs& args, bool packed) {
  const auto& of_type = kInstances[packed ? 1 : 0][is_fp8(args.cache_k.dtype) ? 1 : 0][args.query.dtype == DType::f16 ? 1 : 0];
  if (args.head_dim != 64 && args.head_dim != 128 && args.head_dim != 256) return nullptr;
  return of_type[args.head_dim / 128];
}

cudaError_t launch(const gpu::GenericArgs& args, const DeviceList& list, Turn, cudaStream_t stream) {
  const bool packed = tile::has_packed_pieces(args);
  const mma::Instance* instance = find_instance(args, packed);
  if (instance == nullptr) return cudaErrorInvalidValue;
  gpu::AttendArgs mine = args;
  mine.output_pairs = tile::has_output_pairs(args);
  const mma::Access access{.whole_chunks = packed || tile::has_whole_chunks(args),
                           .output_chunks = tile::has_output_chunks(args)};
  const mma::Launch how{static_cast<unsigned>(list.num_blocks), access, stream};
  if (list.role == Role::short_rows) return instance->attend_short(mine, how);
  if (list.tile_keys == plan_detail::kMmaFewKeys)
    return instance->attend_few_keys != nullptr ? instance->attend_few_keys(mine, how) : cudaErrorInvalidValue;
  return list.role == Role::prefill ? instance->attend_prefill(mine, how) : instance->attend_tall(mine, how);
}

}  // namespace

const KernelEntry kMmaEntry = {.row = &plan_detail::rows::cuda_mma, .attend = launch};

}  // namespace quire::cuda
