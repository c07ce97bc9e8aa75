// The instances of decode.h: query type x head_dim x (cache of the same type, fp8) x rows of a warpgroup. Budget: 2 x 3 x 2 x 2 =
// 24 kernels.
#include "backend/cuda/sm90/decode.h"

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/fp8_tiles.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/plain_tiles.h"
#include "plan/device_lists.h"

namespace quire::cuda::sm90 {
namespace {

/// How one call is launched.
struct Launch {
  const gpu::AttendArgs& args;
  const CacheMaps& maps;
  int blocks;
  cudaStream_t stream;
};

/// Of narrow tiles: a few bytes more in a block's shared memory would cost one.
constexpr int narrow_stages(int head_dim, int element_bytes) {
  if (element_bytes == 1) return head_dim == 64 ? 5 : head_dim == 128 ? 2 : 6;
  return head_dim == 64 ? 6 : 3;
}

template <typename T, typename Tiles, int kRows>
cudaError_t start(const Launch& launch) {
  using Memory = DecodeMemory<Tiles, kRows>;
  static_assert(plan_detail::sm90_decode_blocks(Tiles::kDim, Tiles::kElementBytes, kRows) == Memory::kBlocks);
  static_assert(kRows != 8 || Memory::kStages == narrow_stages(Tiles::kDim, Tiles::kElementBytes));
  return launch_dependent(attend_decode<T, Memory>, {launch.blocks, Memory::kThreads, sizeof(typename Memory::Shared)},
                          launch.stream, launch.args, launch.maps);
}

template <typename T, typename Tiles>
cudaError_t start(const Launch& launch) {
  constexpr int kWideRows = static_cast<int>(plan_detail::sm90_wide_rows(Tiles::kDim));
  static_assert(DecodeMemory<Tiles, kWideRows>::kGroups == plan_detail::kSm90WideGroups);
  const int rows = launch.args.work.tile_rows;
  if (rows == 8) return start<T, Tiles, 8>(launch);
  if (rows == kWideRows || rows == kWideRows * plan_detail::kSm90WideGroups) return start<T, Tiles, kWideRows>(launch);
  return cudaErrorInvalidValue;
}

template <typename T, int kDim>
cudaError_t start(const Launch& launch) {
  return is_fp8(launch.args.cache_k.dtype) ? start<T, Fp8Tiles<T, kDim>>(launch) : start<T, PlainTiles<T, kDim>>(launch);
}

template <typename T>
cudaError_t start(const Launch& launch) {
  if (launch.args.head_dim == 64) return start<T, 64>(launch);
  if (launch.args.head_dim == 128) return start<T, 128>(launch);
  if (launch.args.head_dim == 256) return start<T, 256>(launch);
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_decode(const gpu::AttendArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream) {
  const Launch launch{args, maps, blocks, stream};
  return args.query.dtype == DType::f16 ? start<mma::F16>(launch) : start<mma::Bf16>(launch);
}

}  // namespace quire::cuda::sm90
