// The one description of attend()'s workspace, shared by planning (how big) and the CPU backend (where what is).
#pragma once

#include <cstdint>

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// Floats per row of scratch: head_dim rounded up to the widest vector of any CPU kernel, so that tails need no masks.
inline std::int64_t padded_dim(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// Offsets, in floats, of one thread's scratch.
struct ThreadScratch {
  std::int64_t query = 0;    ///< [score_rows][padded_dim]
  std::int64_t acc = 0;      ///< [score_rows][padded_dim], this segment
  std::int64_t total = 0;    ///< [score_rows][padded_dim], segments folded so far
  std::int64_t staging = 0;  ///< [16][padded_dim], rows as converted, on their way into a panel
  std::int64_t k_panel = 0;  ///< [tile_kv x padded_dim], src/backend/cpu/panels.h
  std::int64_t v_panel = 0;  ///< [tile_kv x padded_dim]
  std::int64_t scores = 0;   ///< [score_rows][tile_kv]
  std::int64_t states = 0;   ///< [score_rows] x 4: max and sum of this segment, then of the total
  std::int64_t floats = 0;   ///< size of all of it
};

inline ThreadScratch thread_scratch(const Plan& plan) {
  const std::int64_t rows = plan.tile_q * plan.problem.group();
  const std::int64_t dim = padded_dim(plan.problem.head_dim);
  ThreadScratch s;
  const auto take = [&s](std::int64_t floats) {
    const std::int64_t at = s.floats;
    s.floats += (floats + 15) / 16 * 16;
    return at;
  };
  s.query = take(rows * dim);
  s.acc = take(rows * dim);
  s.total = take(rows * dim);
  s.staging = take(16 * dim);
  s.k_panel = take(plan.tile_kv * dim);
  s.v_panel = take(plan.tile_kv * dim);
  s.scores = take(rows * plan.tile_kv);
  s.states = take(rows * 4);
  return s;
}

/// Offsets, in floats, of the whole workspace.
struct Workspace {
  std::int64_t partial_acc = 0;     ///< [num_partials][padded_dim]
  std::int64_t partial_states = 0;  ///< [num_partials][2]: max, sum
  std::int64_t parts_done = 0;      ///< [num_merges] int32: partials of each merge that are complete
  std::int64_t threads = 0;         ///< [num_threads] x ThreadScratch
  std::int64_t floats = 0;
};

inline Workspace workspace_of(const Plan& plan) {
  Workspace w;
  w.partial_states = plan.num_partials * padded_dim(plan.problem.head_dim);
  w.parts_done = w.partial_states + (plan.num_partials * 2 + 15) / 16 * 16;
  w.threads = w.parts_done + (plan.num_merges() + 15) / 16 * 16;
  w.floats = w.threads + plan.num_threads * (plan.scratch_bytes_per_thread / static_cast<std::int64_t>(sizeof(float)));
  return w;
}

}  // namespace quire::plan_detail
