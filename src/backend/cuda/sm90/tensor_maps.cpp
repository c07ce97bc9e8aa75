// SPDX-License-Identifier: Apache-2.0
// See tensor_maps.h. Limits: CUDA driver API, cuTensorMapEncodeTiled.
#include "backend/cuda/sm90/tensor_maps.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "backend/cuda/tile/whole_chunks.h"

namespace quire::cuda::sm90 {
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

/// All that a tensor map is made of, in words without gaps between them, so that two can be compared by their bytes.
struct Description {
  static constexpr std::uint32_t kMostDims = 5;
  std::uint64_t address = 0;
  std::uint64_t sizes[kMostDims] = {},
                strides[kMostDims - 1] = {};  ///< elements; bytes from one to the next, of the first dim none
  std::uint32_t box[kMostDims] = {};
  std::uint32_t rank = 0, type = 0, swizzle = 0;
};
static_assert(std::has_unique_object_representations_v<Description>);

bool make(CUtensorMap& map, const Description& d) {
  static constexpr cuuint32_t kSteps[Description::kMostDims] = {1, 1, 1, 1, 1};
  static_assert(sizeof(cuuint64_t) == sizeof(std::uint64_t));
  void* const address = reinterpret_cast<void*>(d.address);  // NOLINT(performance-no-int-to-ptr): kept as a number to compare
  return encoder()(&map, static_cast<CUtensorMapDataType>(d.type), d.rank, address, reinterpret_cast<const cuuint64_t*>(d.sizes),
                   reinterpret_cast<const cuuint64_t*>(d.strides), d.box, kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   static_cast<CUtensorMapSwizzle>(d.swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// Maps that this thread has made. A map is a function of its description alone, so one that was made is right for ever; a layer
/// of a model has the same few in each step. 512 hold those of 100 layers, in 128 KiB.
class KnownMaps {
 public:
  bool get(CUtensorMap& map, const Description& d) {
    Entry& entry = entries_[place_of(d)];
    if (!entry.made || std::memcmp(&entry.description, &d, sizeof d) != 0) {
      entry.made = make(entry.map, d);
      entry.description = d;
    }
    map = entry.map;
    return entry.made;
  }

 private:
  static constexpr std::size_t kEntries = 512;
  struct Entry {
    CUtensorMap map;
    Description description;
    bool made = false;
  };
  static std::size_t place_of(const Description& d) {
    constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio: neighbouring addresses fall far apart
    return static_cast<std::size_t>((d.address ^ d.sizes[1] << 20 ^ std::uint64_t{d.box[1]} << 8 ^ d.box[2]) * kOdd >> 55);
  }
  static_assert(kEntries == std::size_t{1} << (64 - 55));
  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

bool encode_map(CUtensorMap& map, const Description& d) {
  static thread_local KnownMaps known;
  return known.get(map, d);
}

/// A dimension of a box: how many elements, from one to the next, and how many a box holds.
struct Extent {
  std::int64_t size, stride, box;  ///< stride in elements, of the first dimension 1
};

template <std::size_t kRank>
bool encode_extents(CUtensorMap& map, const gpu::RowSource& rows, const Extent (&extents)[kRank], CUtensorMapSwizzle swizzle) {
  static_assert(kRank <= Description::kMostDims);
  Description d;
  d.address = reinterpret_cast<std::uintptr_t>(rows.data);
  d.rank = kRank;
  d.type = static_cast<std::uint32_t>(type_of(rows.dtype));
  d.swizzle = static_cast<std::uint32_t>(swizzle);
  for (std::size_t i = 0; i < kRank; ++i) {
    d.sizes[i] = static_cast<std::uint64_t>(extents[i].size);
    d.box[i] = static_cast<std::uint32_t>(extents[i].box);
    if (i > 0) d.strides[i - 1] = static_cast<std::uint64_t>(extents[i].stride * itemsize(rows.dtype));
  }
  return encode_map(map, d);
}

/// Boxes are 64 dims of 16 bits wide, or up to 128 codes; rows are swizzled by their width.
bool encode_one(CUtensorMap& map, const gpu::RowSource& rows, std::int64_t head_dim, const Extent (&extents)[3]) {
  const std::int64_t bytes = itemsize(rows.dtype), box_dims = is_fp8(rows.dtype) ? std::min<std::int64_t>(head_dim, 128) : 64;
  const CUtensorMapSwizzle swizzle = box_dims * bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  return encode_extents(map, rows, {{head_dim, 1, box_dims}, extents[0], extents[1], extents[2]}, swizzle);
}

/// Boxes of `tokens` tokens of one head and page; how they lie in a tile: packed_layout.h.
bool encode_packed_keys(CUtensorMap& map, const gpu::AttendArgs& a, std::int64_t tokens) {
  const semantics::KvStrides& s = a.cache_k.strides;
  const std::int64_t core = kPackedKeys * s.x, chunks = a.head_dim / s.x;
  return encode_extents(map, a.cache_k,
                        {{core, 1, core},
                         {chunks, s.chunk, chunks},
                         {a.page_size / kPackedKeys, core, tokens / kPackedKeys},
                         {a.num_kv_heads, s.head, 1},
                         {a.num_pages, s.page, 1}},
                        CU_TENSOR_MAP_SWIZZLE_NONE);
}
bool encode_packed_values(CUtensorMap& map, const gpu::AttendArgs& a, std::int64_t tokens) {
  const semantics::KvStrides& s = a.cache_v.strides;
  // Rows of codes without a gap between them are copied as rows of 128 bytes. Rows of 16 bytes take twice the time, of 32 bytes a
  // sixth more (H200, docs/kernels/layouts.md).
  const bool codes = is_fp8(a.cache_v.dtype);
  const std::int64_t dims = codes && s.dim == tokens ? 128 / tokens : 1;
  const CUtensorMapSwizzle swizzle = codes          ? CU_TENSOR_MAP_SWIZZLE_NONE
                                     : tokens == 16 ? CU_TENSOR_MAP_SWIZZLE_32B
                                     : tokens == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                    : CU_TENSOR_MAP_SWIZZLE_128B;
  return encode_extents(map, a.cache_v,
                        {{a.page_size * dims, 1, tokens * dims},
                         {a.head_dim / dims, s.dim * dims, a.head_dim / dims},
                         {1, s.head, 1},
                         {a.num_kv_heads, s.head, 1},
                         {a.num_pages, s.page, 1}},
                        swizzle);
}

/// A stride as tensor copies take it, beside what has_whole_chunks() asks.
bool is_box_stride(std::int64_t stride) {
  constexpr std::int64_t kMost = std::int64_t{1} << 39;  // elements of 1 or 2 bytes; 2^40 bytes is the limit
  return stride > 0 && stride < kMost;
}
bool has_box_strides(const gpu::RowSource& rows) {
  return rows.data == nullptr || (is_box_stride(rows.strides.token) && is_box_stride(rows.strides.head));
}

/// Pieces of keys and rows of values as packed_layout.h has them, at multiples of 16 bytes.
bool has_packed_boxes(const gpu::AttendArgs& a) {
  const semantics::KvStrides &k = a.cache_k.strides, &v = a.cache_v.strides;
  const std::int64_t n = 16 / itemsize(a.cache_k.dtype);  // elements of 16 bytes
  const auto aligned = [&](const gpu::RowSource& cache, std::int64_t across) {
    const semantics::KvStrides& s = cache.strides;
    return across % n == 0 && s.head % n == 0 && s.page % n == 0 && is_box_stride(across) && is_box_stride(s.head) &&
           is_box_stride(s.page) && reinterpret_cast<std::uintptr_t>(cache.data) % 16 == 0;
  };
  return a.page_size % kPackedValues == 0 && k.x == n && k.dim == 1 && k.token == n && v.token == 1 &&
         aligned(a.cache_k, k.chunk) && aligned(a.cache_v, v.dim);
}
bool has_boxes_of_rows(const gpu::AttendArgs& a) {
  const auto suits = [](const gpu::RowSource& cache, std::int64_t dims) {
    return tile::has_whole_chunks(cache, dims) && has_box_strides(cache) && is_box_stride(cache.strides.page);
  };
  return suits(a.cache_k, a.head_dim) && suits(a.cache_v, a.v_head_dim);
}

/// Boxes of the output are 16 score rows: those of a warp of prefill/. False where no such box is part of a tile, rows do
/// not lie as tensor copies take them, or are codes: they are written otherwise then.
bool encode_output(CUtensorMap& map, const gpu::AttendArgs& a, const gpu::RowSource& output) {
  constexpr std::int64_t kRows = 16;
  if (is_fp8(output.dtype) || (kRows % a.group != 0 && a.group % kRows != 0) || !tile::has_whole_chunks(output, a.v_head_dim) ||
      !has_box_strides(output))
    return false;
  const std::int64_t heads = std::min<std::int64_t>(a.group, kRows);
  return encode_one(map, output, a.v_head_dim,
                    {{a.num_q_heads, output.strides.head, heads},
                     {a.num_tokens, output.strides.token, kRows / heads},
                     {1, output.strides.token, 1}});
}

}  // namespace

bool is_packed(const gpu::AttendArgs& a) { return a.cache_k.strides.x < a.head_dim; }

bool takes_boxes(const gpu::AttendArgs& a) {
  for (const gpu::RowSource* rows : {&a.query, &a.key})
    if (!tile::has_whole_chunks(*rows, a.head_dim)) return false;
  if (!tile::has_whole_chunks(a.value, a.v_head_dim)) return false;
  return encoder() != nullptr && a.num_pages > 0 && (is_packed(a) ? has_packed_boxes(a) : has_boxes_of_rows(a));
}

bool takes_prefill_boxes(const gpu::AttendArgs& a) {
  return a.num_tokens > 0 && takes_boxes(a) && has_box_strides(a.query) && has_box_strides(a.key) && has_box_strides(a.value);
}

bool takes_latent_boxes(const gpu::AttendArgs& a) {
  return encoder() != nullptr && a.num_pages > 0 && !is_packed(a) && tile::has_whole_chunks(a.query, a.head_dim) &&
         tile::has_whole_chunks(a.cache_k, a.head_dim) && has_box_strides(a.cache_k) && is_box_stride(a.cache_k.strides.page);
}

bool encode(CacheMaps& maps, const gpu::AttendArgs& a) {
  maps.box_tokens = std::gcd(a.page_size, most_box_tokens(a.work.tile_keys));
  maps.box_shift = std::countr_zero(static_cast<std::uint32_t>(maps.box_tokens));
  maps.page_boxes = a.page_size / maps.box_tokens;
  if (is_packed(a)) return encode_packed_keys(maps.k, a, maps.box_tokens) && encode_packed_values(maps.v, a, maps.box_tokens);
  const auto one = [&](CUtensorMap& map, const gpu::RowSource& cache, std::int64_t dims) {
    const semantics::KvStrides& s = cache.strides;
    return encode_one(map, cache, dims,
                      {{a.page_size, s.token, maps.box_tokens}, {a.num_kv_heads, s.head, 1}, {a.num_pages, s.page, 1}});
  };
  return one(maps.k, a.cache_k, a.head_dim) && one(maps.v, a.cache_v, a.v_head_dim);
}

/// The dims of a row are two dimensions, so that a copy lays pieces of 64 dims one behind the other.
bool encode(LatentMaps& maps, const gpu::AttendArgs& a) {
  maps.copied_tokens = a.page_size % kMlaPieceKeys == 0 ? kMlaPieceKeys : 1;
  if (maps.copied_tokens == 1) return true;
  constexpr std::int64_t kDims = 64;
  const auto side_by_side = [&](CUtensorMap& map, std::int64_t boxes) {
    const semantics::KvStrides& s = a.cache_k.strides;
    return encode_extents(
        map, a.cache_k,
        {{kDims, 1, kDims}, {a.page_size, s.token, kMlaPieceKeys}, {a.head_dim / kDims, kDims, boxes}, {a.num_pages, s.page, 1}},
        CU_TENSOR_MAP_SWIZZLE_128B);
  };
  return side_by_side(maps.half, a.v_head_dim / kDims / 2) && side_by_side(maps.rest, (a.head_dim - a.v_head_dim) / kDims);
}

/// Boxes of the query hold whole groups; there are none of codes. This step's rows, if there are none, are never asked for.
bool encode(PrefillMaps& maps, const gpu::AttendArgs& a) {
  const semantics::KvStrides& q = a.query.strides;
  const gpu::RowSource output{a.output, a.output_dtype, a.output_strides};
  maps.output_chunks = tile::has_whole_chunks(output, a.v_head_dim);
  maps.output_boxes = encode_output(maps.output, a, output);
  const std::int64_t tokens = (a.v_head_dim > kMostOutDims ? a.work.tile_rows : a.work.tile_rows / kPair) / a.group;
  const auto fresh = [&](CUtensorMap& map, const gpu::RowSource& rows, std::int64_t dims) {
    const semantics::KvStrides& s = rows.strides;
    return rows.data == nullptr ||
           encode_one(map, rows, dims,
                      {{a.num_tokens, s.token, most_box_tokens(a.work.tile_keys)}, {a.num_kv_heads, s.head, 1}, {1, s.token, 1}});
  };
  return encode(maps.cache, a) && fresh(maps.key, a.key, a.head_dim) && fresh(maps.value, a.value, a.v_head_dim) &&
         (is_fp8(a.query.dtype) ||
          encode_one(maps.query, a.query, a.head_dim,
                     {{a.num_q_heads, q.head, a.group}, {a.num_tokens, q.token, tokens}, {1, q.token, 1}}));
}

}  // namespace quire::cuda::sm90
