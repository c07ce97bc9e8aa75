// SPDX-License-Identifier: Apache-2.0
// Page ownership for engines: reference counts, prefix sharing, least-recently-used reuse, preemption. Guarantees that a page a
// request still has to write is held by that request alone, and that a refused call changes nothing. May own the memory of K and
// V, but never reads or writes it.
#include "quire/page_pool.hpp"
#include "batch/caught.h"

#include <limits>
#include <unordered_map>
#include <utility>

#include "pool/cache_memory.h"
#include "pool/prefix_index.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire {

namespace {

struct Page {
  std::int64_t holders = 0;
  std::int64_t node = PrefixIndex::kNoNode;  // findable under this prefix; kNoNode: its contents belong to one request alone
};

struct Request {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> pages;
  std::vector<std::int64_t> nodes;  // nodes of the committed full pages, kNoNode if the prefix can no longer be found
  std::int64_t committed = 0;
  std::int64_t arrival = 0;
  bool preempted = false;
};

// Pages without a holder, least recently used first; a doubly linked list over page numbers with `num_pages` as its sentinel.
class FreeList {
 public:
  explicit FreeList(std::int64_t num_pages) : links_(static_cast<std::size_t>(num_pages) + 1), end_(num_pages) {
    links_.back() = {end_, end_};
    for (std::int64_t page = 0; page < num_pages; ++page) push_back(page);
  }
  std::int64_t size() const { return size_; }
  std::int64_t front() const { return at(end_).next; }
  void push_back(std::int64_t page) { link(at(end_).prev, page, end_); }
  void push_front(std::int64_t page) { link(end_, page, at(end_).next); }
  void remove(std::int64_t page) {
    const Link here = at(page);
    at(here.prev).next = here.next;
    at(here.next).prev = here.prev;
    --size_;
  }

 private:
  struct Link {
    std::int64_t prev = 0, next = 0;
  };
  Link& at(std::int64_t page) { return links_[static_cast<std::size_t>(page)]; }
  const Link& at(std::int64_t page) const { return links_[static_cast<std::size_t>(page)]; }
  void link(std::int64_t before, std::int64_t page, std::int64_t after) {
    at(page) = {before, after};
    at(before).next = page;
    at(after).prev = page;
    ++size_;
  }
  std::vector<Link> links_;
  std::int64_t end_;
  std::int64_t size_ = 0;
};

/// Bytes of K and V of one layer, in whole huge pages; nullopt if all layers together pass 2^62.
std::optional<std::int64_t> layer_bytes(const PagePoolOptions& o) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  std::int64_t bytes = 2 * itemsize(o.cache.dtype);
  for (const std::int64_t factor : {o.num_pages, o.page_size, o.cache.num_kv_heads, o.cache.head_dim}) {
    if (factor > kMost / bytes) return std::nullopt;
    bytes *= factor;
  }
  constexpr std::int64_t kUnit = pool::kHugePageBytes;
  if (bytes > kMost - kUnit) return std::nullopt;
  bytes = semantics::round_up(bytes, kUnit);
  if (bytes > kMost / o.cache.num_layers) return std::nullopt;
  return bytes;
}

Status bad(std::string message) { return {Code::invalid_argument, std::move(message)}; }

/// Sizes of owned memory: positive, and countable in bytes.
Status validate_cache(const PagePoolOptions& o) {
  const PoolCacheOptions& c = o.cache;
  if (c.num_layers == 0) return {};
  constexpr std::int64_t kMaxLayers = 1 << 16;  // limit above any model's layers
  if (c.num_layers < 0 || c.num_layers > kMaxLayers)
    return bad(formatted("PagePool cache.num_layers: {} outside [0, {}]", c.num_layers, kMaxLayers));
  if (c.num_kv_heads < 1) return bad(formatted("PagePool cache.num_kv_heads: {}, expected at least 1", c.num_kv_heads));
  if (c.head_dim < 1) return bad(formatted("PagePool cache.head_dim: {}, expected at least 1", c.head_dim));
  if (!is_cached(c.dtype) || is_four_bit(c.dtype))
    return bad(formatted("PagePool cache.dtype: {}, expected f32, f16, bf16, an fp8 format or i8", name(c.dtype)));
  if (!layer_bytes(o)) return bad("PagePool cache: the sizes multiply to more bytes than can be addressed");
  return {};
}

Status validate(const PagePoolOptions& o) {
  constexpr std::int64_t kMaxPages = std::numeric_limits<std::int32_t>::max();  // page ids are int32 in block_table
  if (o.num_pages < 1 || o.num_pages > kMaxPages) {
    return bad(formatted("PagePool num_pages: {} outside [1, {}]", o.num_pages, kMaxPages));
  }
  const std::int64_t max_page_size = std::numeric_limits<std::int64_t>::max() / o.num_pages;
  if (o.page_size < 1 || o.page_size > max_page_size) {
    return bad(formatted("PagePool page_size: {} outside [1, {}]", o.page_size, max_page_size));
  }
  for (std::size_t i = 0; i < o.ledgers.size(); ++i) {
    const SlotLedger* ledger = o.ledgers[i];
    if (ledger == nullptr) return bad(formatted("PagePool ledgers[{}]: null", i));
    if (ledger->num_pages() != o.num_pages || ledger->page_size() != o.page_size) {
      return bad(formatted("PagePool ledgers[{}]: {} pages of {} tokens, expected {} pages of {} tokens", i, ledger->num_pages(),
                           ledger->page_size(), o.num_pages, o.page_size));
    }
  }
  return validate_cache(o);
}

}  // namespace

struct PagePool::State {
  explicit State(const PagePoolOptions& o) : options(o), pages(static_cast<std::size_t>(o.num_pages)), free(o.num_pages) {
    stats.num_pages = o.num_pages;
    if (o.cache.num_layers > 0) memory = quire::pool::allocate(cache_bytes());
  }

  PagePoolOptions options;
  std::vector<Page> pages;
  FreeList free;
  PrefixIndex index;
  std::unordered_map<std::int64_t, Request> requests;
  std::int64_t arrivals = 0;
  Stats stats;
  quire::pool::Block memory;

  /// Cache bytes of all layers; 0 if the pool owns no cache. The options are valid.
  std::int64_t cache_bytes() const {
    return options.cache.num_layers == 0 ? 0 : *layer_bytes(options) * options.cache.num_layers;
  }

  Page& page(std::int32_t id) { return pages[static_cast<std::size_t>(id)]; }
  std::span<const std::int32_t> page_tokens(const Request& r, std::int64_t i) const {
    return std::span(r.tokens).subspan(static_cast<std::size_t>(i * options.page_size),
                                       static_cast<std::size_t>(options.page_size));
  }
  Result<const Request*> find(std::int64_t id, const char* call) const {
    const auto it = requests.find(id);
    if (it == requests.end()) return bad(formatted("PagePool::{} request {}: unknown, expected one that was added", call, id));
    return &it->second;
  }
  Result<Request*> find(std::int64_t id, const char* call) {
    const Result<const Request*> found = std::as_const(*this).find(id, call);
    if (!found.ok()) return found.status();
    return const_cast<Request*>(found.value());
  }

  void recycle(std::int32_t id) {
    for (SlotLedger* ledger : options.ledgers) ledger->recycle(id);
  }
  std::int32_t take();
  void hold(std::int32_t id, std::int64_t request);
  void drop(std::int32_t id);
  void drop_all(Request& r);
  std::int64_t attach_prefix(std::int64_t id, Request& r);
  void publish(Request& r, std::int64_t i);
};

// Hands out the page that was used least recently; its old contents can no longer be found.
std::int32_t PagePool::State::take() {
  const auto id = static_cast<std::int32_t>(free.front());
  free.remove(id);
  Page& p = page(id);
  if (p.node != PrefixIndex::kNoNode) {
    index.erase(p.node);
    p.node = PrefixIndex::kNoNode;
    ++stats.evictions;
    recycle(id);
  }
  p.holders = 1;
  ++stats.pages_in_use;
  return id;
}

void PagePool::State::hold(std::int32_t id, std::int64_t request) {
  Page& p = page(id);
  if (p.holders == 0) {
    free.remove(id);
    ++stats.pages_in_use;
  }
  if (++p.holders == 2) ++stats.pages_shared;
  for (SlotLedger* ledger : options.ledgers) ledger->share(id, request);
}

void PagePool::State::drop(std::int32_t id) {
  Page& p = page(id);
  if (--p.holders == 1) --stats.pages_shared;
  if (p.holders > 0) return;
  --stats.pages_in_use;
  if (p.node != PrefixIndex::kNoNode) {
    free.push_back(id);
  } else {
    free.push_front(id);  // contents of the page cannot be asked for again
    recycle(id);
  }
}

// Last page first, so that of a released chain the shared beginnings outlive the ends.
void PagePool::State::drop_all(Request& r) {
  for (auto it = r.pages.rbegin(); it != r.pages.rend(); ++it) drop(*it);
  r.pages.clear();
  r.nodes.clear();
  r.committed = 0;
}

std::int64_t PagePool::State::attach_prefix(std::int64_t id, Request& r) {
  if (!options.prefix_sharing) return 0;
  const std::int64_t most = (static_cast<std::int64_t>(r.tokens.size()) - 1) / options.page_size;
  std::int64_t parent = PrefixIndex::kRoot;
  for (std::int64_t i = 0; i < most; ++i) {
    const auto hit = index.find(parent, page_tokens(r, i));
    if (!hit) break;
    hold(hit->page, id);
    r.pages.push_back(hit->page);
    r.nodes.push_back(hit->node);
    parent = hit->node;
  }
  r.committed = static_cast<std::int64_t>(r.pages.size()) * options.page_size;
  stats.prefix_hit_tokens += r.committed;
  return r.committed;
}

// Full page i of the request becomes findable, unless an equal one is (two requests computed it side by side) or the chain
// above it has been handed out since.
void PagePool::State::publish(Request& r, std::int64_t i) {
  const std::int64_t parent = i == 0 ? PrefixIndex::kRoot : r.nodes.back();
  if (!options.prefix_sharing || !index.contains(parent)) {
    r.nodes.push_back(PrefixIndex::kNoNode);
  } else if (const auto hit = index.find(parent, page_tokens(r, i))) {
    r.nodes.push_back(hit->node);
  } else {
    const std::int32_t id = r.pages[static_cast<std::size_t>(i)];
    page(id).node = index.insert(parent, page_tokens(r, i), id);
    r.nodes.push_back(page(id).node);
  }
}

PagePool::PagePool(std::unique_ptr<State> state) : state_(std::move(state)) {}
PagePool::~PagePool() = default;
PagePool::PagePool(PagePool&&) noexcept = default;
PagePool& PagePool::operator=(PagePool&&) noexcept = default;

Result<PagePool> PagePool::create(const PagePoolOptions& options) {
  if (Status s = validate(options); !s.ok()) return s;
  try {
    PagePool pool(std::make_unique<State>(options));
    if (pool.state_->cache_bytes() > 0 && pool.state_->memory.data == nullptr)
      return Status(Code::out_of_memory, formatted("PagePool cache: no memory for {} layers of {} bytes",
                                                   options.cache.num_layers, *layer_bytes(options)));
    return pool;
  } catch (...) {
    return batch::caught("PagePool num_pages");
  }
}

Result<std::int64_t> PagePool::add(std::int64_t request, std::span<const std::int32_t> tokens) {
  if (request < 0) return bad(formatted("PagePool::add request {}: negative, expected >= 0", request));
  if (tokens.empty()) return bad(formatted("PagePool::add request {}: 0 tokens, expected at least 1", request));
  const auto [it, fresh] = state_->requests.try_emplace(request);
  if (!fresh) return bad(formatted("PagePool::add request {}: already added, expected a new one", request));
  it->second.tokens.assign(tokens.begin(), tokens.end());
  it->second.arrival = state_->arrivals++;
  return state_->attach_prefix(request, it->second);
}

Status PagePool::reserve(std::int64_t request, std::int64_t num_tokens) {
  auto found = state_->find(request, "reserve");
  if (!found.ok()) return found.status();
  Request& r = *found.value();
  if (r.preempted) return bad(formatted("PagePool::reserve request {}: preempted, expected resume() first", request));
  if (num_tokens < 0) return bad(formatted("PagePool::reserve num_tokens: {} negative", num_tokens));
  const std::int64_t page_size = state_->options.page_size;
  const std::int64_t needed = num_tokens / page_size + (num_tokens % page_size != 0 ? 1 : 0);
  const std::int64_t missing = needed - static_cast<std::int64_t>(r.pages.size());
  if (missing > state_->free.size()) {
    return {Code::out_of_pages, formatted("PagePool::reserve request {}: {} more pages needed for {} tokens, {} of {} free",
                                          request, missing, num_tokens, state_->free.size(), state_->options.num_pages)};
  }
  for (std::int64_t i = 0; i < missing; ++i) r.pages.push_back(state_->take());
  return {};
}

Status PagePool::push_token(std::int64_t request, std::int32_t token) {
  auto found = state_->find(request, "push_token");
  if (!found.ok()) return found.status();
  found.value()->tokens.push_back(token);
  return {};
}

Status PagePool::commit(std::int64_t request, std::int64_t num_tokens) {
  auto found = state_->find(request, "commit");
  if (!found.ok()) return found.status();
  Request& r = *found.value();
  const std::int64_t page_size = state_->options.page_size;
  const auto pages = static_cast<std::int64_t>(r.pages.size());
  const bool has_room = num_tokens / page_size + (num_tokens % page_size != 0 ? 1 : 0) <= pages;
  if (num_tokens < r.committed || num_tokens > static_cast<std::int64_t>(r.tokens.size()) || !has_room) {
    return bad(
        formatted("PagePool::commit request {}: {} tokens, expected at least the {} committed, at most the {} known, in {} pages",
                  request, num_tokens, r.committed, r.tokens.size(), pages));
  }
  for (std::int64_t i = r.committed / page_size; i < num_tokens / page_size; ++i) state_->publish(r, i);
  r.committed = num_tokens;
  return {};
}

Status PagePool::release(std::int64_t request) {
  auto found = state_->find(request, "release");
  if (!found.ok()) return found.status();
  state_->drop_all(*found.value());
  state_->requests.erase(request);
  return {};
}

Status PagePool::preempt(std::int64_t request) {
  auto found = state_->find(request, "preempt");
  if (!found.ok()) return found.status();
  if (found.value()->preempted) return bad(formatted("PagePool::preempt request {}: already preempted", request));
  state_->drop_all(*found.value());
  found.value()->preempted = true;
  ++state_->stats.preemptions;
  return {};
}

Result<std::int64_t> PagePool::resume(std::int64_t request) {
  auto found = state_->find(request, "resume");
  if (!found.ok()) return found.status();
  if (!found.value()->preempted) return bad(formatted("PagePool::resume request {}: not preempted", request));
  found.value()->preempted = false;
  return state_->attach_prefix(request, *found.value());
}

std::optional<std::int64_t> PagePool::victim() const {
  std::optional<std::int64_t> last;
  std::int64_t arrival = -1;
  for (const auto& [id, r] : state_->requests) {
    if (!r.pages.empty() && r.arrival > arrival) {
      last = id;
      arrival = r.arrival;
    }
  }
  return last;
}

Result<std::span<const std::int32_t>> PagePool::block_table(std::int64_t request) const {
  const auto found = std::as_const(*state_).find(request, "block_table");
  if (!found.ok()) return found.status();
  return std::span<const std::int32_t>(found.value()->pages);
}

Result<std::int64_t> PagePool::slot(std::int64_t request, std::int64_t position) const {
  const auto found = std::as_const(*state_).find(request, "slot");
  if (!found.ok()) return found.status();
  const std::vector<std::int32_t>& pages = found.value()->pages;
  const std::int64_t page_size = state_->options.page_size;
  if (position < 0 || position / page_size >= static_cast<std::int64_t>(pages.size()))
    return bad(formatted(
        "PagePool::slot request {}: position {} has no page, expected one in [0, {}) ({} pages of {}; reserve() adds pages)",
        request, position, static_cast<std::int64_t>(pages.size()) * page_size, pages.size(), page_size));
  return std::int64_t{pages[static_cast<std::size_t>(position / page_size)]} * page_size + position % page_size;
}

PagePool::Stats PagePool::stats() const { return state_->stats; }

Result<KVCache> PagePool::cache(std::int64_t layer) const {
  const PagePoolOptions& o = state_->options;
  if (layer < 0 || layer >= o.cache.num_layers)
    return bad(o.cache.num_layers == 0
                   ? "PagePool::cache: the pool has no cache memory; create it with num_layers, num_kv_heads and head_dim"
                   : formatted("PagePool::cache layer: {} outside [0, {})", layer, o.cache.num_layers));
  const std::int64_t half = o.page_size * o.cache.head_dim;  // elements of K of one head in one page; V follows
  std::byte* first = state_->memory.data.get() + layer * *layer_bytes(o);
  KVCache cache;
  cache.layout = CacheLayout::hnd;
  cache.k = Tensor::contiguous(first, o.cache.dtype, o.num_pages, o.cache.num_kv_heads, o.page_size, o.cache.head_dim);
  cache.k.stride[1] = 2 * half;
  cache.k.stride[0] = o.cache.num_kv_heads * 2 * half;
  cache.v = cache.k;
  cache.v.data = first + half * itemsize(o.cache.dtype);
  return cache;
}

std::shared_ptr<const void> PagePool::cache_owner() const { return state_->memory.data; }

PagePool::CacheMemory PagePool::cache_memory() const {
  const std::int64_t bytes = state_->cache_bytes();
  if (bytes == 0) return {};
  return {bytes, quire::pool::kHugePageBytes, state_->memory.huge_pages_asked,
          quire::pool::huge_page_bytes(state_->memory.data.get(), bytes)};
}

}  // namespace quire
