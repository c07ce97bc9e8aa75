// SPDX-License-Identifier: Apache-2.0
// Faults in the place of an element in a page: order of dimensions, strides, x of the packed layout, K and V mixed up.
#include <algorithm>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

/// Element offsets of a cache that is read with other strides.
using Elements = std::function<void(Side, const Place&, std::int64_t head, std::span<std::int64_t>)>;
Plant elements(Elements wrong) {
  return [wrong = std::move(wrong)](Model& m) { m.elements = wrong; };
}
/// Dims of the rows of K and of V.
struct Dims {
  std::int64_t key, value;
};
Elements as(CacheLayout layout, std::int64_t heads, std::int64_t page_size, Dims dims, std::int64_t x) {
  const auto k = contiguous_strides(layout, Side::key, heads, page_size, dims.key, x);
  const auto v = contiguous_strides(layout, Side::value, heads, page_size, dims.value, x);
  return [layout, k, v, x](Side side, const Place& place, std::int64_t head, std::span<std::int64_t> at) {
    elements_as(layout, side, side == Side::key ? k : v, x, place, head, at);
  };
}

Dims dims_of(const Facts& f) { return {f.head_dim, f.v_head_dim}; }
std::int64_t x_of(const Facts& f) { return packed_x(f.cache.k.dtype); }

/// Does the first token of the pages in use lie elsewhere? Compares the addresses of a few (offset, head) pairs of page 1.
bool differs(const Facts& f, const Elements& wrong) {
  const Model truth(f);
  for (const Side side : kSides) {
    std::vector<std::int64_t> right(Facts::at(f.dims_of(side))), other(right.size());
    for (const std::int64_t offset : {std::int64_t{0}, f.page_size - 1})
      for (const std::int64_t head : {std::int64_t{0}, f.num_kv_heads - 1}) {
        Place place;
        place.page = 1;
        place.offset = offset;
        truth.elements(side, place, head, right);
        wrong(side, place, head, other);
        if (right != other) return true;
      }
  }
  return false;
}

Suspects another_layout(const Clues& e) {
  const Facts& f = e.facts;
  if (!any_cached(f)) return cannot_show(kNotCached);
  Suspects s;
  for (const CacheLayout layout : {CacheLayout::hnd, CacheLayout::nhd, CacheLayout::packed}) {
    if (layout == f.cache.layout || (layout == CacheLayout::packed && f.head_dim % x_of(f) != 0)) continue;
    const Elements wrong = as(layout, f.num_kv_heads, f.page_size, dims_of(f), x_of(f));
    if (!differs(f, wrong)) continue;
    s.list.push_back({formatted("{} read as {}", name(f.cache.layout), name(layout)), elements(wrong)});
  }
  return std::move(s).or_why_not("one KV head or one token per page: all layouts are the same");
}

Suspects wrong_x(const Clues& e) {
  const Facts& f = e.facts;
  if (f.cache.layout != CacheLayout::packed) return cannot_show("the layout is not packed: there is no x");
  if (!any_cached(f)) return cannot_show(kNotCached);
  if (!scores_matter(f)) return cannot_show(kOneKey);
  Suspects s;
  for (const std::int64_t x : {8, 16, 4, 32, 2, 1}) {
    if (x == f.cache.k.shape[4] || f.head_dim % x != 0) continue;
    const Elements wrong = as(CacheLayout::packed, f.num_kv_heads, f.page_size, dims_of(f), x);
    if (differs(f, wrong)) s.list.push_back({formatted("x = {} instead of {}", x, f.cache.k.shape[4]), elements(wrong)});
  }
  return std::move(s).or_why_not("no other x fits, or one token per page: x does not matter");
}

Suspects packed_v(const Clues& e) {
  const Facts& f = e.facts;
  if (f.cache.layout != CacheLayout::packed) return cannot_show("the layout is not packed");
  if (!any_cached(f)) return cannot_show(kNotCached);
  if (f.page_size == 1 || f.v_head_dim == 1) return cannot_show("one token per page or one dim: both orders are the same");
  const Elements rows = as(CacheLayout::hnd, f.num_kv_heads, f.page_size, dims_of(f), 1);
  return one(function_changed(
      &Model::elements, [rows](const auto& before, Side side, const Place& place, std::int64_t head, std::span<std::int64_t> at) {
        side == Side::value ? rows(side, place, head, at) : before(side, place, head, at);
      }));
}

Suspects swapped(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_cached(*f)) return cannot_show(kNotCached);
  if (!f->has_equal_dims()) return cannot_show("K and V have head_dims of their own: no kernel takes one for the other");
  return one(function_changed(&Model::decode,
                              [f](const auto& before, Side side, const void*, std::span<const std::int64_t> at, double* values) {
                                const bool key = side == Side::key;
                                before(key ? Side::value : Side::key, key ? f->cache.v.data : f->cache.k.data, at, values);
                              }));
}

/// Dims of one side in another order: the offset of dim i becomes that of dim `from(i)`.
Suspects permuted(const Clues& e, Side wrong) {
  const std::int64_t n = e.facts.dims_of(wrong);
  if (n == 1) return cannot_show("head_dim is 1");
  if (!any_cached(e.facts)) return cannot_show(kNotCached);
  if (wrong == Side::key && !scores_matter(e.facts)) return cannot_show(kOneKey);
  Suspects s;
  const auto add = [&](const char* detail, auto from) {
    s.list.push_back(
        {detail, function_changed(&Model::elements, [wrong, from, n](const auto& before, Side side, const Place& place,
                                                                     std::int64_t head, std::span<std::int64_t> at) {
           if (side != wrong) return before(side, place, head, at);
           // Another fault may ask for leading dims only; they may come from any.
           std::vector<std::int64_t> right(Facts::at(n));
           before(side, place, head, right);
           for (std::size_t i = 0; i < at.size(); ++i) at[i] = right[Facts::at(from(static_cast<std::int64_t>(i)))];
         })});
  };
  const std::int64_t half = (n + 1) / 2;
  add("halves interleaved", [half, n](std::int64_t i) { return std::min(i % 2 * half + i / 2, n - 1); });
  add("pairs taken apart into halves", [half](std::int64_t i) { return i < half ? 2 * i : 2 * (i - half) + 1; });
  add("halves swapped", [n](std::int64_t i) { return (i + n / 2) % n; });
  add("in reverse order", [n](std::int64_t i) { return n - 1 - i; });
  add("neighbours swapped", [n](std::int64_t i) { return (i ^ 1) < n ? i ^ 1 : i; });
  return s;
}

Suspects query_heads(const Clues& e) {
  const Facts& f = e.facts;
  if (f.group == 1) return cannot_show("as many KV heads as query heads: the strides are the same");
  const Elements wrong = as(f.cache.layout, f.num_q_heads, f.page_size, dims_of(f), x_of(f));
  if (!any_cached(f)) return cannot_show(kNotCached);
  return one(elements(wrong));
}

Suspects padded_dims(const Clues& e) {
  const Facts& f = e.facts;
  const Dims padded{ceil_power_of_two(f.head_dim), ceil_power_of_two(f.v_head_dim)};
  if (padded.key == f.head_dim && padded.value == f.v_head_dim)
    return cannot_show(formatted("head_dim {} is a power of two: nothing is padded", f.head_dim));
  if (!any_cached(f)) return cannot_show(kNotCached);
  const bool key = padded.key != f.head_dim;
  return one(elements(as(f.cache.layout, f.num_kv_heads, f.page_size, padded, x_of(f))),
             formatted("rows of {} instead of {}", key ? padded.key : padded.value, key ? f.head_dim : f.v_head_dim));
}

/// K and V of a page side by side in one allocation, [num_pages, 2, ...]: every page is two pages further.
Suspects interleaved(const Clues& e) {
  const Facts& f = e.facts;
  const auto sees_other = [&](std::int64_t r) {
    const Range range = cached_range(f, r);
    for (std::int64_t k = range.first; k <= range.last; k += f.page_size)
      if (f.page(r, k / f.page_size) != 0) return true;
    return false;
  };
  if (!any_request(f, sees_other)) return cannot_show(any_cached(f) ? "page 0 is the only one in use" : kNotCached);
  return one(function_changed(
      &Model::elements, [](const auto& before, Side side, const Place& place, std::int64_t head, std::span<std::int64_t> at) {
        Place doubled = place;
        doubled.page *= 2;
        before(side, doubled, head, at);
      }));
}

}  // namespace

void add_layout(std::vector<Fault>& list) {
  const Family add{list, "layout"};
  const char* const kLayout = "name the layout (nhd, hnd, packed) where the cache is allocated, and compare it with the kernel's";
  const char* const kStrides = "take the strides from the tensor, not from the sizes of another one";
  add("cache_layout_confused", "reads the cache in another layout", "vllm#41472, vllm#39192", kLayout, another_layout);
  add("packed_wrong_x", "reads a packed K cache with another x", "", "x = 16 / itemsize of the cache's type, not of the query's",
      wrong_x);
  add("packed_v_as_rows", "reads a packed V cache as [page_size, head_dim]", "",
      "packed V is [num_pages, num_kv_heads, v_head_dim, page_size]", packed_v);
  add("k_and_v_swapped", "swaps the K and V caches", "", "compare the order of arguments at the call with the declaration",
      swapped);
  add("k_dims_permuted", "reads the dims of K in another order", "",
      "the inner order of a cache belongs to the kernel that filled it", [](const Clues& e) { return permuted(e, Side::key); });
  add("v_dims_permuted", "reads the dims of V in another order", "",
      "the inner order of a cache belongs to the kernel that filled it", [](const Clues& e) { return permuted(e, Side::value); });
  add("cache_strides_from_query_heads", "takes the cache's strides from the number of query heads", "", kStrides, query_heads);
  add("cache_strides_from_padded_head_dim", "takes the cache's strides from a padded head_dim", "", kStrides, padded_dims);
  add("cache_taken_for_interleaved", "takes K and V for interleaved in one allocation", "vllm#37228, vllm#42420", kStrides,
      interleaved);
}

}  // namespace quire::faults_detail
