// SPDX-License-Identifier: Apache-2.0
// Rules Q-G01 to Q-G10, Q-C06 and Q-T17: two or more partial results and the place for their union.
#include <algorithm>
#include <cmath>
#include <limits>

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

void g02_out_dtype(std::initializer_list<NamedTensor> parts, const NamedTensor& out, const Tensor& output_scale, Report& report) {
  for (const NamedTensor& t : parts) {
    const DType dtype = t.tensor->dtype;
    if (!descriptor_ok(*t.tensor) || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) continue;
    const bool may_be_fp8 = t.tensor == out.tensor;
    if (may_be_fp8 && dtype == DType::fp8_e4m3fn && output_scale.present()) continue;
    report.add(G02, t.name, {}, formatted("dtype {}", name(dtype)),
               may_be_fp8 ? "f32, f16, bf16, or fp8_e4m3fn with output_scale" : "f32, f16 or bf16");
  }
}

void g07_output_scale(const NamedTensor& output_scale, const NamedTensor& written, Report& report) {
  const Tensor& scale = *output_scale.tensor;
  if (!well_formed(scale)) return;
  const DType out = written.tensor->dtype;
  if (scale.dtype != DType::f32 || scale.rank > 1 || (scale.rank == 1 && scale.shape[0] != 1))
    return report.add(G07, output_scale.name, {}, to_string(scale), "f32 scalar or [1]");
  if (descriptor_ok(*written.tensor) && out != DType::fp8_e4m3fn)
    report.add(G07, output_scale.name, {}, formatted("given beside out of {}", name(out)), "absent unless out is fp8_e4m3fn");
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

void g04_lse_dtype(std::initializer_list<NamedTensor> lses, Report& report) {
  for (const NamedTensor& t : lses) {
    if (!descriptor_ok(*t.tensor) || t.tensor->dtype == DType::f32) continue;
    report.add(G04, t.name, {}, formatted("dtype {}", name(t.tensor->dtype)), "f32");
  }
}

void g05_own_addresses(std::initializer_list<NamedTensor> written, Report& report) {
  for (const NamedTensor& t : written) {
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

void c06_lses_values(Report& report, const NamedTensor& t) {
  const Tensor& lses = *t.tensor;
  if (!readable(lses) || lses.dtype != DType::f32 || lses.rank != 3) return;
  const auto* values = static_cast<const float*>(lses.data);
  for (std::int64_t part = 0; part < lses.shape[0]; ++part)
    for (std::int64_t token = 0; token < lses.shape[1]; ++token)
      for (std::int64_t head = 0; head < lses.shape[2]; ++head) {
        const float value = values[part * lses.stride[0] + token * lses.stride[1] + head * lses.stride[2]];
        if (value <= std::numeric_limits<float>::max() || report.counted(C06)) continue;
        report.add(C06, t.name, {part, token, head}, formatted("{}", value), "finite, or -inf for an empty part");
      }
}

/// `t` has the extents of outs from the first-th on, as many as `count`.
bool has_extents(const Tensor& t, const Tensor& outs, int first, int count) {
  return t.rank == count && std::equal(t.shape.begin(), t.shape.begin() + count, outs.shape.begin() + first);
}

void g08_stack_shape(const MergingMany& m, Report& report) {
  const Tensor& outs = *m.outs.tensor;
  if (!well_formed(outs)) return;
  if (outs.rank != 4 || outs.shape[0] < 1)
    return report.add(G08, m.outs.name, {}, "shape " + shape_text(outs), "[num_parts >= 1, num_tokens, num_q_heads, head_dim]");
  const Tensor& out = *m.out.tensor;
  if (!well_formed(out) || has_extents(out, outs, 1, 3)) return;
  report.add(G08, m.out.name, {}, "shape " + shape_text(out),
             formatted("[{}, {}, {}] as a part of outs", outs.shape[1], outs.shape[2], outs.shape[3]));
}

void g09_stack_lse_shape(const MergingMany& m, Report& report) {
  const Tensor &outs = *m.outs.tensor, &lses = *m.lses.tensor, &lse = *m.lse.tensor;
  if (!well_formed(outs) || outs.rank != 4) return;
  if (well_formed(lses) && !has_extents(lses, outs, 0, 3))
    report.add(G09, m.lses.name, {}, "shape " + shape_text(lses),
               formatted("[{}, {}, {}] = [num_parts, num_tokens, num_q_heads]", outs.shape[0], outs.shape[1], outs.shape[2]));
  if (well_formed(lse) && !has_extents(lse, outs, 1, 2))
    report.add(G09, m.lse.name, {}, "shape " + shape_text(lse),
               formatted("[{}, {}] = [num_tokens, num_q_heads]", outs.shape[1], outs.shape[2]));
}

void g10_no_overlap(const MergingMany& m, Report& report) {
  const auto apart = [&](const NamedTensor& written, const NamedTensor& other) {
    if (!placed(*written.tensor) || !placed(*other.tensor) || !may_overlap(*written.tensor, *other.tensor)) return;
    report.add(G10, written.name, {}, formatted("shares memory with {}", other.name), "memory of its own");
  };
  for (const NamedTensor& other : {m.outs, m.lses, m.output_scale}) {
    apart(m.out, other);
    apart(m.lse, other);
  }
  apart(m.out, m.lse);
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
  g02_out_dtype({m.out_a, m.out_b, m.out}, m.out, *m.output_scale.tensor, report);
  g03_lse_shape(m, report);
  g04_lse_dtype({m.lse_a, m.lse_b, m.lse}, report);
  g05_own_addresses({m.out, m.lse}, report);
  g06_no_overlap(m, report);
  g07_output_scale(m.output_scale, m.out, report);
}

void apply_merge_value_rules(const Merging& m, Report& report) {
  c06_lse_values(report, m.lse_a);
  c06_lse_values(report, m.lse_b);
  t17_output_scale(report, m.output_scale);
}

void apply_merge_many_rules(const MergingMany& m, Report& report) {
  g08_stack_shape(m, report);
  g09_stack_lse_shape(m, report);
  g02_out_dtype({m.outs, m.out}, m.out, *m.output_scale.tensor, report);
  g04_lse_dtype({m.lses, m.lse}, report);
  g05_own_addresses({m.out, m.lse}, report);
  g07_output_scale(m.output_scale, m.out, report);
  g10_no_overlap(m, report);
}

void apply_merge_many_value_rules(const MergingMany& m, Report& report) {
  c06_lses_values(report, m.lses);
  t17_output_scale(report, m.output_scale);
}

}  // namespace quire::contract
