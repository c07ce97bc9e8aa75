// SPDX-License-Identifier: Apache-2.0
// Sizes of a cache, read from its shapes by layout.
#include "quire/cache.hpp"
#include "text/names.h"

#include "semantics/latent_row.h"

namespace quire {

static constexpr std::string_view kLayouts[] = {"nhd", "hnd", "packed"};

std::string_view name(CacheLayout layout) noexcept { return name_in(kLayouts, layout, "invalid"); }

std::optional<CacheLayout> layout_from_name(std::string_view text) noexcept { return value_in<CacheLayout>(kLayouts, text); }

namespace {

/// A byte of a 4-bit type holds two dims.
std::int64_t dims_of_row(const Tensor& t) noexcept { return is_four_bit(t.dtype) ? 2 * t.shape[3] : t.shape[3]; }

}  // namespace

std::int64_t num_pages(const KVCache& cache) noexcept { return cache.k.shape[0]; }

std::int64_t page_size(const KVCache& cache) noexcept {
  switch (cache.layout) {
    case CacheLayout::nhd: return cache.k.shape[1];
    case CacheLayout::hnd: return cache.k.shape[2];
    case CacheLayout::packed: return cache.k.shape[3];
  }
  return 0;
}

std::int64_t num_kv_heads(const KVCache& cache) noexcept {
  return cache.layout == CacheLayout::nhd ? cache.k.shape[2] : cache.k.shape[1];
}

std::int64_t head_dim(const KVCache& cache) noexcept {
  if (cache.k.dtype == DType::fp8_ds_mla) return semantics::latent_row::kDims;
  return cache.layout == CacheLayout::packed ? cache.k.shape[2] * cache.k.shape[4] : dims_of_row(cache.k);
}

std::int64_t v_head_dim(const KVCache& cache) noexcept {
  if (cache.v.dtype == DType::fp8_ds_mla) return semantics::latent_row::kLatentDims;
  return cache.layout == CacheLayout::packed ? cache.v.shape[2] : dims_of_row(cache.v);
}

KVCache latent_cache(const Tensor& rows) noexcept {
  KVCache cache;
  cache.k = rows;
  cache.k.dtype = DType::fp8_ds_mla;
  if (rows.rank == 3) {
    cache.k.rank = 4;
    cache.k.shape = {rows.shape[0], rows.shape[1], 1, rows.shape[2]};
    cache.k.stride = {rows.stride[0], rows.stride[1], rows.stride[1], rows.stride[2]};
  }
  cache.v = cache.k;
  return cache;
}

std::int64_t packed_x(DType dtype) noexcept { return itemsize(dtype) > 0 ? 16 / itemsize(dtype) : 0; }

}  // namespace quire
