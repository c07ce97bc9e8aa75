// The entry of cuda_sm90: decode rows by decode.h where the caches can be read by tensor copies, all others by cuda_mma's
// kernels.
#include <cstdint>

#include "backend/cuda/launches.h"
#include "backend/cuda/mma/whole_chunks.h"
#include "backend/cuda/sm90/instance.h"
#include "plan/device_lists.h"

namespace quire::cuda {
namespace sm90 {
namespace {

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

CUtensorMapDataType type_of(DType dtype) {
  if (is_fp8(dtype)) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/// Boxes are 64 dims of 16 bits wide, or a whole row of codes; rows are swizzled by their width.
bool encode(CUtensorMap& map, const gpu::RowSource& cache, const gpu::AttendArgs& a, std::int32_t box_tokens) {
  const semantics::KvStrides& s = cache.strides;
  const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t sizes[] = {size(a.head_dim), size(a.page_size), size(a.num_kv_heads), size(a.num_pages)};
  const std::int64_t bytes = itemsize(cache.dtype), box_dims = is_fp8(cache.dtype) ? a.head_dim : 64;
  const cuuint64_t strides[] = {size(s.token * bytes), size(s.head * bytes), size(s.page * bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_dims), static_cast<cuuint32_t>(box_tokens), 1, 1}, steps[] = {1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = box_dims * bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  return encoder()(&map, type_of(cache.dtype), 4, const_cast<void*>(cache.data), sizes, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// Every position's tile has a number of 32 bits, counted over requests and KV heads.
bool fits_row(const gpu::AttendArgs& a) {
  const std::int64_t most_keys = a.block_table.columns * a.page_size + a.num_tokens;
  return a.num_reqs <= kMostReqs && a.num_reqs * (most_keys / kTileKeys + 1) * a.num_kv_heads <= 0x7FFFFFFF;
}

/// Strides as tensor copies take them, beside what has_whole_chunks() asks.
bool has_box_strides(const semantics::KvStrides& s) {
  constexpr std::int64_t kMost = std::int64_t{1} << 39;  // elements of 1 or 2 bytes; 2^40 bytes is the limit
  for (const std::int64_t stride : {s.token, s.head, s.page})
    if (stride <= 0 || stride >= kMost) return false;
  return true;
}

bool takes_boxes(const gpu::AttendArgs& a) {
  return encoder() != nullptr && mma::has_whole_chunks(a) && has_box_strides(a.cache_k.strides) &&
         has_box_strides(a.cache_v.strides) && fits_row(a) && a.num_pages > 0;
}

bool deals_itself(const gpu::AttendArgs& args, const Plan& plan, std::size_t list) {
  return plan.lists[list].tile_rows == plan_detail::kShortTileRows && takes_boxes(args);
}

cudaError_t launch(const gpu::AttendArgs& args, const Plan& plan, std::size_t list, cudaStream_t stream) {
  if (!deals_itself(args, plan, list)) return kMmaEntry.attend(args, plan, list, stream);
  CacheMaps maps;
  maps.box_tokens = args.page_size < kTileKeys ? args.page_size : kTileKeys;
  if (!encode(maps.k, args.cache_k, args, maps.box_tokens) || !encode(maps.v, args.cache_v, args, maps.box_tokens))
    return cudaErrorInvalidValue;
  gpu::AttendArgs mine = args;
  mine.output_pairs = mma::has_output_pairs(args);
  return launch_decode(mine, maps, static_cast<int>(plan.lists[list].num_blocks), stream);
}

}  // namespace
}  // namespace sm90

const KernelEntry kSm90Entry = {"cuda_sm90", sm90::launch, sm90::deals_itself};

}  // namespace quire::cuda
