// SPDX-License-Identifier: Apache-2.0
// Rules on options and small float tensors: Q-M31 to Q-M36, Q-M38 to Q-M40, Q-M42 to Q-M44, Q-M50 and Q-M51 (their form), Q-T13
// to Q-T15 and Q-T17 (their values).
#include <cmath>
#include <string>

#include "contract/context.h"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;

bool finite_positive(float value) { return std::isfinite(value) && value > 0.0f; }

void m31_softmax_scale(Context& c) {
  const auto& scale = c.options.softmax_scale;
  if (!scale || finite_positive(*scale)) return;
  c.report.add(M31, "softmax_scale", {}, formatted("{}", *scale), "finite and > 0; leave it out for 1 / sqrt(head_dim)");
}

void m32_sliding_window(Context& c) {
  const auto& window = c.options.sliding_window;
  if (!window || *window >= 1) return;
  c.report.add(M32, "sliding_window", {}, formatted("{}", *window), ">= 1; leave it out for no window");
}

void m33_soft_cap(Context& c) {
  const auto& cap = c.options.logits_soft_cap;
  if (!cap || finite_positive(*cap)) return;
  c.report.add(M33, "logits_soft_cap", {}, formatted("{}", *cap), "finite and > 0; leave it out for no cap");
}

void m42_one_causal(Context& c) {
  if (c.options.causal || !c.batch.causal.present()) return;
  c.report.add(M42, "causal", {}, "options.causal = false beside batch.causal", "one of the two");
}

void m43_window_right(Context& c) {
  const auto& window = c.options.window_right;
  if (!window || *window >= 0) return;
  c.report.add(M43, "window_right", {}, formatted("{}", *window), ">= 0; leave it out for no window");
}

void m44_window_right_has_use(Context& c) {
  if (!c.options.window_right || !c.options.causal || c.batch.causal.present()) return;
  c.report.add(M44, "window_right", {}, formatted("{} where every request is causal", *c.options.window_right),
               "absent, or a request that is not causal");
}

void m38_padding(Context& c) {
  const auto value = static_cast<std::int32_t>(c.batch.padding);
  if (padding_from_name(name(c.batch.padding))) return;
  c.report.add(M38, "padding", {}, formatted("value {}", value), "refused, left or zero");
}

/// f32 [num_q_heads]
void per_query_head(Context& c, RuleId rule, std::string_view tensor_name, const Tensor& t) {
  if (!well_formed(t)) return;
  const std::int64_t heads = c.sizes.num_q_heads;
  const bool shape_ok = t.rank == 1 && (!known(heads) || t.shape[0] == heads);
  if (t.dtype == DType::f32 && shape_ok) return;
  c.report.add(rule, tensor_name, {}, to_string(t),
               known(heads) ? formatted("f32 [{}] = [num_q_heads]", heads) : "f32 [num_q_heads]");
}

void m34_alibi_slopes(Context& c) { per_query_head(c, M34, "alibi_slopes", c.options.alibi_slopes); }
void m35_sinks(Context& c) { per_query_head(c, M35, "sinks", c.options.sinks); }

/// Whether the shape is [num_pages, page_size, num_kv_heads], as far as sizes are known.
bool is_of_tokens(const Context& c, const Tensor& t) {
  const std::int64_t sizes[] = {c.sizes.num_pages, c.sizes.page_size, c.sizes.num_kv_heads};
  for (std::size_t i = 0; i < 3; ++i)
    if (known(sizes[i]) && t.shape[i] != sizes[i]) return false;
  return true;
}

void m36_scale_form(Context& c, std::string_view tensor_name, const Tensor& t) {
  if (!well_formed(t)) return;
  const std::int64_t heads = c.sizes.num_kv_heads;
  const bool of_heads = t.rank == 1 && (t.shape[0] == 1 || (known(heads) ? t.shape[0] == heads : t.shape[0] > 0));
  if (t.dtype == DType::f32 && (t.rank == 0 || of_heads || (t.rank == 3 && is_of_tokens(c, t)))) return;
  const std::string form =
      known(heads) ? formatted("f32 scalar, [1] or [{}] = [num_kv_heads]", heads) : "f32 scalar, [1] or [num_kv_heads]";
  c.report.add(M36, tensor_name, {}, to_string(t),
               t.rank != 3 || !known(heads) ? form + ", or [num_pages, page_size, num_kv_heads]"
                                            : formatted("f32 [{}, {}, {}] = [num_pages, page_size, num_kv_heads]",
                                                        c.sizes.num_pages, c.sizes.page_size, heads));
}

void m50_integers_have_scales(Context& c, std::string_view tensor_name, const Tensor& t, const Tensor& codes) {
  if (t.present() || !descriptor_ok(codes) || codes.dtype != DType::i8) return;
  c.report.add(M50, tensor_name, {}, "absent", "a scale of the i8 cache");
}

void m51_token_scales_of_codes(Context& c, std::string_view tensor_name, const Tensor& t, const Tensor& codes) {
  if (!well_formed(t) || t.rank != 3 || !descriptor_ok(codes) || is_code(codes.dtype) || has_latent_rows(c)) return;
  c.report.add(M51, tensor_name, {}, formatted("three axes beside a cache of {}", name(codes.dtype)),
               "scalar, [1] or [num_kv_heads], or a cache of i8 or an fp8 format");
}

/// One side of the cache with the scales of its blocks.
struct BlockSide {
  std::string_view codes_name, scales_name;
  const Tensor &codes, &scales;
  std::int64_t head_dim;
};

void m52_block_scales_of_four_bits(Context& c, const BlockSide& side) {
  if (!descriptor_ok(side.codes)) return;
  const DType type = side.codes.dtype, expected = block_scale_type(type);
  if (side.scales.present() == is_four_bit(type) && (!descriptor_ok(side.scales) || side.scales.dtype == expected)) return;
  if (!is_four_bit(type))
    return c.report.add(M52, side.scales_name, {}, formatted("given beside {} of {}", side.codes_name, name(type)),
                        "absent unless it is nvfp4 or mxfp4");
  c.report.add(M52, side.scales_name, {},
               side.scales.present() ? formatted("dtype {}", name(side.scales.dtype)) : std::string("absent"),
               formatted("{} scales of blocks of {} {}", name(expected), block_size(type), name(type)));
}

void m53_block_scale_shape(Context& c, const BlockSide& side) {
  if (!is_four_bit(side.codes.dtype) || !well_formed(side.scales) || !known(side.head_dim) || c.report.broken(M54)) return;
  const std::int64_t sizes[] = {c.sizes.num_pages, c.sizes.page_size, c.sizes.num_kv_heads,
                                side.head_dim / block_size(side.codes.dtype)};
  bool fits = side.scales.rank == 4;
  for (int i = 0; fits && i < 4; ++i) fits = side.scales.shape[i] == sizes[i];
  if (fits) return;
  c.report.add(M53, side.scales_name, {}, "shape " + shape_text(side.scales),
               formatted("[{}] = [num_pages, page_size, num_kv_heads, head_dim / {}]", fmt::join(sizes, ", "),
                         block_size(side.codes.dtype)));
}

void m54_whole_blocks(Context& c, const BlockSide& side) {
  if (!is_four_bit(side.codes.dtype) || !known(side.head_dim) || side.head_dim % block_size(side.codes.dtype) == 0) return;
  c.report.add(M54, side.codes_name, {}, formatted("head_dim {}", side.head_dim),
               formatted("a multiple of {}, the block of {}", block_size(side.codes.dtype), name(side.codes.dtype)));
}

void m55_bytes_side_by_side(Context& c, const BlockSide& side) {
  if (!descriptor_ok(side.codes) || !is_four_bit(side.codes.dtype)) return;
  if (c.cache.layout == CacheLayout::packed)
    return c.report.add(M55, side.codes_name, {}, formatted("{} in the packed layout", name(side.codes.dtype)), "nhd or hnd");
  if (!well_formed(side.codes) || side.codes.rank != 4 || side.codes.shape[3] < 2 || side.codes.stride[3] == 1) return;
  c.report.add(M55, side.codes_name, {}, formatted("stride {} of the bytes of a row", side.codes.stride[3]), "1");
}

/// A scale whose rows must be fp8_e4m3fn.
void scale_of_rows(Context& c, RuleId rule, std::string_view scale_name, const Tensor& scale, std::string_view rows_name,
                   const Tensor& rows, std::int64_t heads, std::string_view form) {
  if (!well_formed(scale)) return;
  const bool per_head = known(heads) && scale.rank == 1 && scale.shape[0] == heads;
  const bool shape_ok = scale.rank == 0 || (scale.rank == 1 && scale.shape[0] == 1) || per_head;
  if (scale.dtype != DType::f32 || !shape_ok) return c.report.add(rule, scale_name, {}, to_string(scale), std::string(form));
  if (descriptor_ok(rows) && rows.dtype != DType::fp8_e4m3fn)
    c.report.add(rule, scale_name, {}, formatted("given beside {} of {}", rows_name, name(rows.dtype)),
                 formatted("absent unless {} is fp8_e4m3fn", rows_name));
}

void m39_output_scale(Context& c) {
  scale_of_rows(c, M39, "output_scale", c.batch.output_scale, "output", c.batch.output, kUnknown, "f32 scalar or [1]");
}

void m40_q_scale(Context& c) {
  if (c.batch.q_scale.rank == 1 && !known(c.sizes.num_kv_heads)) return;
  scale_of_rows(c, M40, "q_scale", c.batch.q_scale, "query", c.batch.query, c.sizes.num_kv_heads,
                formatted("f32 scalar, [1] or [{}] = [num_kv_heads]", c.sizes.num_kv_heads));
}

/// Applies `fault(value)` to each element of a readable f32 tensor of rank 0 or 1; a text means a finding.
template <typename Fault>
void each_value(Context& c, RuleId rule, std::string_view tensor_name, const Tensor& t, std::string_view expected,
                Fault&& fault) {
  if (!readable(t) || t.dtype != DType::f32 || t.rank > 1) return;
  const auto* values = static_cast<const float*>(t.data);
  if (t.rank == 0) {
    if (fault(values[0])) c.report.add(rule, tensor_name, {}, formatted("{}", values[0]), std::string(expected));
    return;
  }
  for (std::int64_t i = 0; i < t.shape[0]; ++i) {
    const float value = values[i * t.stride[0]];
    if (fault(value) && !c.report.counted(rule))
      c.report.add(rule, tensor_name, {i}, formatted("{}", value), std::string(expected));
  }
}

void scale_values(Context& c, RuleId rule, std::string_view tensor_name, const Tensor& t) {
  each_value(c, rule, tensor_name, t, "finite and > 0", [](float v) { return !finite_positive(v); });
}

void t14_slopes(Context& c) {
  each_value(c, T14, "alibi_slopes", c.options.alibi_slopes, "finite", [](float v) { return !std::isfinite(v); });
}

void t15_sinks(Context& c) {
  each_value(c, T15, "sinks", c.options.sinks, "neither NaN nor +inf",
             [](float v) { return std::isnan(v) || (std::isinf(v) && v > 0); });
}

}  // namespace

void apply_scale_shape_rules(Context& c) {
  for (const NamedTensor& t : {NamedTensor{"k_scale", &c.cache.k_scale}, NamedTensor{"v_scale", &c.cache.v_scale}}) {
    const Tensor& codes = t.tensor == &c.cache.k_scale ? c.cache.k : c.cache.v;
    m36_scale_form(c, t.name, *t.tensor);
    m50_integers_have_scales(c, t.name, *t.tensor, codes);
    m51_token_scales_of_codes(c, t.name, *t.tensor, codes);
  }
  const BlockSide sides[] = {{"cache.k", "k_block_scale", c.cache.k, c.cache.k_block_scale, c.sizes.cache_head_dim},
                             {"cache.v", "v_block_scale", c.cache.v, c.cache.v_block_scale, c.sizes.v_head_dim}};
  for (const BlockSide& side : sides) {
    m52_block_scales_of_four_bits(c, side);
    m54_whole_blocks(c, side);
    m53_block_scale_shape(c, side);
    m55_bytes_side_by_side(c, side);
  }
}

void apply_option_rules(Context& c) {
  m38_padding(c);
  m31_softmax_scale(c);
  m32_sliding_window(c);
  m33_soft_cap(c);
  m34_alibi_slopes(c);
  m35_sinks(c);
  apply_scale_shape_rules(c);
  m39_output_scale(c);
  m40_q_scale(c);
  m42_one_causal(c);
  m43_window_right(c);
  m44_window_right_has_use(c);
}

void apply_scale_rules(Context& c) {
  scale_values(c, T13, "k_scale", c.cache.k_scale);
  scale_values(c, T13, "v_scale", c.cache.v_scale);
  scale_values(c, T17, "q_scale", c.batch.q_scale);
  scale_values(c, T17, "output_scale", c.batch.output_scale);
  t14_slopes(c);
  t15_sinks(c);
}

}  // namespace quire::contract
