// Where the rows of a key tile come from, and how they get into shared memory: the paged cache for positions below cached_len,
// this step's `key` and `value` above. Positions outside the segment become zeros and are never read.
#pragma once

#include <cstdint>

#include "backend/cuda/mma/finish.h"
#include "backend/cuda/mma/pitch.h"
#include "backend/cuda/ptx.h"
#include "backend/gpu/args.h"

namespace quire::cuda::mma {

/// Start of one row; null = the row is zeros.
struct RowAddress {
  const std::uint16_t* k = nullptr;
  const std::uint16_t* v = nullptr;
  bool fresh = false;  ///< from `key` and `value`, whose strides differ from the cache's
};

/// The keys of one item, read by a group of threads of which each always copies the same chunk of eight dims.
struct TileSource {
  const gpu::AttendArgs& a;
  const Item& item;
  int chunk;
  bool whole_chunks;

  __device__ std::int64_t page(int position) const {
    const gpu::BlockTable& t = a.block_table;
    return semantics::load_index(t.data, t.dtype, item.slice.req * t.row_stride + position / a.page_size * t.column_stride);
  }

  __device__ RowAddress row(int position, int begin, int end) const {
    if (position < begin || position >= end) return {};
    if (position >= item.lengths.cached_len) {
      const std::int64_t token = item.lengths.first_token + position - item.lengths.context_len;
      return {static_cast<const std::uint16_t*>(a.key.data) + a.key.strides.row(0, item.kv_head, token),
              static_cast<const std::uint16_t*>(a.value.data) + a.value.strides.row(0, item.kv_head, token), true};
    }
    const std::int64_t page_id = page(position);
    const int offset = position % a.page_size;
    return {static_cast<const std::uint16_t*>(a.cache_k.data) + a.cache_k.strides.row(page_id, item.kv_head, offset),
            static_cast<const std::uint16_t*>(a.cache_v.data) + a.cache_v.strides.row(page_id, item.kv_head, offset), false};
  }

  /// All keys of the segment are in the cache, and 16 aligned keys share a page.
  __device__ bool by_blocks(int segment_end) const {
    return whole_chunks && a.page_size % 16 == 0 && segment_end <= item.lengths.cached_len;
  }

  /// This thread's chunk of a row of zeros or of `strides`, to shared memory.
  __device__ void copy(std::uint16_t* shared, const std::uint16_t* row, const semantics::KvStrides& strides) const {
    if (whole_chunks) return copy_whole(shared, row);
#pragma unroll 1
    for (int i = 0; i < 8; ++i) shared[i] = row != nullptr ? row[strides.element(chunk * 8 + i)] : 0;
  }
  __device__ void copy_whole(std::uint16_t* shared, const std::uint16_t* row) const {
    // A copy of 0 bytes writes zeros; its source is not read, but must be an address.
    const auto* from = row != nullptr ? row + chunk * 8 : static_cast<const std::uint16_t*>(a.cache_k.data);
    ptx::copy_async_16(shared, from, row != nullptr ? 16 : 0);
  }
  __device__ void copy_row(std::uint16_t* k, std::uint16_t* v, const RowAddress& from) const {
    copy(k, from.k, from.fresh ? a.key.strides : a.cache_k.strides);
    copy(v, from.v, from.fresh ? a.value.strides : a.cache_v.strides);
  }
};

/// True if every row is head_dim neighbouring elements that begin at a multiple of 16 bytes.
inline bool has_whole_chunks(const gpu::RowSource& rows, std::int64_t head_dim) {
  if (rows.data == nullptr) return true;
  const semantics::KvStrides& s = rows.strides;
  const bool strides_fit = s.dim == 1 && s.x >= head_dim && s.page % 8 == 0 && s.head % 8 == 0 && s.token % 8 == 0;
  return strides_fit && reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0;
}

}  // namespace quire::cuda::mma
