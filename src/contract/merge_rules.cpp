// SPDX-License-Identifier: Apache-2.0
// Rules Q-G01 to Q-G07, Q-C06 and Q-T17: two partial results and the place for their union.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "contract/context.h"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;

void g01_one_shape(const Merging& m, Report& report) {
  const Tensor& first = *m.out_a.tensor;
  if (!well_formed(first)) return;
  if (first.rank != 3)
    return report.add(G01, m.out_a.name, {}, "shape " + shape_text(first), "[num_tokens, num_q_heads, head_dim]");
  for (const NamedTensor& t : {m.out_b, m.out}) {
    if (!well_formed(*t.tensor)) continue;
    if (t.tensor->rank == 3 && std::equal(first.shape.begin(), first.shape.begin() + 3, t.tensor->shape.begin())) continue;
    report.add(G01, t.name, {}, "shape " + shape_text(*t.tensor), shape_text(first) + " as out_a");
  }
}

void g02_out_dtype(const Merging& m, Report& report) {
  for (const NamedTensor& t : {m.out_a, m.out_b, m.out}) {
    const DType dtype = t.tensor->dtype;
    if (!descriptor_ok(*t.tensor) || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) continue;
    const bool may_be_fp8 = t.tensor == m.out.tensor;
    if (may_be_fp8 && dtype == DType::fp8_e4m3fn && m.output_scale.tensor->present()) continue;
    report.add(G02, t.name, {}, formatted("dtype {}", name(dtype)),
               may_be_fp8 ? "f32, f16, bf16, or fp8_e4m3fn with output_scale" : "f32, f16 or bf16");
  }
}

void g07_output_scale(const Merging& m, Report& report) {
  const Tensor& scale = *m.output_scale.tensor;
  if (!well_formed(scale)) return;
  const DType out = m.out.tensor->dtype;
  if (scale.dtype != DType::f32 || scale.rank > 1 || (scale.rank == 1 && scale.shape[0] != 1))
    return report.add(G07, m.output_scale.name, {}, to_string(scale), "f32 scalar or [1]");
  if (descriptor_ok(*m.out.tensor) && out != DType::fp8_e4m3fn)
    report.add(G07, m.output_scale.name, {}, formatted("given beside out of {}", name(out)), "absent unless out is fp8_e4m3fn");
}

bool g03_ok(const Merging& m, const Tensor& lse) {
  const Tensor& out = *m.out_a.tensor;
  return lse.rank == 2 && lse.shape[0] == out.shape[0] && lse.shape[1] == out.shape[1];
}

void g03_lse_shape(const Merging& m, Report& report) {
  const Tensor& out = *m.out_a.tensor;
  if (!well_formed(out) || out.rank != 3) return;
  for (const NamedTensor& t : {m.lse_a, m.lse_b, m.lse}) {
    if (!well_formed(*t.tensor) || g03_ok(m, *t.tensor)) continue;
    report.add(G03, t.name, {}, "shape " + shape_text(*t.tensor),
               formatted("[{}, {}] = [num_tokens, num_q_heads]", out.shape[0], out.shape[1]));
  }
}

void g04_lse_dtype(const Merging& m, Report& report) {
  for (const NamedTensor& t : {m.lse_a, m.lse_b, m.lse}) {
    if (!descriptor_ok(*t.tensor) || t.tensor->dtype == DType::f32) continue;
    report.add(G04, t.name, {}, formatted("dtype {}", name(t.tensor->dtype)), "f32");
  }
}

void g05_own_addresses(const Merging& m, Report& report) {
  for (const NamedTensor& t : {m.out, m.lse}) {
    if (!well_formed(*t.tensor) || strides_nest(*t.tensor)) continue;
    report.add(G05, t.name, {}, to_string(*t.tensor), "an address of its own for every element");
  }
}

void g06_no_overlap(const Merging& m, Report& report) {
  const auto apart = [&](const NamedTensor& written, const NamedTensor& other, bool in_place_allowed) {
    if (!placed(*written.tensor) || !placed(*other.tensor)) return;
    if (in_place_allowed && same_view(*written.tensor, *other.tensor)) return;
    if (!may_overlap(*written.tensor, *other.tensor)) return;
    report.add(G06, written.name, {}, formatted("shares memory with {}", other.name),
               in_place_allowed ? "exactly the same view, or memory of its own" : "memory of its own");
  };
  for (const NamedTensor& side : {m.out_a, m.out_b}) {
    apart(m.out, side, /*in_place_allowed=*/true);
    apart(m.lse, side, /*in_place_allowed=*/false);
  }
  for (const NamedTensor& side : {m.lse_a, m.lse_b}) {
    apart(m.out, side, /*in_place_allowed=*/false);
    apart(m.lse, side, /*in_place_allowed=*/true);
  }
  apart(m.out, m.lse, /*in_place_allowed=*/false);
  apart(m.out, m.output_scale, /*in_place_allowed=*/false);
  apart(m.lse, m.output_scale, /*in_place_allowed=*/false);
}

void c06_lse_values(Report& report, const NamedTensor& t) {
  const Tensor& lse = *t.tensor;
  if (!readable(lse) || lse.dtype != DType::f32 || lse.rank != 2) return;
  const auto* values = static_cast<const float*>(lse.data);
  for (std::int64_t token = 0; token < lse.shape[0]; ++token) {
    for (std::int64_t head = 0; head < lse.shape[1]; ++head) {
      const float value = values[token * lse.stride[0] + head * lse.stride[1]];
      if (value <= std::numeric_limits<float>::max() || report.counted(C06)) continue;
      report.add(C06, t.name, {token, head}, formatted("{}", value), "finite, or -inf for an empty side");
    }
  }
}

void t17_output_scale(Report& report, const NamedTensor& t) {
  const Tensor& scale = *t.tensor;
  if (!readable(scale) || scale.dtype != DType::f32 || scale.num_elements() != 1) return;
  const float value = *static_cast<const float*>(scale.data);
  if (std::isfinite(value) && value > 0) return;
  report.add(T17, t.name, {}, formatted("{}", value), "finite and > 0");
}

}  // namespace

void apply_merge_rules(const Merging& m, Report& report) {
  g01_one_shape(m, report);
  g02_out_dtype(m, report);
  g03_lse_shape(m, report);
  g04_lse_dtype(m, report);
  g05_own_addresses(m, report);
  g06_no_overlap(m, report);
  g07_output_scale(m, report);
}

void apply_merge_value_rules(const Merging& m, Report& report) {
  c06_lse_values(report, m.lse_a);
  c06_lse_values(report, m.lse_b);
  t17_output_scale(report, m.output_scale);
}

}  // namespace quire::contract
