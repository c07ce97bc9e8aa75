// The entry of cuda_sm90: decode rows by decode.h where the caches can be read by tensor copies, all others by cuda_mma's
// kernels.
#include <cstdint>
#include <optional>

#include "backend/cuda/launches.h"
#include "backend/cuda/mma/whole_chunks.h"
#include "backend/cuda/sm90/instance.h"
#include "plan/device_lists.h"

namespace quire::cuda {
namespace sm90 {
namespace {

constexpr std::int32_t kTileKeys = 64, kHalfDims = 64;
constexpr std::int64_t kMostReqs = 1024;  // shares.h counts them in shared memory

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without linking to the driver; null if it has none.
Encode encoder() {
  static const Encode found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(entry) : nullptr;
  }();
  return found;
}

bool encode(CUtensorMap& map, const gpu::RowSource& cache, const gpu::AttendArgs& a, std::int32_t box_tokens) {
  const semantics::KvStrides& s = cache.strides;
  const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t sizes[] = {size(a.head_dim), size(a.page_size), size(a.num_kv_heads), size(a.num_pages)};
  const cuuint64_t strides[] = {size(s.token * 2), size(s.head * 2), size(s.page * 2)};  // bytes
  const cuuint32_t box[] = {kHalfDims, static_cast<cuuint32_t>(box_tokens), 1, 1}, steps[] = {1, 1, 1, 1};
  const CUtensorMapDataType type = cache.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encoder()(&map, type, 4, const_cast<void*>(cache.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// Every position's tile has a number of 32 bits, counted over requests and KV heads.
bool fits_row(const gpu::AttendArgs& a) {
  const std::int64_t most_keys = a.block_table.columns * a.page_size + a.num_tokens;
  return a.num_reqs <= kMostReqs && a.num_reqs * (most_keys / kTileKeys + 1) * a.num_kv_heads <= 0x7FFFFFFF;
}

/// Nothing if a stride or an address does not suit tensor copies.
std::optional<CacheMaps> maps_of(const gpu::AttendArgs& a) {
  if (encoder() == nullptr || !mma::has_whole_chunks(a) || !fits_row(a) || a.num_pages == 0) return std::nullopt;
  CacheMaps maps;
  maps.box_tokens = a.page_size < kTileKeys ? a.page_size : kTileKeys;
  if (!encode(maps.k, a.cache_k, a, maps.box_tokens) || !encode(maps.v, a.cache_v, a, maps.box_tokens)) return std::nullopt;
  return maps;
}

bool deals_itself(const gpu::AttendArgs& args, const Plan& plan, std::size_t list) {
  return plan.lists[list].tile_rows == plan_detail::kShortTileRows && maps_of(args).has_value();
}

cudaError_t launch(const gpu::AttendArgs& args, const Plan& plan, std::size_t list, cudaStream_t stream) {
  if (plan.lists[list].tile_rows != plan_detail::kShortTileRows) return kMmaEntry.attend(args, plan, list, stream);
  const std::optional<CacheMaps> maps = maps_of(args);
  if (!maps.has_value()) return kMmaEntry.attend(args, plan, list, stream);
  gpu::AttendArgs mine = args;
  mine.output_pairs = mma::has_output_pairs(args);
  return launch_decode(mine, *maps, static_cast<int>(plan.lists[list].num_blocks), stream);
}

}  // namespace
}  // namespace sm90

const KernelEntry kSm90Entry = {"cuda_sm90", sm90::launch, sm90::deals_itself};

}  // namespace quire::cuda
