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
  bool is_slots(std::int64_t page_size) const noexcept { return per_page == page_size && per_token == 1; }
};

/// Elements from a page of a tensor to the next, and from a token to the next: of K, V, or their scales of tokens.
struct TokenSteps {
  std::int64_t page, token;
};
inline TokenSteps token_steps(const Tensor& t, CacheLayout layout) noexcept {
  return {t.stride[0], t.rank == 4 && layout == CacheLayout::hnd ? t.stride[2] : t.stride[1]};
}
/// Elements from a page of block scales to the next, and from a token to the next. Block scales are [page, token, head, block] in
/// every layout.
inline TokenSteps block_scale_steps(const Tensor& t) noexcept { return {t.stride[0], t.stride[1]}; }
/// Elements from a page of the view to the next. Steps as slot_grid() has found them sound.
inline std::int64_t grid_stride(const TokenSteps& steps, const KVCache& cache) noexcept {
  if (page_size(cache) == 1) return steps.page;
  return num_pages(cache) <= 1 ? steps.token : std::gcd(steps.page, steps.token);
}

/// The finest grid that holds all tokens of K, V and scales of tokens; absent for the packed layout, whose tokens are no rows,
/// and where these tensors step differently. Needs a sound cache.
inline std::optional<SlotGrid> slot_grid(const KVCache& cache) noexcept {
  if (cache.layout == CacheLayout::packed) return std::nullopt;
  const std::int64_t tokens = page_size(cache);
  if (tokens == 1 || num_pages(cache) <= 1) return SlotGrid{tokens, 1};
  std::optional<SlotGrid> grid;
  for (const Tensor* t : {&cache.k, &cache.v, &cache.k_scale, &cache.v_scale, &cache.k_block_scale, &cache.v_block_scale}) {
    if (t->rank < 3) continue;
    const bool of_blocks = t == &cache.k_block_scale || t == &cache.v_block_scale;
    const TokenSteps steps = of_blocks ? block_scale_steps(*t) : token_steps(*t, cache.layout);
    if (steps.page <= 0 || steps.token <= 0) return std::nullopt;
    const std::int64_t unit = std::gcd(steps.page, steps.token);
    const SlotGrid own{steps.page / unit, steps.token / unit};
    if (grid && (grid->per_page != own.per_page || grid->per_token != own.per_token)) return std::nullopt;
    grid = own;
  }
  return grid;
}

/// Pages of the view: one behind that of the last token. Saturates.
inline std::int64_t grid_pages(const SlotGrid& grid, const KVCache& cache) noexcept {
  const std::int64_t pages = num_pages(cache), tokens = page_size(cache);
  if (pages == 0) return 0;
  __extension__ const __int128 last = static_cast<__int128>(pages - 1) * grid.per_page + (tokens - 1) * grid.per_token + 1;
  return last > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(last);
}

}  // namespace quire::semantics
