// SPDX-License-Identifier: Apache-2.0
// quire.PagePool: pages, prefix sharing and preemption for engines without a block manager of their own.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "arguments.hpp"
#include "errors.hpp"
#include "ledger.hpp"
#include "types.hpp"

namespace quire_python {
namespace {

using quire::Code;
using quire::PagePool;

template <typename T>
nb::object new_numpy(const char* dtype, std::size_t size, T** data) {
  nb::object array = nb::module_::import_("numpy").attr("empty")(size, dtype);
  *data = nb::cast<nb::ndarray<T, nb::ndim<1>>>(array).data();
  return array;
}

class PyPool {
 public:
  explicit PyPool(const Arguments& given)
      : ledgers_(ledger_list(given.get("ledgers"))),
        pool_(unwrap(PagePool::create({.num_pages = required(given, "num_pages"),
                                       .page_size = given.integer("page_size").value_or(16),
                                       .prefix_sharing = given.flag("prefix_sharing", true),
                                       .ledgers = pointers(ledgers_),
                                       .cache = cache_options(given)}))),
        page_size_(given.integer("page_size").value_or(16)) {}

  std::int64_t add(std::int64_t request, nb::handle tokens) {
    const std::vector<std::int32_t> list = token_list(tokens);
    return unwrap(pool_.add(request, list));
  }
  nb::object block_table(std::int64_t request) const {
    const auto pages = unwrap(pool_.block_table(request));
    std::int32_t* data = nullptr;
    nb::object array = new_numpy<std::int32_t>("int32", pages.size(), &data);
    if (!pages.empty()) std::memcpy(data, pages.data(), pages.size_bytes());
    return array;
  }
  nb::object slots(std::int64_t request, std::int64_t begin, std::int64_t end) const {
    if (begin < 0 || end < begin) throw_error(Code::invalid_argument, "slots: needs 0 <= begin <= end");
    unwrap(pool_.block_table(request));  // an empty range of an unknown request is a slip, too
    if (begin < end) unwrap(pool_.slot(request, end - 1));
    std::int64_t* data = nullptr;
    nb::object array = new_numpy<std::int64_t>("int64", static_cast<std::size_t>(end - begin), &data);
    for (std::int64_t position = begin; position < end; ++position)
      data[position - begin] = unwrap(pool_.slot(request, position));
    return array;
  }
  quire::KVCache cache(std::int64_t layer) const { return unwrap(pool_.cache(layer)); }
  PagePool& pool() { return pool_; }
  const PagePool& pool() const { return pool_; }
  std::int64_t page_size() const { return page_size_; }

 private:
  static std::int64_t required(const Arguments& given, const char* name) {
    given.required(name);
    return given.integer(name).value_or(0);
  }
  static quire::PoolCacheOptions cache_options(const Arguments& given) {
    return {.num_layers = given.integer("num_layers").value_or(0),
            .num_kv_heads = given.integer("num_kv_heads").value_or(0),
            .head_dim = given.integer("head_dim").value_or(0),
            .dtype = *quire::dtype_from_name(given.dtype("dtype").value_or("bf16"))};
  }
  static std::vector<std::int32_t> token_list(nb::handle tokens) {
    std::vector<std::int32_t> list;
    for (const std::int64_t token : index_list(tokens, "tokens")) {
      if (token < std::numeric_limits<std::int32_t>::min() || token > std::numeric_limits<std::int32_t>::max())
        throw_error(Code::invalid_argument,
                    "tokens[" + std::to_string(list.size()) + "]: " + std::to_string(token) + ", expected 32 bits");
      list.push_back(static_cast<std::int32_t>(token));
    }
    return list;
  }

  /// Ledgers given as None, one SlotLedger or several. The pool keeps pointers, so this object keeps the ledgers alive.
  static std::vector<nb::object> ledger_list(nb::handle ledgers) {
    std::vector<nb::object> list;
    if (ledgers.is_none()) return list;
    if (nb::isinstance<PyLedger>(ledgers)) return {nb::borrow(ledgers)};
    if (PySequence_Check(ledgers.ptr()) == 0)
      throw_error(Code::invalid_argument, "ledgers: " + shown(ledgers) + ", expected a quire.SlotLedger, or several");
    for (nb::handle ledger : nb::iter(ledgers)) {
      if (!nb::isinstance<PyLedger>(ledger))
        throw_error(Code::invalid_argument,
                    "ledgers[" + std::to_string(list.size()) + "]: " + shown(ledger) + ", expected a quire.SlotLedger");
      list.push_back(nb::borrow(ledger));
    }
    return list;
  }
  static std::vector<quire::SlotLedger*> pointers(const std::vector<nb::object>& ledgers) {
    std::vector<quire::SlotLedger*> list;
    for (const nb::object& ledger : ledgers) list.push_back(&nb::cast<PyLedger&>(ledger).ledger);
    return list;
  }

  std::vector<nb::object> ledgers_;
  PagePool pool_;
  std::int64_t page_size_;
};

constexpr const char* kPoolDoc = R"(A reference-counted pool of the pages of one cache, with prefix sharing.

Full pages are found again by the hash chain of their tokens and shared between requests; a page returns to the free list when
its last holder lets go, and stays findable until it is handed out again. `ledgers` (one SlotLedger or a
sequence, usually one per layer) are told about shared and recycled pages. Not thread-safe.

The pages may live in caches of yours, or in memory of the pool's: with num_layers (then also num_kv_heads, head_dim and dtype, a
Quire type name) cache(layer) is the KVCache of a layer, head-major, 2 MiB-aligned, zeroed, huge pages asked for.

Life of a request: add, then per step reserve -> (append, attend) -> commit -> push_token, then release.)";

void bind_stats(nb::module_& m) {
  using Stats = PagePool::Stats;
  nb::class_<Stats>(m, "PoolStats", "Counters of a PagePool: pages now, hits, preemptions and evictions so far.")
      .def_ro("num_pages", &Stats::num_pages)
      .def_ro("pages_in_use", &Stats::pages_in_use)
      .def_ro("pages_shared", &Stats::pages_shared)
      .def_ro("prefix_hit_tokens", &Stats::prefix_hit_tokens)
      .def_ro("preemptions", &Stats::preemptions)
      .def_ro("evictions", &Stats::evictions)
      .def("__repr__", [](const Stats& s) {
        return "<PoolStats pages_in_use=" + std::to_string(s.pages_in_use) + "/" + std::to_string(s.num_pages) +
               " shared=" + std::to_string(s.pages_shared) + " prefix_hit_tokens=" + std::to_string(s.prefix_hit_tokens) +
               " preemptions=" + std::to_string(s.preemptions) + " evictions=" + std::to_string(s.evictions) + ">";
      });
}

void bind_memory(nb::module_& m) {
  using CacheMemory = PagePool::CacheMemory;
  nb::class_<CacheMemory>(m, "PoolMemory", "The cache memory that a PagePool owns, and what the system made of it.")
      .def_ro("bytes", &CacheMemory::bytes, "Of all layers; 0 if the pool owns none.")
      .def_ro("alignment", &CacheMemory::alignment)
      .def_ro("huge_pages_asked", &CacheMemory::huge_pages_asked, "The system took the request; it may still not grant it.")
      .def_ro("huge_page_bytes", &CacheMemory::huge_page_bytes,
              "Backed by huge pages now (memory is backed when first touched); -1 if the system does not tell.")
      .def("__repr__", [](const CacheMemory& s) {
        return "<PoolMemory bytes=" + std::to_string(s.bytes) + " alignment=" + std::to_string(s.alignment) +
               " huge_pages_asked=" + (s.huge_pages_asked ? "True" : "False") +
               " huge_page_bytes=" + std::to_string(s.huge_page_bytes) + ">";
      });
}

}  // namespace

void bind_pool(nb::module_& m) {
  bind_stats(m);
  bind_memory(m);
  const auto request = nb::arg("request");
  nb::class_<PyPool> type(m, "PagePool", kPoolDoc);
  def_init(type, {"PagePool",
                  {"num_pages", "page_size", "prefix_sharing", "ledgers"},
                  {{"num_pages", "int"},
                   {"page_size", "int = 16"},
                   {"prefix_sharing", "bool = True"},
                   {"ledgers", "typing.Any | None = None"},
                   {"num_layers", "int = 0"},
                   {"num_kv_heads", "int = 0"},
                   {"head_dim", "int = 0"},
                   {"dtype", "typing.Any = 'bf16'"}}});
  type.def(
          "cache",
          [](nb::handle_t<PyPool> self, std::int64_t layer) {
            return new PyCache(nb::cast<const PyPool&>(self).cache(layer), self);  // Python takes it over
          },
          nb::arg("layer") = 0, nb::sig("def cache(self, layer: int = 0) -> KVCache"),
          "The cache of one layer in the pool's memory (see num_layers); its arrays keep the pool alive. The same memory on "
          "every "
          "call; scales are absent.")
      .def_prop_ro("memory", [](const PyPool& p) { return p.pool().cache_memory(); })
      .def("add", &PyPool::add, request, nb::arg("tokens"),
           "Registers a request with its known tokens and attaches the cached pages of its longest shared prefix; returns the "
           "number of leading tokens found, always fewer than len(tokens).")
      .def(
          "reserve", [](PyPool& p, std::int64_t r, std::int64_t n) { require_ok(p.pool().reserve(r, n)); }, request,
          nb::arg("num_tokens"), "Makes room for tokens [0, num_tokens). OutOfPagesError changes nothing.")
      .def(
          "push_token", [](PyPool& p, std::int64_t r, std::int32_t t) { require_ok(p.pool().push_token(r, t)); }, request,
          nb::arg("token"), "One generated token joins the request's list.")
      .def(
          "commit", [](PyPool& p, std::int64_t r, std::int64_t n) { require_ok(p.pool().commit(r, n)); }, request,
          nb::arg("num_tokens"), "The first num_tokens tokens are now in the cache: full pages become shareable.")
      .def(
          "release", [](PyPool& p, std::int64_t r) { require_ok(p.pool().release(r)); }, request)
      .def(
          "preempt", [](PyPool& p, std::int64_t r) { require_ok(p.pool().preempt(r)); }, request,
          "Takes all pages from a request that will be recomputed; its tokens stay known. See resume().")
      .def(
          "resume", [](PyPool& p, std::int64_t r) { return unwrap(p.pool().resume(r)); }, request,
          "Re-attaches what is still cached after preempt(); returns the number of leading tokens found.")
      .def(
          "victim", [](const PyPool& p) { return p.pool().victim(); },
          "The request to preempt when out of pages: the one added last that holds pages; None if there is none.")
      .def("block_table", &PyPool::block_table, request, nb::sig("def block_table(self, request: int) -> numpy.ndarray"),
           "The request's page ids, an int32 copy.")
      .def(
          "slot", [](const PyPool& p, std::int64_t r, std::int64_t i) { return unwrap(p.pool().slot(r, i)); }, request,
          nb::arg("position"), "Slot of one token position. Raises ArgumentError for a position without a page: see reserve().")
      .def(
          "slots", &PyPool::slots, request, nb::arg("begin"), nb::arg("end"),
          nb::sig("def slots(self, request: int, begin: int, end: int) -> numpy.ndarray"),
          "Slots of positions [begin, end), an int64 array ready for slot_mapping. Raises ArgumentError for a position without a "
          "page: see reserve().")
      .def_prop_ro("page_size", &PyPool::page_size)
      .def("__repr__",
           [](const PyPool& p) {
             const PagePool::Stats s = p.pool().stats();
             return "<PagePool " + std::to_string(s.pages_in_use) + " of " + std::to_string(s.num_pages) + " pages of " +
                    std::to_string(p.page_size()) + " tokens in use, " + std::to_string(s.pages_shared) + " shared>";
           })
      .def_prop_ro("stats", [](const PyPool& p) { return p.pool().stats(); });
}

}  // namespace quire_python
