// SPDX-License-Identifier: Apache-2.0
// The one description of attend()'s workspace, shared by planning (how big) and the CPU backend (where what is).
#pragma once

#include <cstdint>

#include "plan/kernel.h"
#include "semantics/ceil_div.h"

namespace quire::plan_detail {

/// Floats per row of scratch and of partials: dims rounded up to the kernel's widest vector, so that tails need no masks.
inline std::int64_t padded(const Plan& plan, std::int64_t dims) {
  const std::int64_t lanes = plan.kernel.row().cpu->lanes;
  return semantics::round_up(dims, lanes);
}
/// Floats of a query or key, and of a value, an output row or a partial.
inline std::int64_t padded_dim(const Plan& plan) { return padded(plan, plan.problem.head_dim); }
inline std::int64_t padded_v_dim(const Plan& plan) { return padded(plan, plan.problem.out_dim()); }

/// Offsets, in floats, of one thread's scratch.
struct ThreadScratch {
  std::int64_t query = 0;    ///< [score_rows][padded_dim]
  std::int64_t acc = 0;      ///< [score_rows][padded_v_dim], this segment
  std::int64_t total = 0;    ///< [score_rows][padded_v_dim], segments folded so far
  std::int64_t staging = 0;  ///< [16][wider of the two], rows as converted, on their way into a panel
  std::int64_t k_panel = 0;  ///< [tile_kv x wider] (src/backend/cpu/panels.h): rows of V pass through k_panel, too
  std::int64_t v_panel = 0;  ///< [tile_kv x wider]: rows of K pass through v_panel, too
  std::int64_t scores = 0;   ///< [score_rows][tile_kv]
  std::int64_t states = 0;   ///< [score_rows] x 4: max and sum of this segment, then of the total
  std::int64_t floats = 0;   ///< size of the scratch memory
};

inline ThreadScratch thread_scratch(const Plan& plan) {
  const std::int64_t rows = plan.tile_q * plan.problem.group();
  const std::int64_t dim = padded_dim(plan), v_dim = padded_v_dim(plan), wider = dim > v_dim ? dim : v_dim;
  ThreadScratch s;
  const auto take = [&s](std::int64_t floats) {
    const std::int64_t at = s.floats;
    s.floats += (floats + 15) / 16 * 16;
    return at;
  };
  s.query = take(rows * dim);
  s.acc = take(rows * v_dim);
  s.total = take(rows * v_dim);
  s.staging = take(16 * wider);
  s.k_panel = take(plan.tile_kv * wider);
  s.v_panel = take(plan.tile_kv * wider);
  s.scores = take(rows * plan.tile_kv);
  s.states = take(rows * 4);
  return s;
}

/// Score rows of an item of cpu_amx, as its tiles count them.
inline std::int64_t amx_padded_rows(std::int64_t rows) { return (rows + 31) / 32 * 32; }

/// Offsets, in bytes and multiples of 64, of one thread's scratch of cpu_amx, whose K and V have one head_dim. rows = padded
/// score rows, dim = padded_dim.
struct AmxScratch {
  std::int64_t query = 0;        ///< [rows][dim] bf16
  std::int64_t query_panel = 0;  ///< [dim / 2][16] pairs of bf16
  std::int64_t k_staged = 0;     ///< [tile_kv][dim] bf16, as v_staged
  std::int64_t v_staged = 0;
  std::int64_t k_panel = 0;     ///< [tile_kv / 16][dim / 2][16] pairs of bf16
  std::int64_t v_panel = 0;     ///< [tile_kv / 32][dim / 16][16][16] pairs of bf16
  std::int64_t acc = 0;         ///< [rows][dim] f32, this segment
  std::int64_t total = 0;       ///< [rows][dim] f32, segments folded so far
  std::int64_t row = 0;         ///< [dim] f32
  std::int64_t scores = 0;      ///< [32][tile_kv] f32
  std::int64_t key_scores = 0;  ///< [64][16] f32
  std::int64_t weights = 0;     ///< [3][32][tile_kv] bf16
  std::int64_t factors = 0;     ///< [2][tile_kv] f32
  std::int64_t states = 0;      ///< [rows] x 4 f32: max and sum of this segment, then of the total
  std::int64_t bytes = 0;       ///< size of the scratch memory
};

inline AmxScratch amx_scratch(const Plan& plan) {
  const std::int64_t rows = amx_padded_rows(plan.tile_q * plan.problem.group());
  const std::int64_t dim = padded_dim(plan);
  AmxScratch s;
  const auto take = [&s](std::int64_t bytes) {
    const std::int64_t at = s.bytes;
    s.bytes += (bytes + 63) / 64 * 64;
    return at;
  };
  s.query = take(rows * dim * 2);
  s.query_panel = take(dim * 32);
  s.k_staged = take(plan.tile_kv * dim * 2);
  s.v_staged = take(plan.tile_kv * dim * 2);
  s.k_panel = take(plan.tile_kv * dim * 2);
  s.v_panel = take(plan.tile_kv * dim * 2);
  s.acc = take(rows * dim * 4);
  s.total = take(rows * dim * 4);
  s.row = take(dim * 4);
  s.scores = take(32 * plan.tile_kv * 4);
  s.key_scores = take(64 * 16 * 4);
  s.weights = take(3 * 32 * plan.tile_kv * 2);
  s.factors = take(2 * plan.tile_kv * 4);
  s.states = take(rows * 16);
  return s;
}

/// Offsets, in floats, of the whole workspace.
struct Workspace {
  std::int64_t partial_acc = 0;     ///< [num_partials][padded_v_dim]
  std::int64_t partial_states = 0;  ///< [num_partials][2]: max, sum
  std::int64_t parts_done = 0;      ///< [num_merges] int32: partials of each merge that are complete
  std::int64_t threads = 0;         ///< [num_threads] x ThreadScratch
  std::int64_t floats = 0;
};

inline Workspace workspace_of(const Plan& plan) {
  Workspace w;
  w.partial_states = plan.num_partials * padded_v_dim(plan);
  w.parts_done = w.partial_states + (plan.num_partials * 2 + 15) / 16 * 16;
  w.threads = w.parts_done + (plan.num_merges() + 15) / 16 * 16;
  w.floats = w.threads + plan.num_threads * (plan.scratch_bytes_per_thread / static_cast<std::int64_t>(sizeof(float)));
  return w;
}

}  // namespace quire::plan_detail
