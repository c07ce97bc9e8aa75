// SPDX-License-Identifier: Apache-2.0
// Page ownership: a reference-counted pool with prefix sharing, for engines that have no block manager of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/cache.hpp"
#include "quire/contract.hpp"
#include "quire/status.hpp"

namespace quire {

/// Caches whose memory a pool owns: one per layer, all of this shape. num_layers 0 = the pool owns no cache, and pages live in
/// the user's caches.
struct PoolCacheOptions {
  std::int64_t num_layers = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  DType dtype = DType::bf16;  ///< f32, f16, bf16 or an fp8 format
};

struct PagePoolOptions {
  std::int64_t num_pages = 0;
  std::int64_t page_size = 16;
  bool prefix_sharing = true;
  /// Ledgers that the pool tells about shared and recycled pages: one per cache that uses this pool's page ids, usually one per
  /// layer, so that a layer which was never appended to is found. Ledgers must outlive the pool.
  std::vector<SlotLedger*> ledgers;
  PoolCacheOptions cache;
};

/// Hands out pages of one paged KV cache (Kwon et al. 2023, arXiv:2309.06180). Full pages are found again by the hash chain of
/// their tokens, and shared. A page returns to the free list when its last holder lets go; the contents of a free page can be
/// found until the page is handed out again (least recently used first). Not thread-safe.
class PagePool {
 public:
  static Result<PagePool> create(const PagePoolOptions& options);  ///< invalid_argument names the option
  ~PagePool();
  PagePool(PagePool&&) noexcept;
  PagePool& operator=(PagePool&&) noexcept;

  /// Registers a request with its known tokens and attaches every already cached full page of the longest shared prefix.
  /// Returns the number of leading tokens found in the cache: always < tokens.size(), so that one row remains to compute.
  /// invalid_argument: request < 0 or already added, no tokens.
  Result<std::int64_t> add(std::int64_t request, std::span<const std::int32_t> tokens);
  /// Makes room for the request's tokens [0, num_tokens). out_of_pages changes nothing. Call resume() first if it was preempted.
  Status reserve(std::int64_t request, std::int64_t num_tokens);
  /// Adds one generated token to the request's token list.
  Status push_token(std::int64_t request, std::int32_t token);
  /// Records that K/V of the request's first num_tokens tokens is in the cache: full pages become shareable. Never shrinks.
  Status commit(std::int64_t request, std::int64_t num_tokens);
  /// Ends the request; its pages lose one holder each.
  Status release(std::int64_t request);
  /// Takes all pages away from a request that will be recomputed later. The pool keeps its tokens: instead of add(), call
  /// resume() to attach the pages that are still cached.
  Status preempt(std::int64_t request);
  /// Attaches cached pages to a preempted request. Returns the number of leading tokens that need not be recomputed, like add().
  Result<std::int64_t> resume(std::int64_t request);
  /// Request to preempt when out of pages: of all requests that hold pages, the one added last. nullopt if none.
  std::optional<std::int64_t> victim() const;

  /// Page ids of the request in order; valid until the next call that changes the pool. invalid_argument: an unknown request.
  Result<std::span<const std::int32_t>> block_table(std::int64_t request) const;
  /// Slot of token `position` of the request. invalid_argument: an unknown request, or a position without a page: append() would
  /// take -1 for "skip this row".
  Result<std::int64_t> slot(std::int64_t request, std::int64_t position) const;

  /// Cache of one layer in the pool's memory: head-major (hnd), K and V of a head in a page side by side, so that a reader of one
  /// head touches one run of memory per page. All zero at first. Scales are absent; set k_scale and v_scale of the returned view
  /// if the values need them. The view is valid as long as the pool or its cache_owner() lives.
  /// invalid_argument: no such layer.
  Result<KVCache> cache(std::int64_t layer) const;
  /// Keeps the memory of all layers alive when the pool is gone; null if the pool owns none.
  std::shared_ptr<const void> cache_owner() const;

  struct CacheMemory {
    std::int64_t bytes = 0;            ///< size of all layers, each rounded up to the alignment; 0 if the pool owns none
    std::int64_t alignment = 0;        ///< bytes; alignment of each layer's first byte
    bool huge_pages_asked = false;     ///< the system took the request for huge pages, but may not grant any
    std::int64_t huge_page_bytes = 0;  ///< bytes backed by huge pages now (memory is backed when first touched); -1 = unknown
  };
  CacheMemory cache_memory() const;

  struct Stats {
    std::int64_t num_pages = 0;
    std::int64_t pages_in_use = 0;       ///< pages with at least one holder now
    std::int64_t pages_shared = 0;       ///< pages with at least two holders now
    std::int64_t prefix_hit_tokens = 0;  ///< tokens found by add() and resume() so far
    std::int64_t preemptions = 0;
    std::int64_t evictions = 0;  ///< findable pages that were handed out anew
  };
  Stats stats() const;

 private:
  struct State;
  explicit PagePool(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire
