// SPDX-License-Identifier: Apache-2.0
// Reasons for refusals that several kernels share.
#pragma once

#include <string>
#include <vector>

#include "quire/plan.hpp"
#include "text/formatted.h"

namespace quire::plan_detail {

using Reasons = std::vector<std::string>;

inline bool is_16_bit(DType type) { return type == DType::f16 || type == DType::bf16; }
inline bool is_nvidia_fp8(DType type) { return type == DType::fp8_e4m3fn || type == DType::fp8_e5m2; }

/// Tensor-core kernels write rows of 16 or 8 bits.
inline bool asks_for_wide_rows(const Problem& problem) {
  return problem.q_dtype != DType::f32 && problem.out_dtype() == DType::f32;
}

/// Tuned kernels have tiles of K and V of one size.
inline void refuse_unequal_dims(const Problem& problem, Reasons& reasons) {
  if (!problem.has_equal_dims())
    reasons.push_back(formatted("dv is {}, expected {} (as d)", problem.out_dim(), problem.head_dim));
}

/// Tuned kernels have one conversion for K and V.
inline void refuse_unlike_types(const Problem& problem, Reasons& reasons) {
  if (!problem.has_equal_types())
    reasons.push_back(formatted("v is {}, expected {} (as k)", name(problem.value_dtype()), name(problem.kv_dtype)));
}

/// Kernels whose tiles know one range of keys a row.
inline void refuse_regions(const Problem& problem, Reasons& reasons) {
  if (problem.has_prefix) reasons.push_back("a prefix is given, expected absent");
  if (problem.has_tree) reasons.push_back("tree_mask is given, expected absent");
}

/// The tuned GPU kernels know causal rows at the end of their keys, with or without a window.
inline void refuse_other_masks(const Problem& problem, Reasons& reasons) {
  if (problem.has_causal) reasons.push_back("causal is given by request, expected absent");
  if (!problem.causal) reasons.push_back("causal is 0, expected 1");
  if (problem.has_q_begin) reasons.push_back("q_begin is given, expected absent (rows at the end of their keys)");
  if (problem.attention_chunk) reasons.push_back(formatted("chunk is {}, expected absent", *problem.attention_chunk));
  if (problem.has_spans) reasons.push_back("spans are given, expected absent");
  refuse_regions(problem, reasons);
}

/// Tuned kernels multiply sums by one scale of a KV head.
inline void refuse_token_scales(const Problem& problem, Reasons& reasons) {
  if (problem.k_scale == ScaleKind::per_token) reasons.push_back("kscale is by token, expected none, tensor or head");
  if (problem.v_scale == ScaleKind::per_token) reasons.push_back("vscale is by token, expected none, tensor or head");
}

}  // namespace quire::plan_detail
