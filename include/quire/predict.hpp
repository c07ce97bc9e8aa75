// SPDX-License-Identifier: Apache-2.0
// Forecasts from a problem or a plan alone: seconds of a call, and the kernel that vLLM would run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/plan.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

/// Kernel that vLLM would run for this problem on an AMD GPU (vLLM's `use_rocm_custom_paged_attention`, 2026-01), and why.
struct VllmChoice {
  std::string prefill_kernel;       ///< serves rows with query_len > 1; empty if there are none
  std::string decode_kernel;        ///< "paged_attention_rocm" or "kernel_paged_attention_2d"; serves query_len == 1
  std::vector<std::string> failed;  ///< each condition that kept the custom kernel away
  std::vector<std::string> notes;   ///< known hazards of that choice for this problem
  std::string text;
};
/// `arch`: gfx90a, gfx942, gfx950, gfx1100 or gfx1201.
Result<VllmChoice> explain_as_vllm(const Problem& problem, std::string_view arch);

}  // namespace quire
