// SPDX-License-Identifier: Apache-2.0
// A's rows in B's types: append() writes them into a cache of A's slots, so that no rounding stands twice.
#include <algorithm>

#include "caches/view.h"
#include "quire/attention.hpp"

namespace quire::caches {
namespace {

using Owner = std::vector<std::vector<std::byte>>;

Tensor make(Owner& owner, DType dtype, std::array<std::int64_t, Tensor::kMaxRank> shape, int rank) {
  const Tensor t = Tensor::from_shape(nullptr, dtype, shape, rank);
  owner.emplace_back(static_cast<std::size_t>(t.num_elements() * itemsize(dtype)));
  return Tensor::from_shape(owner.back().data(), dtype, shape, rank);
}

/// Makes an empty K or V with the types and scales of B's, and the sizes of A's.
void make_side(const View& a, const View& b, bool is_k, Owner& owner, KVCache& cache) {
  const KVCache& like = b.cache();
  const DType dtype = is_k ? like.k.dtype : like.v.dtype;
  const std::int64_t dims = is_k ? head_dim(a.cache()) : v_head_dim(a.cache()), pages = num_pages(a.cache());
  (is_k ? cache.k : cache.v) = make(owner, dtype, {pages, a.page_size(), a.heads(), is_four_bit(dtype) ? dims / 2 : dims}, 4);
  if (is_four_bit(dtype))
    (is_k ? cache.k_block_scale : cache.v_block_scale) =
        make(owner, block_scale_type(dtype), {pages, a.page_size(), a.heads(), dims / block_size(dtype)}, 4);
  const Tensor& scale = is_k ? like.k_scale : like.v_scale;
  if (!scale.present()) return;
  Tensor& made = is_k ? cache.k_scale : cache.v_scale;
  made =
      scale.rank == 3 ? make(owner, DType::f32, {pages, a.page_size(), a.heads()}, 3) : make(owner, DType::f32, {a.heads()}, 1);
  if (scale.rank == 3) return;
  for (std::int64_t head = 0; head < a.heads(); ++head)  // a head that B lacks has no scale; that of B's first stands in
    static_cast<float*>(made.data)[head] = b.scale(is_k, b.head_of(a.model_head(head)).value_or(0));
}

/// Appends the rows of one page of A, of which `count` tokens at most are in use, to `cache`.
Status append_page(const View& a, std::int64_t page, std::int64_t count, const KVCache& cache) {
  Owner owner;
  const Tensor rows[] = {make(owner, DType::f32, {count, a.heads(), head_dim(a.cache())}, 3),
                         make(owner, DType::f32, {count, a.heads(), v_head_dim(a.cache())}, 3)};
  const Tensor slots = make(owner, DType::i64, {count}, 1);
  for (const bool is_k : {true, false}) {
    auto* to = static_cast<float*>(rows[is_k ? 0 : 1].data);
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t head = 0; head < a.heads(); ++head)
        for (const double value : a.values({is_k, page * a.page_size() + i, head})) *to++ = static_cast<float>(value);
  }
  for (std::int64_t i = 0; i < count; ++i) static_cast<std::int64_t*>(slots.data)[i] = page * a.page_size() + i;
  return append(cache, rows[0], rows[1], slots);
}

}  // namespace

Result<KVCache> rounded(const View& a, const View& b, Owner& owner) {
  KVCache cache;
  for (const bool is_k : {true, false}) make_side(a, b, is_k, owner, cache);
  for (std::int64_t r = 0; r < a.requests(); ++r)
    for (std::int64_t first = 0; first < a.length(r); first += a.page_size()) {
      const std::optional<std::int64_t> page = a.page(r, first / a.page_size());
      if (!page) continue;
      if (Status s = append_page(a, *page, std::min(a.page_size(), a.length(r) - first), cache); !s.ok()) return s;
    }
  return cache;
}

}  // namespace quire::caches
