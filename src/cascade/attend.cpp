// SPDX-License-Identifier: Apache-2.0
// attend_cascade(): the levels, one after the other, and one merge, front to back.
//
// The workspace holds, in this order: partial outputs and their lse of all levels; for each level, its index tensors (on a GPU)
// and the workspace of its plan.
#include <algorithm>

#include "attention/beside.h"
#include "batch/caught.h"
#include "cascade/facts.h"
#include "cascade/levels.h"
#include "device/room.h"
#include "device/runtime.h"
#include "quire/cascade.hpp"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire {
namespace {

constexpr std::size_t kAlignment = 256;  // alignment of each piece of the workspace

std::size_t aligned(std::size_t bytes) { return semantics::round_up(bytes, kAlignment); }

struct Sizes {
  std::size_t outs, lses;  // bytes of one level's partial outputs and log-sum-exps
};
Sizes sizes_of(const Cascade& c) noexcept {
  const auto rows = static_cast<std::size_t>(c.num_tokens * c.problem.num_q_heads);
  const auto row_bytes = static_cast<std::size_t>(c.problem.out_dim() * itemsize(c.partials));
  return {rows * row_bytes, rows * sizeof(float)};
}

/// The pieces of a workspace for one batch.
class Pieces {
 public:
  Pieces(const Cascade& c, const Batch& batch, std::span<std::byte> workspace) : c_(c), batch_(batch) {
    const Sizes sizes = sizes_of(c);
    std::byte* at = workspace.data();
    const std::int64_t rows = cascade::merged_rows(c, batch), heads = c.problem.num_q_heads;
    outs_ = placed(Tensor::contiguous(at, c.partials, c.num_parts(), rows, heads, c.problem.out_dim()));
    at += aligned(c.levels.size() * sizes.outs);
    lses_ = placed(Tensor::contiguous(at, DType::f32, c.num_parts(), rows, heads));
    at += aligned(c.levels.size() * sizes.lses);
    for (const CascadeLevel& level : c.levels) {
      index_.push_back(c.memory == Memory::cpu ? nullptr : at);
      if (c.memory != Memory::cpu) at += aligned(cascade::index_bytes(level));
      workspaces_.emplace_back(at, workspace_bytes(level.plan));
      at += aligned(workspace_bytes(level.plan));
    }
  }

  const Tensor& outs() const { return outs_; }
  const Tensor& lses() const { return lses_; }
  std::byte* index(std::size_t level) const { return index_[level]; }
  std::span<std::byte> workspace(std::size_t level) const { return workspaces_[level]; }
  Batch batch(std::size_t level) const {
    return cascade::batch_of(c_.levels[level], batch_, {index_[level], c_.memory}, part(outs_, level), part(lses_, level));
  }

 private:
  Tensor placed(Tensor t) const {
    t.memory = c_.memory;
    return t;
  }
  static Tensor part(Tensor t, std::size_t level) {
    t.data = static_cast<std::byte*>(t.data) + static_cast<std::int64_t>(level) * t.stride[0] * itemsize(t.dtype);
    --t.rank;
    std::copy(t.shape.begin() + 1, t.shape.end(), t.shape.begin());
    std::copy(t.stride.begin() + 1, t.stride.end(), t.stride.begin());
    return t;
  }

  const Cascade& c_;
  const Batch& batch_;
  Tensor outs_, lses_;
  std::vector<std::byte*> index_;
  std::vector<std::span<std::byte>> workspaces_;
};

Status other_batch(const char* what) {
  return {Code::invalid_argument, formatted("attend_cascade: {} than when the cascade was planned; plan again", what)};
}

/// Refuses a batch other than the planned one, which the levels cannot notice. On a GPU lengths and tables are not read.
Status same_batch(const Cascade& c, const Batch& batch, const KVCache& cache, const Options& options) {
  if (batch.query.memory != c.memory)
    return {Code::invalid_argument, formatted("attend_cascade: planned for {} memory, but query is in {} memory", name(c.memory),
                                              name(batch.query.memory))};
  if (batch.query.shape[0] != c.num_tokens) return other_batch("query has other rows");
  Problem now = problem_of(batch, cache, options);
  if (c.memory != Memory::cpu) now.reqs = c.problem.reqs, now.num_padding_rows = c.problem.num_padding_rows;
  now.lse = c.problem.lse;
  if (c.memory == Memory::cpu && cascade::digest_of(now, cascade::table_of(batch, now)) != c.digest)
    return other_batch("lengths or tables are others");
  if (!(now == c.problem)) return other_batch("types, sizes or options are others");
  return {};
}

/// The rules of the whole batch, once: levels are sound if it is.
Status checked(const Cascade& c, const Batch& batch, const KVCache& cache, const Options& options,
               std::span<std::byte> workspace) {
  const Depth depth = c.memory == Memory::cpu ? Depth::tables : Depth::metadata;
  if (const Findings findings = check(batch, cache, options, depth); !findings.ok()) return findings.status();
  if (Status s = same_batch(c, batch, cache, options); !s.ok()) return s;
  if (Status room = device::room_fits("workspace", workspace, workspace_bytes(c)); !room.ok()) return room;
  return check_workspace(batch, cache, options, workspace).status();
}

/// Index tensors of all levels to the device.
Status place_index(const Cascade& c, const Pieces& pieces) {
  const device::Runtime* runtime = device::runtime_of(c.memory);
  if (runtime == nullptr) return {};
  for (std::size_t l = 0; l < c.levels.size(); ++l) {
    std::vector<std::byte> bytes(cascade::index_bytes(c.levels[l]));
    cascade::copy_index(c.levels[l], bytes.data());
    if (Status s = runtime->copy_to_device(pieces.index(l), bytes.data(), bytes.size()); !s.ok()) return s;
  }
  return {};
}

/// Level `l` and own keys, at the same time.
Status run_beside(const Cascade& c, std::size_t l, const Pieces& pieces, const KVCache& cache, const Options& options,
                  const AttendOptions& how) {
  const std::size_t last = c.levels.size() - 1;
  const Batch shared = pieces.batch(l), own = pieces.batch(last);
  const Options of_shared = cascade::options_of(c.levels[l], options), of_own = cascade::options_of(c.levels[last], options);
  return attention::attend_beside({c.levels[l].plan, shared, cache, of_shared, pieces.workspace(l)},
                                  {c.levels[last].plan, own, cache, of_own, pieces.workspace(last)}, how);
}

Status run_levels(const Cascade& c, const Pieces& pieces, const KVCache& cache, const Options& options,
                  const AttendOptions& attend_options) {
  std::vector<RowCount> counts;
  AttendOptions how = attend_options;
  if (attend_options.rows != nullptr) attend_options.rows->clear(), how.rows = &counts;
  const auto waits = std::find_if(c.levels.begin(), c.levels.end(), [](const CascadeLevel& level) { return level.beside; });
  for (std::size_t l = 0; l < c.levels.size(); ++l) {
    const CascadeLevel& level = c.levels[l];
    if (level.beside) continue;
    if (level.own && waits != c.levels.end())
      return run_beside(c, static_cast<std::size_t>(waits - c.levels.begin()), pieces, cache, options, how);
    const Batch part = pieces.batch(l);
    const Options own = cascade::options_of(level, options);
    if (Status s = attention::attend_part({level.plan, part, cache, own, pieces.workspace(l)}, how); !s.ok()) return s;
    if (attend_options.rows != nullptr) attend_options.rows->insert(attend_options.rows->end(), counts.begin(), counts.end());
  }
  return {};
}

Status run(const Cascade& c, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
           const AttendOptions& how) {
  if (Status s = checked(c, batch, cache, options, workspace); !s.ok()) return s;
  const Pieces pieces(c, batch, workspace);
  if (!how.prepared)
    if (Status s = place_index(c, pieces); !s.ok()) return s;
  if (Status s = run_levels(c, pieces, cache, options, how); !s.ok()) return s;
  const std::int64_t rows = cascade::merged_rows(c, batch);
  return merge_many(pieces.outs(), pieces.lses(), cascade::rows_of(batch.output, rows), cascade::rows_of(batch.lse, rows),
                    {.executor = how.executor, .stream = how.stream, .output_scale = batch.output_scale});
}

Status prepared(const Cascade& c, const Batch& batch, const KVCache& cache, const Options& options,
                std::span<std::byte> workspace, const AttendOptions& how) {
  if (Status s = checked(c, batch, cache, options, workspace); !s.ok()) return s;
  if (c.memory == Memory::cpu) return {};  // a CPU prepares nothing
  const Pieces pieces(c, batch, workspace);
  if (Status s = place_index(c, pieces); !s.ok()) return s;
  for (std::size_t l = 0; l < c.levels.size(); ++l)
    if (Status s = prepare(c.levels[l].plan, pieces.batch(l), cache, cascade::options_of(c.levels[l], options),
                           pieces.workspace(l), how);
        !s.ok())
      return s;
  return {};
}

Status statuses(const Cascade& c, const Batch& batch, const KVCache& cache, const Options& options,
                std::span<std::byte> workspace, const AttendOptions& how) {
  const Pieces pieces(c, batch, workspace);
  for (std::size_t l = 0; l < c.levels.size(); ++l)
    if (Status s = attend_status(c.levels[l].plan, pieces.batch(l), cache, cascade::options_of(c.levels[l], options),
                                 pieces.workspace(l), how);
        !s.ok())
      return s;
  return {};
}

/// `levels` unless there are none: then `plain`, which is attend() and what goes with it.
template <class Levels, class Plain>
Status either(Levels&& levels, Plain&& plain, const Cascade& c, const Batch& batch, const KVCache& cache, const Options& options,
              std::span<std::byte> workspace, const AttendOptions& how) {
  if (c.levels.empty()) return plain(c.plain, batch, cache, options, workspace, how);
  try {
    return levels(c, batch, cache, options, workspace, how);
  } catch (...) {
    return batch::caught("attend_cascade");
  }
}

}  // namespace

std::size_t workspace_bytes(const Cascade& c) noexcept {
  if (c.levels.empty()) return workspace_bytes(c.plain);
  const Sizes sizes = sizes_of(c);
  std::size_t bytes = aligned(c.levels.size() * sizes.outs) + aligned(c.levels.size() * sizes.lses);
  for (const CascadeLevel& level : c.levels)
    bytes += aligned(workspace_bytes(level.plan)) + (c.memory == Memory::cpu ? 0 : aligned(cascade::index_bytes(level)));
  return bytes;
}

Status prepare_cascade(const Cascade& cascade, const Batch& batch, const KVCache& cache, const Options& options,
                       std::span<std::byte> workspace, const AttendOptions& attend_options) {
  return either(prepared, prepare, cascade, batch, cache, options, workspace, attend_options);
}

Status attend_cascade(const Cascade& cascade, const Batch& batch, const KVCache& cache, const Options& options,
                      std::span<std::byte> workspace, const AttendOptions& attend_options) {
  return either(run, attend, cascade, batch, cache, options, workspace, attend_options);
}

Status cascade_status(const Cascade& cascade, const Batch& batch, const KVCache& cache, const Options& options,
                      std::span<std::byte> workspace, const AttendOptions& attend_options) {
  return either(statuses, attend_status, cascade, batch, cache, options, workspace, attend_options);
}

}  // namespace quire
