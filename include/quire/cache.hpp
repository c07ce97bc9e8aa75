// SPDX-License-Identifier: Apache-2.0
// The paged KV cache: where a slot lives in memory for each layout.
#pragma once

#include <optional>
#include <string_view>

#include "quire/tensor.hpp"

namespace quire {

/// Order of the dimensions inside the cache tensors. A *slot* is page * page_size + offset.
enum class CacheLayout : std::int32_t {
  nhd = 0,     ///< k [num_pages, page_size, num_kv_heads, head_dim], v [num_pages, page_size, num_kv_heads, v_head_dim]
  hnd = 1,     ///< k [num_pages, num_kv_heads, page_size, head_dim], v [num_pages, num_kv_heads, page_size, v_head_dim]
  packed = 2,  ///< k [num_pages, num_kv_heads, head_dim / x, page_size, x], v [num_pages, num_kv_heads, v_head_dim, page_size],
               ///< x = 16 / itemsize (vLLM's layout; x is derived, never passed)
};

std::string_view name(CacheLayout layout) noexcept;                           ///< "nhd", "hnd", "packed"; else "invalid"
std::optional<CacheLayout> layout_from_name(std::string_view text) noexcept;  ///< inverse of name()

/// A view of one layer's cache. k and v may interleave in one allocation; every stride is honoured. k and v may also be views of
/// the same bytes (MLA: v is the first dims of k): attend() reads such a cache, append() refuses it (Q-S07).
struct KVCache {
  Tensor k{};  ///< f32, f16, bf16, an fp8 format, i8, nvfp4 or mxfp4; shape by layout; head_dim / 2 bytes of 4-bit types
  Tensor v{};  ///< as k, with a dtype of its own; sizes of k, except the head_dim: values and output have v_head_dim
  CacheLayout layout = CacheLayout::nhd;
  /// f32, scalar, [1] or [num_kv_heads]; real value = stored value * scale; absent = 1 (never beside i8); finite and > 0.
  ///
  /// 8-bit caches may have a scale for each token and KV head: f32 [num_pages, page_size, num_kv_heads], whatever the layout,
  /// with any strides, so that scales may lie inside of pages. append() writes such a scale:
  ///     scale = max(max_d |x_d| / L, 2^-126), an f32 division; L = 127 (i8), 448, 240 or 57344: the largest code of the type
  ///     stored = x / scale, rounded to nearest even
  /// A row with a NaN or an infinity has the scale NaN. Scales of slots that no row sees are never read.
  Tensor k_scale{};
  Tensor v_scale{};  ///< as k_scale, for v
  /// Of nvfp4 (fp8_e4m3fn, a scale for 16 dims) and mxfp4 (fp8_e8m0, a scale for 32) alone, and there required:
  /// [num_pages, page_size, num_kv_heads, head_dim / block], whatever the layout, with any strides. Such caches are nhd or hnd.
  /// Real value = code * block scale * k_scale. append() writes block scales, of y = x / k_scale in f32:
  ///     nvfp4:  block scale = e4m3fn(max |y| / 6)                       stored = e2m1(y / block scale), 0 if the scale is 0
  ///     mxfp4:  block scale = 2^max(floor(log2(max |y|)) - 2, -127)     stored = e2m1(y / block scale)
  /// max is over the dims of a block; e4m3fn() and e2m1() round to nearest even, and 448 or 6 stand for what is beyond. A block
  /// with a NaN or an infinity has the scale NaN. Scales of slots that no row sees are never read.
  Tensor k_block_scale{};
  Tensor v_block_scale{};  ///< as k_block_scale, for v
};

/// Sizes read from the shape of `cache.k` by layout; v_head_dim from that of `cache.v`. Meaningful only if rule Q-M06 holds
/// (ranks as documented).
std::int64_t num_pages(const KVCache& cache) noexcept;
std::int64_t page_size(const KVCache& cache) noexcept;
std::int64_t num_kv_heads(const KVCache& cache) noexcept;
std::int64_t head_dim(const KVCache& cache) noexcept;
std::int64_t v_head_dim(const KVCache& cache) noexcept;

/// x of the packed layout: 16 / itemsize(dtype) (f32 4, 16-bit 8, fp8 16).
std::int64_t packed_x(DType dtype) noexcept;

}  // namespace quire
