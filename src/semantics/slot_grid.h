// SPDX-License-Identifier: Apache-2.0
// A cache seen as pages of one token each: where the token of (page, offset) is among them.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>

#include "quire/cache.hpp"

namespace quire::semantics {

/// Token (page, offset) of a cache is page `page * per_page + offset * per_token` of the view. If per_page is page_size and
/// per_token is 1, that is its slot.
struct SlotGrid {
  std::int64_t per_page = 1;
  std::int64_t per_token = 1;
  std::int64_t k_stride = 0;  ///< elements from a page of the view to the next, in K
  std::int64_t v_stride = 0;
  bool is_slots(std::int64_t page_size) const noexcept { return per_page == page_size && per_token == 1; }
};

namespace slot_grid_detail {

struct Steps {
  std::int64_t page, token;
};
inline Steps steps_of(const Tensor& t, CacheLayout layout) noexcept {
  return {t.stride[0], layout == CacheLayout::hnd ? t.stride[2] : t.stride[1]};
}

}  // namespace slot_grid_detail

/// The finest grid that holds all tokens of K and of V; absent for the packed layout, whose tokens are no rows, and where K and V
/// step differently. Needs a sound cache.
inline std::optional<SlotGrid> slot_grid(const KVCache& cache) noexcept {
  if (cache.layout == CacheLayout::packed) return std::nullopt;
  const auto k = slot_grid_detail::steps_of(cache.k, cache.layout), v = slot_grid_detail::steps_of(cache.v, cache.layout);
  const std::int64_t tokens = page_size(cache);
  if (tokens == 1) return SlotGrid{1, 1, k.page, v.page};
  if (num_pages(cache) <= 1) return SlotGrid{tokens, 1, k.token, v.token};
  if (k.page <= 0 || k.token <= 0 || v.page <= 0 || v.token <= 0) return std::nullopt;
  const std::int64_t k_stride = std::gcd(k.page, k.token), v_stride = std::gcd(v.page, v.token);
  if (k.page / k_stride != v.page / v_stride || k.token / k_stride != v.token / v_stride) return std::nullopt;
  return SlotGrid{k.page / k_stride, k.token / k_stride, k_stride, v_stride};
}

/// Pages of the view: one behind that of the last token. Saturates.
inline std::int64_t grid_pages(const SlotGrid& grid, const KVCache& cache) noexcept {
  const std::int64_t pages = num_pages(cache), tokens = page_size(cache);
  if (pages == 0) return 0;
  __extension__ const __int128 last = static_cast<__int128>(pages - 1) * grid.per_page + (tokens - 1) * grid.per_token + 1;
  return last > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(last);
}

}  // namespace quire::semantics
