// SPDX-License-Identifier: Apache-2.0
// Known failures of vLLM (2026-01, AMD) with a given kernel choice and problem.
#pragma once

#include <string>
#include <vector>

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// The problem as vLLM's chunked_prefill_paged_decode sees it.
struct VllmFacts {
  const Problem& problem;
  std::string_view arch;          ///< gfx90a, gfx942, gfx950, gfx1100, gfx1201
  bool is_gfx9 = false;           ///< else gfx11 or gfx12 ("Navi")
  bool custom = false;            ///< decode rows get paged_attention_rocm
  std::int64_t prefill_reqs = 0;  ///< requests with query_len > 1
  std::int64_t decode_reqs = 0;   ///< requests with query_len == 1
  std::int64_t empty_reqs = 0;    ///< requests with query_len == 0
};

/// vLLM's word for the cache type: "auto", "fp8", "fp8_e5m2", or empty if it has none.
std::string_view vllm_cache_dtype(const Problem& problem);

/// Returns a sentence per hazard: run-time failures first, then silent wrong answers, then cost.
std::vector<std::string> vllm_hazards(const VllmFacts& facts);

}  // namespace quire::plan_detail
