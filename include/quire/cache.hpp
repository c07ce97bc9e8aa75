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
  /// f32, f16, bf16, an fp8 format, i8, nvfp4, mxfp4 or fp8_ds_mla; shape by layout; a 4-bit row is head_dim / 2 bytes.
  Tensor k{};
  Tensor v{};  ///< same shape as k but for v_head_dim; may have another dtype
  CacheLayout layout = CacheLayout::nhd;
  /// f32, scalar, [1] or [num_kv_heads]; real value = stored value * scale; absent = 1 (never beside i8); finite and > 0.
  ///
  /// 8-bit caches may have a scale for each token and KV head: f32 [num_pages, page_size, num_kv_heads], whatever the layout,
  /// with any strides, so that scales may lie inside of pages. append() writes such a scale:
  ///     scale = max(max_d |x_d| / L, 2^-126), an f32 division; L = 127 (i8), 448, 240 or 57344: the largest code of the type
  ///     stored = x / scale, rounded to nearest even
  /// A row with a NaN or an infinity has the scale NaN. Scales of slots that no row sees are never read.
  Tensor k_scale{};
  Tensor v_scale{};  ///< scales of v, as k_scale
  /// Block scales, required for nvfp4 (fp8_e4m3fn, one for 16 dims) and mxfp4 (fp8_e8m0, one for 32) and refused beside others:
  /// [num_pages, page_size, num_kv_heads, head_dim / block], whatever the layout, with any strides. Such caches are nhd or hnd.
  /// Real value = code * block scale * k_scale. append() writes block scales, of y = x / k_scale in f32:
  ///     nvfp4:  block scale = e4m3fn(max |y| / 6)                       stored = e2m1(y / block scale), 0 if the scale is 0
  ///     mxfp4:  block scale = 2^max(floor(log2(max |y|)) - 2, -127)     stored = e2m1(y / block scale)
  /// max is over the dims of a block; e4m3fn() and e2m1() round to nearest even, and 448 or 6 stand for what is beyond. A block
  /// with a NaN or an infinity has the scale NaN. Scales of slots that no row sees are never read.
  Tensor k_block_scale{};
  Tensor v_block_scale{};  ///< block scales of v, as k_block_scale
};

/// Sizes read from the shape of `cache.k` by layout; v_head_dim from that of `cache.v`. Meaningful only if rule Q-M06 holds
/// (ranks as documented).
///
/// Rows of fp8_ds_mla have head_dim 576 and v_head_dim 512, whatever their bytes.
std::int64_t num_pages(const KVCache& cache) noexcept;
std::int64_t page_size(const KVCache& cache) noexcept;
std::int64_t num_kv_heads(const KVCache& cache) noexcept;
std::int64_t head_dim(const KVCache& cache) noexcept;
std::int64_t v_head_dim(const KVCache& cache) noexcept;

/// The cache of FlashMLA's fp8 rows (vLLM: kv_cache_dtype "fp8_ds_mla"): `rows` is [num_pages, page_size, 656] of one byte each,
/// whatever its dtype. A row is a token of MLA's latent cache:
///     bytes [0, 512)     512 codes of fp8_e4m3fn: the latent dims
///     bytes [512, 528)   four f32: of latent dims [128 b, 128 b + 128) the real value is code * scale b
///     bytes [528, 656)   64 elements of bf16: the dims of RoPE
/// K is both parts, 576 dims; V is the latent dims. k and v are one tensor, [num_pages, page_size, 1, 656] of fp8_ds_mla, and
/// k_scale and v_scale are absent (Q-R01 to Q-R03). attend() reads it as any cache. append() writes it: key is c_kv, [num_tokens,
/// 1, 512], value is k_rope, [num_tokens, 1, 64] (Q-R04), and
///     scale b = max(max |x_d| / 448, 2^-126) over the 128 dims of block b, an f32 division; code = x / scale b, rounded to
///     nearest even; k_rope is rounded to bf16
/// A block with a NaN or an infinity has the scale NaN.
KVCache latent_cache(const Tensor& rows) noexcept;

/// x of the packed layout: 16 / itemsize(dtype) (f32 4, 16-bit 8, fp8 16).
std::int64_t packed_x(DType dtype) noexcept;

}  // namespace quire
