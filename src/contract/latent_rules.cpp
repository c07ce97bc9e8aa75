// SPDX-License-Identifier: Apache-2.0
// Rules Q-R01 to Q-R05: caches whose rows are fp8_ds_mla, 656 bytes a token.
#include <cmath>

#include "contract/context.h"
#include "semantics/latent_row.h"
#include "semantics/layout.h"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;
namespace row = semantics::latent_row;

bool is_of_rows(const Tensor& t) { return t.dtype == DType::fp8_ds_mla; }

struct Side {
  NamedTensor named;
  bool is_k;
};

/// The sides of the cache whose rows are fp8_ds_mla.
template <typename Visit>
void for_each_side(const Context& c, Visit&& visit) {
  const Side sides[] = {{{"cache.k", &c.cache.k}, true}, {{"cache.v", &c.cache.v}, false}};
  for (const Side& side : sides)
    if (well_formed(*side.named.tensor) && is_of_rows(*side.named.tensor)) visit(side);
}

void r01_rows(Context& c, const Side& side) {
  const Tensor& t = *side.named.tensor;
  if (c.cache.layout == CacheLayout::packed)
    return c.report.add(R01, "cache.layout", {}, "packed beside rows of fp8_ds_mla", "nhd or hnd");
  const std::int64_t heads = t.shape[c.cache.layout == CacheLayout::nhd ? 2 : 1];
  if (t.shape[3] != row::kBytes || heads != 1)
    return c.report.add(R01, side.named.name, {}, "shape " + shape_text(t),
                        c.cache.layout == CacheLayout::nhd ? formatted("[num_pages, page_size, 1, {}]", row::kBytes)
                                                           : formatted("[num_pages, 1, page_size, {}]", row::kBytes));
  if (t.stride[3] != 1)
    c.report.add(R01, side.named.name, {}, formatted("{} between bytes of a row", t.stride[3]),
                 "1: rows of fp8_ds_mla are bytes side by side");
}

void r02_aligned(Context& c, const Side& side) {
  const Tensor& t = *side.named.tensor;
  const auto rest = reinterpret_cast<std::uintptr_t>(t.data) % row::kAlignment;
  if (has_elements(t) && rest != 0)
    return c.report.add(R02, side.named.name, {}, formatted("address {} bytes past a multiple of {}", rest, row::kAlignment),
                        formatted("rows that begin at multiples of {} bytes", row::kAlignment));
  for (int i = 0; i < 3; ++i) {
    if (t.shape[i] <= 1 || t.stride[i] % row::kAlignment == 0) continue;
    return c.report.add(R02, side.named.name, {}, formatted("stride {} of axis {}", t.stride[i], i),
                        formatted("a multiple of {} bytes", row::kAlignment));
  }
}

void r03_no_other_scales(Context& c, std::string_view name, const Tensor& scale) {
  if (!scale.present()) return;
  c.report.add(R03, name, {}, "given beside rows of fp8_ds_mla", "absent: each row holds its four scales");
}

void r04_shape(Context& c, std::string_view name, const Tensor& t, std::int64_t dims) {
  if (!well_formed(t)) return;
  const std::int64_t rows = c.sizes.num_tokens;
  if (t.rank == 3 && (!known(rows) || t.shape[0] == rows) && t.shape[1] == 1 && t.shape[2] == dims) return;
  c.report.add(R04, name, {}, "shape " + shape_text(t),
               formatted("[num_tokens, 1, {}], {}", dims, dims == row::kRopeDims ? "the RoPE part" : "the latent part"));
}

/// Scales and elements of the row at `page` and `offset`.
void row_contents(Context& c, const Side& side, std::int64_t page, std::int64_t offset, std::int64_t position, std::int64_t r) {
  const semantics::KvStrides strides = side.is_k ? semantics::k_strides(c.cache) : semantics::v_strides(c.cache);
  const auto* bytes = static_cast<const std::uint8_t*>(side.named.tensor->data) + strides.row(page, 0, offset);
  const auto place = [&] { return formatted("position {} of request {} (page {}, offset {})", position, r, page, offset); };
  bool sound[row::kNumBlocks];
  for (std::int64_t block = 0; block < row::kNumBlocks; ++block) {
    const float scale = row::scale(bytes, block);
    sound[block] = std::isfinite(scale) && scale > 0.0f;
    if (!sound[block] && !c.report.counted(R05))
      c.report.add(R05, side.named.name, {page, offset}, formatted("scale {} of {} at {}", scale, block, place()),
                   "finite and > 0");
  }
  const RuleId rule = side.is_k ? C02 : C03;
  for (std::int64_t d = 0; d < (side.is_k ? row::kDims : row::kLatentDims); ++d) {
    if (d < row::kLatentDims && !sound[d / row::kBlockDims]) continue;
    const float value = row::load(bytes, d);
    if (!std::isfinite(value) && !c.report.counted(rule))
      c.report.add(rule, side.named.name, {page, offset}, formatted("{} in dim {} at {}", value, d, place()), "finite");
  }
}

}  // namespace

bool has_latent_rows(const Context& c) noexcept { return is_of_rows(c.cache.k) || is_of_rows(c.cache.v); }

void apply_latent_row_rules(Context& c) {
  if (!has_latent_rows(c) || c.report.broken(M06)) return;
  if (is_of_rows(c.cache.k) != is_of_rows(c.cache.v))
    return c.report.add(R01, "cache.v", {}, formatted("{} beside cache.k of {}", name(c.cache.v.dtype), name(c.cache.k.dtype)),
                        "fp8_ds_mla for K and V both");
  for_each_side(c, [&](const Side& side) {
    r01_rows(c, side);
    if (!c.report.broken(R01)) r02_aligned(c, side);
  });
  r03_no_other_scales(c, "k_scale", c.cache.k_scale);
  r03_no_other_scales(c, "v_scale", c.cache.v_scale);
}

void apply_latent_append_rules(Context& c) {
  if (c.report.broken({M06, R01})) return;
  r04_shape(c, "key", c.batch.key, row::kLatentDims);
  r04_shape(c, "value", c.batch.value, row::kRopeDims);
  if (!well_formed(c.cache.k) || !well_formed(c.cache.v) || same_view(c.cache.k, c.cache.v)) return;
  c.report.add(R04, "cache.v", {}, "another tensor than cache.k", "cache.k itself: both parts of a row are written");
}

void apply_latent_content_rules(Context& c) {
  if (!c.pages_sound || c.report.broken({M04, M05, M07, M21, R01, R02})) return;
  const bool one = same_view(c.cache.k, c.cache.v);
  for_each_side(c, [&](const Side& side) {
    if ((one && !side.is_k) || !readable(*side.named.tensor)) return;
    for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r)
      for_each_visible_run(c, r, [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
        for (std::int64_t i = 0; i < count; ++i) row_contents(c, side, page, offset + i, position + i, r);
      });
  });
}

}  // namespace quire::contract
