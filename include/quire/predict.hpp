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

/// Predicted time of one list of a GPU plan: the longer of the time to read K and V and the time of the unit (a block of threads,
/// or a pair of blocks) with most work, plus launch, first keys and merge.
struct ListPrediction {
  std::string served_by;           ///< name of the kernel body: "sm90_decode", "mma_tall", "generic", ... (Body::name)
  std::int64_t tile_rows = 0;      ///< score rows per tile
  std::int64_t tile_keys = 0;      ///< keys per tile
  std::int64_t tile_heads = 1;     ///< KV heads of a tile, with the score rows of all of them
  std::int64_t units = 0;          ///< units that share the items
  std::int64_t items = 0;          ///< parts of tiles of score rows, times KV heads
  std::int64_t busiest_items = 0;  ///< items of the unit with most work
  std::int64_t busiest_tiles = 0;  ///< key tiles of the unit with most work
  std::int64_t merges = 0;         ///< tiles of score rows in several parts, times KV heads
  double read_bytes = 0;           ///< bytes of K and V that the list's rows see, each counted once
  double read_seconds = 0;
  double tile_seconds = 0;
  double item_seconds = 0;
  double seconds = 0;  ///< sum: the longer of reading and tiles; items, launch, first keys and merge
};

/// Predicted seconds of one attend() on the device, or the reason why there is no prediction.
struct Prediction {
  std::string device;  ///< device whose measured costs were taken: "H200"
  double call_seconds = 0;
  std::vector<ListPrediction> lists;
  double saved_seconds = 0;  ///< time saved because the lists run at the same time
  double seconds = 0;        ///< call_seconds and all lists, less saved_seconds; 0 if not predicted
  std::string left_out;      ///< options that were never timed, whose cost is not in `seconds`: "cap, alibi"
  std::string why_not;
};
/// Predicts from the costs in src/plan/device_costs.h and src/plan/kernels/. Only for plans that know the lengths, and for caches
/// and masks that were timed.
Prediction predict(const Plan& plan);

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
