// SPDX-License-Identifier: Apache-2.0
// Poisoning: overwrites all memory that no correct kernel reads, so that a kernel which reads it gives a wrong output.
//
// The equations of batch.hpp define the readable memory: positions of a request that some row sees, in the cache below
// cached_len and in key/value from cached_len on. All other memory is poisoned.
#include <algorithm>
#include <vector>

#include "batch/caught.h"
#include "capture/fill.h"
#include "capture/read_pages.h"
#include "capture/spoiler.h"
#include "quire/contract.hpp"
#include "quire/tools/capture.hpp"
#include "semantics/block_scale.h"
#include "semantics/ceil_div.h"
#include "semantics/latent_row.h"
#include "semantics/layout.h"
#include "semantics/page_walk.h"

namespace quire {
namespace {

using capture::Spoiler;

/// A row of fp8_ds_mla becomes NaN, zeros, or garbage: the largest codes, and scales and RoPE dims of 1e4.
void spoil_latent_row(std::uint8_t* row, PoisonKind kind) {
  namespace latent = semantics::latent_row;
  std::fill_n(row, latent::kBytes, kind == PoisonKind::nan ? std::uint8_t{0xFF} : std::uint8_t{0});
  if (kind != PoisonKind::finite_garbage) return;
  const auto garbage = [](std::int64_t d) { return (capture::mix64(static_cast<std::uint64_t>(d)) & 1) != 0 ? -1e4f : 1e4f; };
  for (std::int64_t block = 0; block < latent::kNumBlocks; ++block) latent::store_scale(row, block, 1e4f);
  for (std::int64_t d = 0; d < latent::kLatentDims; ++d) latent::store_latent(row, d, garbage(d), 1.0f);
  for (std::int64_t d = 0; d < latent::kRopeDims; ++d) latent::store_rope(row, d, garbage(d));
}

class Poisoner {
 public:
  Poisoner(Case& c, PoisonKind kind) : c_(c), kind_(kind), p_(problem_of(c.batch, c.cache, c.options)) {}

  void run() {
    mark_readable();
    poison_cache(c_.cache.k, semantics::k_strides(c_.cache), p_.head_dim);
    poison_cache(c_.cache.v, semantics::v_strides(c_.cache), p_.out_dim());
    poison_scales(c_.cache.k_scale);
    poison_scales(c_.cache.v_scale);
    poison_block_scales(c_.cache.k_block_scale);
    poison_block_scales(c_.cache.v_block_scale);
    poison_rows(c_.batch.key);
    poison_rows(c_.batch.value);
    for (const Tensor* t : {&c_.batch.query, &c_.batch.key, &c_.batch.value}) poison_from(*t, num_request_rows(c_.batch));
    poison_table();
    // Output and lse hold NaN under kind zero, too, because a row that is never written must show.
    if (kind_ == PoisonKind::zero) kind_ = PoisonKind::nan;
    poison_all(c_.batch.output);
    poison_all(c_.batch.lse);
  }

 private:
  void mark_readable() {
    const std::int64_t slots = num_pages(c_.cache) * p_.page_size;
    readable_.assign(static_cast<std::size_t>(slots), false);
    for (std::size_t r = 0; r < p_.reqs.size(); ++r) {
      const auto mark = [&](std::int64_t begin, std::int64_t end) { mark_keys(r, begin, end); };
      capture::read_pages(p_, c_.batch, static_cast<std::int64_t>(r)).for_each_range(p_.reqs[r].cached_len, mark);
    }
  }

  void mark_keys(std::size_t r, std::int64_t begin, std::int64_t end) {
    semantics::for_each_page_run(semantics::index_row(c_.batch.block_table, static_cast<std::int64_t>(r)), p_.page_size, begin,
                                 end, [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t) {
                                   const auto first = readable_.begin() + page * p_.page_size + offset;
                                   std::fill(first, first + count, true);
                                 });
  }

  void poison_latent_rows(const Tensor& cache, const semantics::KvStrides& strides) const {
    for (std::int64_t slot = 0; slot < static_cast<std::int64_t>(readable_.size()); ++slot)
      if (!readable_[static_cast<std::size_t>(slot)])
        spoil_latent_row(static_cast<std::uint8_t*>(cache.data) + strides.row(slot / p_.page_size, 0, slot % p_.page_size),
                         kind_);
  }

  void poison_cache(const Tensor& cache, const semantics::KvStrides& strides, std::int64_t head_dim) const {
    if (cache.dtype == DType::fp8_ds_mla) return poison_latent_rows(cache, strides);
    const Spoiler spoil(cache, kind_);
    std::vector<std::int64_t> dims;  // places of dims, kept because each takes two divisions
    for (std::int64_t d = 0; d < head_dim; ++d) dims.push_back(strides.element(d));
    for (std::int64_t slot = 0; slot < static_cast<std::int64_t>(readable_.size()); ++slot) {
      if (readable_[static_cast<std::size_t>(slot)]) continue;
      for (std::int64_t h = 0; h < p_.num_kv_heads; ++h) {
        const std::int64_t row = strides.row(slot / p_.page_size, h, slot % p_.page_size);
        for (const std::int64_t dim : dims) spoil(row + dim);
      }
    }
  }

  void poison_scales(const Tensor& scale) const {
    if (scale.rank != 3) return;
    const Spoiler spoil(scale, kind_);
    for (std::int64_t slot = 0; slot < static_cast<std::int64_t>(readable_.size()); ++slot)
      for (std::int64_t h = 0; h < p_.num_kv_heads && !readable_[static_cast<std::size_t>(slot)]; ++h)
        spoil(slot / p_.page_size * scale.stride[0] + slot % p_.page_size * scale.stride[1] + h * scale.stride[2]);
  }

  void poison_block_scales(const Tensor& scales) const {
    if (!scales.present()) return;
    const Spoiler spoil(scales, kind_);
    for (std::int64_t slot = 0; slot < static_cast<std::int64_t>(readable_.size()); ++slot)
      for (std::int64_t h = 0; h < p_.num_kv_heads && !readable_[static_cast<std::size_t>(slot)]; ++h)
        for (std::int64_t b = 0; b < scales.shape[3]; ++b)
          spoil(slot / p_.page_size * scales.stride[0] + slot % p_.page_size * scales.stride[1] + h * scales.stride[2] +
                b * scales.stride[3]);
  }

  /// key / value rows of tokens that the cache holds.
  void poison_rows(const Tensor& rows) const {
    if (!rows.present()) return;
    std::int64_t row = 0;
    for (const Request& req : p_.reqs) {
      const std::int64_t cached =
          req.cached_len == req.seq_len() ? req.query_len : std::min(req.cached_len - req.context_len, req.query_len);
      for (std::int64_t i = 0; i < cached; ++i) poison_row(rows, row + i);
      row += req.query_len;
    }
  }

  void poison_row(const Tensor& t, std::int64_t row) const {
    const Spoiler spoil(t, kind_);
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t d = 0; d < (t.rank > 2 ? t.shape[2] : 1); ++d)
        spoil(row * t.stride[0] + h * t.stride[1] + (t.rank > 2 ? d * t.stride[2] : 0));
  }

  void poison_all(const Tensor& t) const { poison_from(t, 0); }

  void poison_from(const Tensor& t, std::int64_t first) const {
    for (std::int64_t row = first; t.present() && row < t.shape[0]; ++row) poison_row(t, row);
  }

  /// A page in front of the end stays a page: many kernels look up what their masks hide, and are right where engines leave pages
  /// there. The hazard of stale pages asks for no less.
  void poison_table() const {
    const Tensor& table = c_.batch.block_table;
    const std::int64_t unread = unread_page(), behind = kind_ == PoisonKind::nan ? capture::kImpossiblePage : unread;
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(p_.reqs.size()); ++r) {
      const semantics::VisiblePages read = capture::read_pages(p_, c_.batch, r);
      const std::int64_t end = semantics::ceil_div(p_.reqs[static_cast<std::size_t>(r)].cached_len, p_.page_size);
      for (std::int64_t j = 0; j < table.shape[1]; ++j) {
        const std::int64_t entry = r * table.stride[0] + j * table.stride[1];
        const std::int64_t page = semantics::load_index(table.data, table.dtype, entry);
        if (j >= end)
          semantics::store_index(table, entry, behind);
        else if (!read.has(j) && page >= 0 && page < num_pages(c_.cache))
          semantics::store_index(table, entry, unread);
      }
    }
  }

  /// Returns a page that no row reads, if there is one.
  std::int64_t unread_page() const {
    for (std::int64_t page = num_pages(c_.cache) - 1; page > 0; --page) {
      const auto first = readable_.begin() + page * p_.page_size;
      if (std::find(first, first + p_.page_size, true) == first + p_.page_size) return page;
    }
    return 0;
  }

  Case& c_;
  PoisonKind kind_;
  Problem p_;
  std::vector<bool> readable_;
};

}  // namespace

Status poison_case(Case& c, PoisonKind kind) {
  try {
    // Poisoning follows the tables, so these must hold first.
    if (Status s = check(c.batch, c.cache, c.options, Depth::tables).status(); !s.ok()) return s;
    Poisoner(c, kind).run();
    return {};
  } catch (...) {
    return batch::caught("poison_case");
  }
}

}  // namespace quire
