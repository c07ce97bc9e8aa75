// SPDX-License-Identifier: Apache-2.0
// Rules Q-C01 to Q-C05, Q-C07 and Q-C08: every element that attention reads is finite, and so are scales of tokens and blocks.
// O(bytes): rows are
// scanned by bit pattern first.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "contract/context.h"
#include "semantics/block_scale.h"
#include "semantics/dtype.h"
#include "semantics/layout.h"
#include "semantics/token_scale.h"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;

// --- finding non-finite codes fast --------------------------------------------------------------------------------------

constexpr std::int64_t kBlock = 32;  ///< a constant trip count lets -O2 vectorise the scan

/// Whether test(code) holds for some of `count` codes; no early exit within a row.
template <typename Word, typename Test>
bool any_code(const Tensor& t, std::int64_t begin, std::int64_t stride, std::int64_t count, Test test) {
  const Word* words = static_cast<const Word*>(t.data) + begin;
  Word found = 0;
  std::int64_t i = 0;
  if (stride == 1) {
    for (; i + kBlock <= count; i += kBlock)
      for (std::int64_t j = 0; j < kBlock; ++j) found |= static_cast<Word>(test(words[i + j]));
  }
  for (; i < count; ++i) found |= static_cast<Word>(test(words[i * stride]));
  return found != 0;
}

bool any_non_finite_code(const Tensor& t, std::int64_t begin, std::int64_t stride, std::int64_t count) {
  using u8 = std::uint8_t;
  using u16 = std::uint16_t;
  using u32 = std::uint32_t;
  switch (t.dtype) {
    case DType::f32: return any_code<u32>(t, begin, stride, count, [](u32 w) { return (w & 0x7FFFFFFFu) >= 0x7F800000u; });
    case DType::f16: return any_code<u16>(t, begin, stride, count, [](u16 w) { return (w & 0x7FFF) >= 0x7C00; });
    case DType::bf16: return any_code<u16>(t, begin, stride, count, [](u16 w) { return (w & 0x7FFF) >= 0x7F80; });
    case DType::fp8_e4m3fn: return any_code<u8>(t, begin, stride, count, [](u8 w) { return (w & 0x7F) == 0x7F; });
    case DType::fp8_e5m2: return any_code<u8>(t, begin, stride, count, [](u8 w) { return (w & 0x7F) >= 0x7C; });
    case DType::fp8_e4m3fnuz:
    case DType::fp8_e5m2fnuz: return any_code<u8>(t, begin, stride, count, [](u8 w) { return w == 0x80; });
    case DType::i8: return false;
    default: return true;
  }
}

/// Calls visit(d, value) for each element of one row whose value * scale is not finite.
template <typename Visit>
void for_each_non_finite(const Tensor& t, std::int64_t base, const semantics::KvStrides& strides, std::int64_t head_dim,
                         float scale, Visit&& visit) {
  const bool scale_can_overflow = !std::isfinite(semantics::largest_finite(t.dtype) * scale);
  for (std::int64_t d = 0; d < head_dim; d += strides.x) {
    const std::int64_t count = std::min(strides.x, head_dim - d);
    const std::int64_t begin = base + strides.element(d);
    if (!scale_can_overflow && !any_non_finite_code(t, begin, strides.dim, count)) continue;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = semantics::load(t.data, t.dtype, begin + i * strides.dim) * scale;
      if (!std::isfinite(value)) visit(d + i, value);
    }
  }
}

// --- rows of query, key and value ---------------------------------------------------------------------------------------

bool rows_readable(const Context& c, const Tensor& t, std::int64_t heads, std::int64_t head_dim) {
  return readable(t) && is_floating(t.dtype) && t.rank == 3 && t.shape[0] == c.sizes.num_tokens && known(heads) &&
         t.shape[1] == heads && known(head_dim) && t.shape[2] == head_dim;
}

/// Rows [first, last) of request r; row i of the request is at position q_begin + i.
void check_rows(Context& c, RuleId rule, const NamedTensor& t, std::int64_t r, const Lengths& lengths, std::int64_t first,
                std::int64_t last) {
  const Tensor& tensor = *t.tensor;
  const semantics::KvStrides strides{0, tensor.stride[1], tensor.stride[0], 0, tensor.stride[2], tensor.shape[2]};
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t row = lengths.first_row + i;
    for (std::int64_t head = 0; head < tensor.shape[1]; ++head) {
      for_each_non_finite(tensor, strides.row(0, head, row), strides, tensor.shape[2], 1.0f, [&](std::int64_t d, float value) {
        if (c.report.counted(rule)) return;
        const std::string where = lengths.sound ? formatted(" position {}", lengths.q_begin + i) : formatted(" row {}", i);
        c.report.add(rule, t.name, {row, head, d}, formatted("{} in request {}{}", value, r, where), "finite");
      });
    }
  }
}

void c01_query(Context& c) {
  if (!c.starts_sound || !rows_readable(c, c.batch.query, c.sizes.num_q_heads, c.sizes.head_dim)) return;
  const semantics::IndexView starts = semantics::index_view(c.batch.query_start_loc);
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    Lengths lengths;
    if (c.lengths_sound) lengths = lengths_of(c, r);
    lengths.first_row = starts[r];
    check_rows(c, C01, {"query", &c.batch.query}, r, lengths, 0, starts[r + 1] - starts[r]);
  }
}

void new_rows(Context& c, RuleId rule, const NamedTensor& t, std::int64_t head_dim) {
  if (!c.lengths_sound || !rows_readable(c, *t.tensor, c.sizes.num_kv_heads, head_dim)) return;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const Lengths lengths = lengths_of(c, r);
    if (lengths.sound && lengths.cached_len < lengths.seq_len)
      check_rows(c, rule, t, r, lengths, lengths.cached_len - lengths.context_len(), lengths.query_len);
  }
}

void c04_key(Context& c) { new_rows(c, C04, {"key", &c.batch.key}, c.sizes.head_dim); }
void c05_value(Context& c) { new_rows(c, C05, {"value", &c.batch.value}, c.sizes.v_head_dim); }

// --- the cache ----------------------------------------------------------------------------------------------------------

/// The index of an element in the tensor as the user shaped it.
std::string element_index(const KVCache& cache, bool is_k, std::int64_t page, std::int64_t offset, std::int64_t head,
                          std::int64_t d) {
  if (cache.layout == CacheLayout::nhd) return formatted("[{}][{}][{}][{}]", page, offset, head, d);
  if (cache.layout == CacheLayout::hnd) return formatted("[{}][{}][{}][{}]", page, head, offset, d);
  const std::int64_t x = cache.k.shape[4];
  return is_k ? formatted("[{}][{}][{}][{}][{}]", page, head, d / x, offset, d % x)
              : formatted("[{}][{}][{}][{}]", page, head, d, offset);
}

float scale_of(const Tensor& scale, std::int64_t page, std::int64_t offset, std::int64_t head) {
  if (!scale.present()) return 1.0f;
  if (const semantics::TokenScales scales = semantics::token_scales(scale); scales.present())
    return scales.at(page, offset, head);
  const auto* values = static_cast<const float*>(scale.data);
  return values[scale.rank == 1 && scale.shape[0] > 1 ? head * scale.stride[0] : 0];
}

/// The scale of one token and KV head; false if it breaks the rule, and nothing more can be said of the row.
bool c07_scale(Context& c, bool is_k, float scale, std::array<std::int64_t, 3> at, std::int64_t position, std::int64_t r) {
  if (std::isfinite(scale) && scale > 0.0f) return true;
  if (!c.report.counted(C07))
    c.report.add(
        C07, is_k ? "k_scale" : "v_scale", {at[0], at[1], at[2]},
        formatted("{} at position {} of request {} (page {}, offset {}, head {})", scale, position, r, at[0], at[1], at[2]),
        "finite and > 0");
  return false;
}

/// The block scales of one token and KV head. Calls visit(d, value) for elements whose real value is not finite.
template <typename Visit>
void c08_block_scales(Context& c, bool is_k, float factor, std::array<std::int64_t, 3> at, std::int64_t base,
                      std::int64_t position, std::int64_t r, Visit&& visit) {
  const Tensor& codes = is_k ? c.cache.k : c.cache.v;
  const semantics::BlockScales scales = is_k ? semantics::k_block_scales(c.cache) : semantics::v_block_scales(c.cache);
  const std::int64_t dims = is_k ? c.sizes.cache_head_dim : c.sizes.v_head_dim, block = block_size(codes.dtype);
  for (std::int64_t b = 0; b < dims / block; ++b) {
    const float scale = scales.at(at[0], at[1], at[2], b);
    if (std::isnan(scale) || std::signbit(scale)) {
      if (!c.report.counted(C08))
        c.report.add(C08, is_k ? "k_block_scale" : "v_block_scale", {at[0], at[1], at[2], b},
                     formatted("{} at position {} of request {} (page {}, offset {}, head {}, block {})", scale, position, r,
                               at[0], at[1], at[2], b),
                     "a number that is not negative");
      continue;
    }
    if (std::isfinite(6.0f * scale * factor)) continue;
    for (std::int64_t d = b * block; d < (b + 1) * block; ++d)
      if (const float value = semantics::e2m1_decode(semantics::load_code4(codes.data, base + d)) * scale * factor;
          !std::isfinite(value))
        visit(d, value);
  }
}

void cached(Context& c, RuleId rule, bool is_k) {
  const Tensor& tensor = is_k ? c.cache.k : c.cache.v;
  const Tensor& scale = is_k ? c.cache.k_scale : c.cache.v_scale;
  const semantics::KvStrides strides = is_k ? semantics::k_strides(c.cache) : semantics::v_strides(c.cache);
  const std::int64_t dims = is_k ? c.sizes.cache_head_dim : c.sizes.v_head_dim;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    for_each_visible_run(c, r, [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t head = 0; head < c.sizes.num_kv_heads; ++head) {
          const auto add = [&](std::int64_t d, float value) {
            if (c.report.counted(rule)) return;
            const std::string index = element_index(c.cache, is_k, page, offset + i, head, d);
            c.report.add(rule, (is_k ? "cache.k" : "cache.v") + index, {},
                         formatted("{} at position {} of request {} (page {}, offset {}, head {}, dim {})", value, position + i,
                                   r, page, offset + i, head, d),
                         "finite");
          };
          const float factor = scale_of(scale, page, offset + i, head);
          if (scale.rank == 3 && !c07_scale(c, is_k, factor, {page, offset + i, head}, position + i, r)) continue;
          const std::int64_t base = strides.row(page, head, offset + i);
          if (is_four_bit(tensor.dtype)) {
            c08_block_scales(c, is_k, factor, {page, offset + i, head}, base, position + i, r, add);
          } else {
            for_each_non_finite(tensor, base, strides, dims, factor, add);
          }
        }
      }
    });
  }
}

bool cache_readable(const Context& c, const Tensor& side) {
  return stored_rows_readable(c, side) && is_cached(side.dtype) && !c.report.broken(T13);
}

void c02_cached_key(Context& c) {
  if (cache_readable(c, c.cache.k)) cached(c, C02, /*is_k=*/true);
}

void c03_cached_value(Context& c) {
  if (cache_readable(c, c.cache.v)) cached(c, C03, /*is_k=*/false);
}

}  // namespace

void apply_content_rules(Context& c) {
  c01_query(c);
  c02_cached_key(c);
  c03_cached_value(c);
  apply_latent_content_rules(c);
  apply_ledger_content_rules(c);
  c04_key(c);
  c05_value(c);
}

}  // namespace quire::contract
