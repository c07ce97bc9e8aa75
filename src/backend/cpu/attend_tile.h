// SPDX-License-Identifier: Apache-2.0
// Stage: attend. One row of the cache (or of this step's rows) as f32, whatever its type and layout; and which rows a tile holds.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/block_rows.h"
#include "semantics/latent_row.h"

// Anonymous on purpose, in every header that a kernel includes: each instruction-set unit must keep its own copy of every
// function.
namespace quire::cpu {
namespace {

/// kWidth codes at a time: arithmetic for codes that it decodes exactly, the table for NaN codes and what else it cannot do.
template <class V, DType kType>
void convert_fp8(float* dst, const std::uint8_t* codes, std::int64_t count, const float* table) {
  bool by_table = kType == DType::fp8_e5m2fnuz;  // the largest exponent of e5m2fnuz is infinity's in f16
  if (kType == DType::fp8_e4m3fn) by_table = V::has_code(codes, count, /*or_mask=*/0x80, /*code=*/0xFF);
  if (kType == DType::fp8_e4m3fnuz) by_table = V::has_code(codes, count, /*or_mask=*/0x00, /*code=*/0x80);
  if (by_table)
    for (std::int64_t i = 0; i < count; i += V::kWidth) V::store(dst + i, V::look_up(codes + i, table));
  else
    for (std::int64_t i = 0; i < count; i += V::kWidth) V::store(dst + i, V::template load_fp8<kType>(codes + i, table));
}

/// Elements [begin, end) of a run, one by one. Out of the way of the loops over vectors.
__attribute__((noinline)) inline void convert_tail(float* dst, const RowSource& src, std::int64_t offset, std::int64_t begin,
                                                   std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) dst[i] = semantics::load(src.data, src.dtype, offset + i);
}

/// dst[0 .. count) = values of `count` consecutive elements starting at `offset`.
template <class V>
void convert_run(float* dst, const RowSource& src, std::int64_t offset, std::int64_t count) {
  const auto* floats = static_cast<const float*>(src.data) + offset;
  const auto* words = static_cast<const std::uint16_t*>(src.data) + offset;
  const auto* codes = static_cast<const std::uint8_t*>(src.data) + offset;
  const std::int64_t whole = count / V::kWidth * V::kWidth;
  switch (src.dtype) {
    case DType::f32:
      for (std::int64_t i = 0; i < whole; i += V::kWidth) V::store(dst + i, V::load(floats + i));
      break;
    case DType::f16:
      for (std::int64_t i = 0; i < whole; i += V::kWidth) V::store(dst + i, V::load_f16(words + i));
      break;
    case DType::bf16:
      for (std::int64_t i = 0; i < whole; i += V::kWidth) V::store(dst + i, V::load_bf16(words + i));
      break;
    case DType::i8:
      for (std::int64_t i = 0; i < whole; i += V::kWidth) V::store(dst + i, V::load_i8(codes + i));
      break;
    case DType::fp8_e4m3fn: convert_fp8<V, DType::fp8_e4m3fn>(dst, codes, whole, src.fp8_table); break;
    case DType::fp8_e4m3fnuz: convert_fp8<V, DType::fp8_e4m3fnuz>(dst, codes, whole, src.fp8_table); break;
    case DType::fp8_e5m2: convert_fp8<V, DType::fp8_e5m2>(dst, codes, whole, src.fp8_table); break;
    case DType::fp8_e5m2fnuz: convert_fp8<V, DType::fp8_e5m2fnuz>(dst, codes, whole, src.fp8_table); break;
    default: __builtin_trap();  // Rows of 4-bit codes and of fp8_ds_mla have loops of their own; no other type is a cache.
  }
  if (whole < count) convert_tail(dst, src, offset, whole, count);
}

/// A row in chunks of `x` elements, each a whole number of words (K of the packed layout): the chunks side by side first, so that
/// vectors do not end with them.
template <class V>
void load_chunked_row(float* dst, const RowSource& src, std::int64_t offset, std::int64_t head_dim) {
  constexpr std::int64_t kBytes = 1024, kWord = 8;
  alignas(64) std::uint64_t side_by_side[kBytes / kWord];
  const std::int64_t x = src.strides.x, size = itemsize(src.dtype), words = x * size / kWord, step = kBytes / (x * size) * x;
  RowSource row = src;
  row.data = side_by_side;
  for (std::int64_t d = 0; d < head_dim; d += step) {
    const std::int64_t count = step < head_dim - d ? step : head_dim - d;
    std::uint64_t* to = side_by_side;
    const auto* from = static_cast<const std::uint8_t*>(src.data) + (offset + d / x * src.strides.chunk) * size;
    for (std::int64_t c = 0; c < count; c += x, from += src.strides.chunk * size)
      for (std::int64_t w = 0; w < words; ++w) __builtin_memcpy(to++, from + w * kWord, kWord);
    convert_run<V>(dst + d, row, 0, count);
  }
}

/// Elements that are not side by side, one by one.
__attribute__((noinline)) inline void gather_row(float* dst, const RowSource& src, std::int64_t offset, std::int64_t head_dim) {
  for (std::int64_t d = 0; d < head_dim; ++d) dst[d] = semantics::load(src.data, src.dtype, offset + src.strides.element(d));
}

/// A row of fp8_ds_mla: codes times the scale of their block, then, in K, elements of bf16.
template <class V>
__attribute__((noinline)) void load_latent_row(float* dst, const RowSource& src, std::int64_t offset) {
  namespace latent = semantics::latent_row;
  const auto* row = static_cast<const std::uint8_t*>(src.data) + offset;
  RowSource part = src;
  part.dtype = DType::fp8_e4m3fn;
  for (std::int64_t b = 0; b < latent::kNumBlocks; ++b) {
    float* block = dst + b * latent::kBlockDims;
    convert_run<V>(block, part, offset + b * latent::kBlockDims, latent::kBlockDims);
    const auto scale = V::set1(latent::scale(row, b));
    for (std::int64_t d = 0; d < latent::kBlockDims; d += V::kWidth) V::store(block + d, V::mul(V::load(block + d), scale));
  }
  if (src.dims == latent::kLatentDims) return;
  part.dtype = DType::bf16;
  part.data = row + latent::kRopeAt;
  convert_run<V>(dst + latent::kLatentDims, part, 0, latent::kRopeDims);
}

/// One row into dst, zero-padded to src.stride.
template <class V>
void load_row(float* dst, const RowSource& src, std::int64_t offset) {
  const std::int64_t head_dim = src.dims, x = src.strides.x;
  if (src.blocks != nullptr) {
    load_block_row<V>(dst, src, offset);
  } else if (src.dtype == DType::fp8_ds_mla) {
    load_latent_row<V>(dst, src, offset);
  } else if (src.strides.dim != 1) {
    gather_row(dst, src, offset, head_dim);
  } else if (x < head_dim && head_dim % x == 0 && x * itemsize(src.dtype) % 8 == 0 && x * itemsize(src.dtype) <= 64) {
    load_chunked_row<V>(dst, src, offset, head_dim);
  } else {
    for (std::int64_t d = 0; d < head_dim; d += x, offset += src.strides.chunk)
      convert_run<V>(dst + d, src, offset, x < head_dim - d ? x : head_dim - d);
  }
  for (std::int64_t d = head_dim; d < src.stride; ++d) dst[d] = 0.0f;
}

/// The same, times `scale`.
template <class V>
void load_scaled_row(float* dst, const RowSource& src, std::int64_t offset, float scale) {
  load_row<V>(dst, src, offset);
  for (std::int64_t d = 0; d < src.stride && scale != 1.0f; d += V::kWidth)
    V::store(dst + d, V::mul(V::load(dst + d), V::set1(scale)));
}

/// kWidth consecutive elements as f32, whatever their type.
template <class V>
typename V::Reg load_elements_of(const RowSource& src, std::int64_t offset) {
  const auto* floats = static_cast<const float*>(src.data) + offset;
  const auto* words = static_cast<const std::uint16_t*>(src.data) + offset;
  if (src.dtype == DType::f32) return V::load(floats);
  if (src.dtype == DType::f16) return V::load_f16(words);
  if (src.dtype == DType::bf16) return V::load_bf16(words);
  float values[V::kWidth];
  convert_run<V>(values, src, offset, V::kWidth);
  return V::load(values);
}

/// kWidth rows whose tokens lie side by side (V of the packed layout): vectors of tokens become vectors of dims.
template <class V>
void load_token_block(float* dst, const RowSource& src, std::int64_t offset) {
  std::int64_t d = 0;
  for (; d + V::kWidth <= src.dims; d += V::kWidth) {
    typename V::Reg block[V::kWidth];
    for (int i = 0; i < V::kWidth; ++i) block[i] = load_elements_of<V>(src, offset + src.strides.element(d + i));
    V::transpose(block);
    for (int i = 0; i < V::kWidth; ++i) V::store(dst + i * src.stride + d, block[i]);
  }
  for (std::int64_t i = 0; i < V::kWidth && d < src.stride; ++i) {
    for (std::int64_t e = d; e < src.dims; ++e)
      dst[i * src.stride + e] = semantics::load(src.data, src.dtype, offset + i + src.strides.element(e));
    for (std::int64_t e = src.dims; e < src.stride; ++e) dst[i * src.stride + e] = 0.0f;
  }
}

inline bool are_consecutive(const std::int64_t* offsets, std::int64_t count) {
  for (std::int64_t i = 1; i < count; ++i)
    if (offsets[i] != offsets[0] + i) return false;
  return true;
}

/// Rows at offsets[0 .. count) into dst, src.stride floats apart.
template <class V>
void load_rows(float* dst, const RowSource& src, const std::int64_t* offsets, std::int64_t count) {
  const bool tokens_innermost = src.strides.dim != 1 && src.strides.token == 1 && V::kWidth > 1;
  for (std::int64_t r = 0; r < count;) {
    if (tokens_innermost && r + V::kWidth <= count && are_consecutive(offsets + r, V::kWidth)) {
      load_token_block<V>(dst + r * src.stride, src, offsets[r]);
      r += V::kWidth;
    } else {
      load_row<V>(dst + r * src.stride, src, offsets[r]);
      ++r;
    }
  }
}

// ---- rows of keys, as the right-hand side of the scores -----------------------------------------------------------------------

/// Floats that a key or query row takes: one for each step of a score's chain, rounded up to whole vectors.
template <class V>
std::int64_t key_floats(const AttendArgs& args) {
  return V::kPairs == 1 ? args.stride : ((args.head_dim + 1) / 2 + 15) / 16 * 16;
}

/// One row as bf16 pairs in `dst` (key_floats of them), zero-padded. Exact: the row holds bf16 or fp8 values. `temp` takes a row
/// of f32.
template <class V>
void load_pairs(float* dst, float* temp, const RowSource& src, std::int64_t offset, const AttendArgs& args) {
  const std::int64_t floats = key_floats<V>(args);
  const bool whole = src.strides.dim == 1 && src.strides.x >= src.dims && src.dims == 2 * floats;
  if (whole && src.dtype == DType::bf16) {
    const auto* pairs = reinterpret_cast<const float*>(static_cast<const std::uint16_t*>(src.data) + offset);
    for (std::int64_t d = 0; d < floats; d += V::kWidth) V::store(dst + d, V::load(pairs + d));
    return;
  }
  for (std::int64_t d = args.stride / 2 / V::kWidth * V::kWidth; d < floats; d += V::kWidth) V::store(dst + d, V::set1(0.0f));
  load_row<V>(temp, src, offset);
  for (std::int64_t d = 0; d < args.stride; d += V::kWidth)
    V::store_exact_bf16(reinterpret_cast<std::uint16_t*>(dst) + d, V::load(temp + d));
}

/// One key or query row as the scores' chains want it. Pairs stay unscaled: their scores are scaled instead (tile_path.h).
template <class V>
void load_key(float* dst, float* temp, const RowSource& src, std::int64_t offset, const AttendArgs& args, float scale) {
  if constexpr (V::kPairs == 2)
    load_pairs<V>(dst, temp, src, offset, args);
  else
    load_scaled_row<V>(dst, src, offset, scale);
}

/// Rows of keys, unscaled, args.stride floats apart.
template <class V>
void load_keys(float* dst, float* temp, const RowSource& src, const std::int64_t* offsets, std::int64_t count,
               const AttendArgs& args) {
  if constexpr (V::kPairs == 2) {
    for (std::int64_t r = 0; r < count; ++r) load_pairs<V>(dst + r * args.stride, temp, src, offsets[r], args);
  } else {
    load_rows<V>(dst, src, offsets, count);
  }
}

/// Which of a request's rows: positions of request `req`, KV head `kv_head`.
struct KvRows {
  std::int64_t req = 0;
  std::int64_t kv_head = 0;
};

/// Calls visit(position, source, offset, fresh) for positions [begin, end): where the row lies, `offset` in elements of `source`.
/// Positions below cached_len are in the cache, later ones in this step's `fresh` rows. Touches no table entry outside.
template <class Visit>
void for_each_row(const AttendArgs& args, const KvRows& rows, const RowSource& cache, const RowSource& fresh, std::int64_t begin,
                  std::int64_t end, Visit&& visit) {
  const Request& req = args.reqs[rows.req];
  const std::int64_t cached_end = end < req.cached_len ? end : req.cached_len;
  const semantics::PageRow pages = pages_of(args, rows.req);
  semantics::for_each_page_run(pages, args.page_size, begin, cached_end,
                               [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                 for (std::int64_t i = 0; i < count; ++i)
                                   visit(position + i, cache, cache.strides.row(page, rows.kv_head, offset + i), false);
                               });
  const std::int64_t first_token = args.query_start_loc[rows.req] - req.context_len;
  for (std::int64_t p = begin > cached_end ? begin : cached_end; p < end; ++p)
    visit(p, fresh, fresh.strides.row(0, rows.kv_head, first_token + p), true);
}

}  // namespace
}  // namespace quire::cpu
