// SPDX-License-Identifier: Apache-2.0
// Compares a capture's problem line with its tensors.
#include "capture/problem_note.h"

#include <utility>

#include "quire/contract.hpp"

namespace quire::capture {
namespace {

/// A scale of one KV head is per head and per tensor.
void settle_scale(ScaleKind& kind, std::int64_t num_kv_heads) {
  if (kind == ScaleKind::per_head && num_kv_heads == 1) kind = ScaleKind::per_tensor;
}

/// The problem as a file holds it: V has its numbers there, and nothing says that these are dims of K's rows.
Problem settled(Problem p) {
  p.latent = false;
  settle_scale(p.k_scale, p.num_kv_heads);
  settle_scale(p.v_scale, p.num_kv_heads);
  return p;
}

}  // namespace

void settle_problem_note(Case& c) {
  const auto note = c.notes.find("problem");
  if (note == c.notes.end() || !check(c.batch, c.cache, c.options, Depth::tables).ok()) return;
  const Result<ProblemLine> line = parse_problem_line(note->second);
  if (line.ok() && settled(line->problem) == settled(problem_of(c.batch, c.cache, c.options))) {
    note->second = to_string(line.value());
    return;
  }
  std::string other = std::move(note->second);
  c.notes.erase(note);
  c.notes[kOtherProblem] = std::move(other);
}

}  // namespace quire::capture
