// SPDX-License-Identifier: Apache-2.0
// ShardedStep: this rank's batch and its partial results in the memory that the caller gave, planned once; layers attend,
// exchange and merge. Host and device memory differ in how index arrays get there, and in who waits.
#include <cstring>

#include "batch/caught.h"
#include "device/room.h"
#include "device/runtime.h"
#include "device/staging.h"
#include "distributed/partials.h"
#include "distributed/step_rules.h"
#include "quire/distributed.hpp"
#include "quire/interrupt.hpp"
#include "quire/workspace.hpp"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire {
namespace {

using distributed::heads_of;
using distributed::only;
using distributed::PartialLayout;

constexpr std::size_t kAlignment = Workspace::kAlignment;  ///< bytes; tensor copies and vector stores ask for 16

DType partials_dtype(const Batch& batch, const ShardedSettings& settings) {
  if (settings.partials != DType::none) return settings.partials;
  const bool narrow = batch.query.dtype == DType::f16 || batch.query.dtype == DType::bf16;
  return batch.query.memory != Memory::cpu && narrow ? batch.query.dtype : DType::f32;
}

PartialLayout layout_of(const Batch& batch, const KVCache& cache, const ShardedSettings& settings) {
  return {batch.query.shape[0], batch.query.shape[1], v_head_dim(cache), partials_dtype(batch, settings), batch.query.memory};
}

/// Merged rows of one rank's share of the heads, before they are gathered. They have the type of the output, so that the exchange
/// rounds nothing; an 8-bit output is rounded from f32 at the end, as if it had been merged directly.
PartialLayout share_of(const PartialLayout& layout, const Tensor& output, std::int32_t world) {
  PartialLayout share = layout.with_heads(layout.heads / world);
  share.dtype = is_fp8(output.dtype) ? DType::f32 : output.dtype;
  return share;
}

/// Bytes of what comes from other ranks: all of their partial results; or with swap_heads a share of each, then this rank's
/// merged share and those of all.
std::size_t received_bytes(const PartialLayout& layout, const Tensor& output, std::int32_t world,
                           const ShardedSettings& settings) {
  if (!settings.swap_heads) return layout.bytes() * static_cast<std::size_t>(world);
  const std::size_t shares = settings.own_heads ? 0 : static_cast<std::size_t>(world) + 1;
  return layout.bytes() + shares * share_of(layout, output, world).bytes();
}

/// Drops masks of batches whose requests are causal or have one row at the end of its keys, which sees all keys anyway: more
/// kernels take a batch without masks.
void drop_needless_masks(LocalLengths& lengths) {
  if (!lengths.q_begin.empty()) return;
  for (std::size_t s = 0; s < lengths.request.size(); ++s) {
    const std::int64_t rows = lengths.query_start_loc[s + 1] - lengths.query_start_loc[s];
    if ((lengths.causal[s] == 0 && rows != 1) || lengths.seq_lens[s] < rows) return;
  }
  lengths.causal.clear();
}

/// Pieces of a step's memory, in order.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}
  std::byte* take(std::size_t bytes) {
    std::byte* const at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += semantics::round_up(bytes, kAlignment);
    return at;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

Status write(Memory memory, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  if (memory == Memory::cpu) {
    std::memcpy(to, from, bytes);
    return {};
  }
  return device::runtime_of(memory)->copy_to_device(to, from, bytes);
}

/// The index arrays of a rank's batch: in host memory, and where they go.
struct Indices {
  LocalLengths lengths;
  std::int64_t pages_per_request = 0;

  std::int64_t segments() const { return static_cast<std::int64_t>(lengths.seq_lens.size()); }

  /// Sets the tensors of `own`, in the order of memory. Addresses are null if `arena` has none.
  void place(Arena& arena, Memory where, Batch& own) const {
    const auto put = [&](Tensor t) {
      // An array without elements has an address, too.
      t.data = arena.take(static_cast<std::size_t>(std::max<std::int64_t>(t.num_elements() * itemsize(t.dtype), 1)));
      t.memory = where;
      return t;
    };
    const auto array = [&](DType dtype, std::int64_t n) { return put(Tensor::contiguous(nullptr, dtype, n)); };
    own.query_start_loc = array(DType::i64, segments() + 1);
    own.seq_lens = array(DType::i64, segments());
    own.block_table = put(Tensor::contiguous(nullptr, DType::i64, segments(), pages_per_request));
    if (!lengths.causal.empty()) own.causal = array(DType::u8, segments());
    if (!lengths.q_begin.empty()) own.q_begin = array(DType::i64, segments());
    if (!lengths.key_begin.empty()) own.key_begin = array(DType::i64, segments());
  }

  Status fill(const Batch& own, const std::vector<std::int64_t>& table) const {
    const auto put = [](const Tensor& t, const auto& values) {
      return t.present() ? write(t.memory, t.data, values.data(), values.size() * sizeof(values[0])) : Status();
    };
    for (const auto& [tensor, values] :
         {std::pair{&own.query_start_loc, &lengths.query_start_loc}, std::pair{&own.seq_lens, &lengths.seq_lens},
          std::pair{&own.block_table, &table}, std::pair{&own.q_begin, &lengths.q_begin},
          std::pair{&own.key_begin, &lengths.key_begin}})
      if (Status s = put(*tensor, *values); !s.ok()) return s;
    return put(own.causal, lengths.causal);
  }
};

Result<Indices> indices_of(const ContextShard& shard, const Batch& batch, const Options& options, const HostLengths& lengths) {
  Result<LocalLengths> local = local_lengths(shard, lengths.query_start_loc, lengths.seq_lens, options.sliding_window);
  if (!local.ok()) return local.status();
  drop_needless_masks(local.value());
  return Indices{std::move(local).value(), batch.block_table.shape[1]};
}

/// Rows of block_table of each segment's request, in host memory.
Result<std::vector<std::int64_t>> rows_of(Tensor table, const Indices& indices) {
  device::Staging staging;
  if (Status s = staging.stage(table); !s.ok()) return s;
  std::vector<std::int64_t> rows;
  for (const std::int64_t request : indices.lengths.request)
    for (std::int64_t j = 0; j < table.shape[1]; ++j) {
      const std::int64_t at = request * table.stride[0] + j * table.stride[1];
      rows.push_back(table.dtype == DType::i64 ? static_cast<const std::int64_t*>(table.data)[at]
                                               : static_cast<const std::int32_t*>(table.data)[at]);
    }
  return rows;
}

/// Ranks and types that the sizes below rely on.
Status check_shapes(const Batch& batch, const KVCache& cache, const Options& options, const HostLengths& lengths) {
  const Tensor& table = batch.block_table;
  const bool has_table = table.rank == 2 && (table.dtype == DType::i32 || table.dtype == DType::i64) &&
                         table.memory == batch.query.memory && table.shape[0] == batch.seq_lens.shape[0] &&
                         (table.data != nullptr || table.num_elements() == 0);
  if (batch.query.rank != 3 || batch.output.rank != 3 || batch.seq_lens.rank != 1 || batch.query_start_loc.rank != 1 ||
      cache.v.rank < 4 || !has_table)
    if (const Findings findings = check(batch, cache, options, Depth::metadata); !findings.ok()) return findings.status();
  if (batch.query.memory != Memory::cpu && device::runtime_of(batch.query.memory) == nullptr)
    return {Code::unsupported, formatted("query is in {} memory, for which this build has no kernels", name(batch.query.memory))};
  if (!has_table) return {Code::invalid_argument, "block_table: expected [num_reqs, pages] i32 or i64 where query is"};
  const auto said = [](const char* name, std::size_t got, std::int64_t expected) -> Status {
    return {Code::invalid_argument, formatted("lengths.{}: {} values, expected {} as the batch", name, got, expected)};
  };
  if (static_cast<std::int64_t>(lengths.seq_lens.size()) != batch.seq_lens.shape[0])
    return said("seq_lens", lengths.seq_lens.size(), batch.seq_lens.shape[0]);
  if (static_cast<std::int64_t>(lengths.query_start_loc.size()) != batch.query_start_loc.shape[0])
    return said("query_start_loc", lengths.query_start_loc.size(), batch.query_start_loc.shape[0]);
  return {};
}

std::int64_t longest(std::span<const std::int64_t> starts) {
  std::int64_t most = 1;
  for (std::size_t i = 1; i < starts.size(); ++i) most = std::max(most, starts[i] - starts[i - 1]);
  return most;
}

}  // namespace

Result<std::size_t> ShardedStep::memory_bytes(const ContextShard& shard, const Batch& batch, const KVCache& cache,
                                              const Options& options, const HostLengths& lengths,
                                              const ShardedSettings& settings) try {
  if (const Findings findings = check_shard(shard); !findings.ok()) return findings.status();
  if (Status s = check_shapes(batch, cache, options, lengths); !s.ok()) return s;
  const Result<Indices> indices = indices_of(shard, batch, options, lengths);
  if (!indices.ok()) return indices.status();
  const PartialLayout layout = layout_of(batch, cache, settings);
  Arena arena(nullptr);
  Batch own;
  indices->place(arena, batch.query.memory, own);
  arena.take(layout.bytes());
  arena.take(received_bytes(layout, batch.output, shard.world, settings));
  return arena.used();
} catch (...) {
  return batch::caught("ShardedStep");
}

Result<ShardedStep> ShardedStep::make(Communicator& group, const ContextShard& shard, const Batch& batch, const KVCache& cache,
                                      const Options& options, const HostLengths& lengths, std::span<std::byte> memory,
                                      const ShardedSettings& settings) {
  const auto make_on_rank = [&]() -> Result<ShardedStep> {
    try {
      return made_on_rank(group, shard, batch, cache, options, lengths, memory, settings);
    } catch (const Interrupted&) {
      group.fail("interrupted");
      throw;
    } catch (...) {  // the vectors of lengths and tables
      return batch::caught("ShardedStep");
    }
  };
  Result<ShardedStep> made = make_on_rank();
  // Every rank has found a broken Q-D05 for itself; of anything else the others are told.
  const Status& status = made.status();
  if (!status.ok() && status.code() != Code::rank_failed && status.rule() != "Q-D05") group.fail(status.message());
  return made;
}

Result<ShardedStep> ShardedStep::made_on_rank(Communicator& group, const ContextShard& shard, const Batch& batch,
                                              const KVCache& cache, const Options& options, const HostLengths& lengths,
                                              std::span<std::byte> memory, const ShardedSettings& settings) {
  if (Status s = distributed::refuse(group, shard, batch, options, settings); !s.ok()) return s;
  const Result<std::size_t> bytes = memory_bytes(shard, batch, cache, options, lengths, settings);
  if (!bytes.ok()) return bytes.status();
  if (Status room = device::room_fits("memory", memory, bytes.value()); !room.ok()) return room;
  const Result<Indices> indices = indices_of(shard, batch, options, lengths);
  if (!indices.ok()) return indices.status();
  const PartialLayout layout = layout_of(batch, cache, settings);
  ShardedStep step;
  step.shard_ = shard;
  step.settings_ = settings;
  Arena arena(memory.data());
  indices->place(arena, layout.memory, step.own_);
  step.partial_ = arena.take(layout.bytes());
  step.received_ = arena.take(received_bytes(layout, batch.output, shard.world, settings));
  step.own_.query = batch.query;
  step.own_.q_scale = batch.q_scale;
  step.own_.output = only(layout.outs(step.partial_, 1));
  step.own_.lse = only(layout.lses(step.partial_, 1));
  if (Status s = distributed::check_tensors(step.own_, batch, cache, options, layout, step.received_, settings, shard.world);
      !s.ok())
    return s;
  if (settings.check_ranks)
    if (Status s = distributed::agree(group, shard, batch, cache, options, lengths, layout, settings); !s.ok()) return s;
  const Result<std::vector<std::int64_t>> table = rows_of(batch.block_table, indices.value());
  if (!table.ok()) return table.status();
  if (Status s = indices->fill(step.own_, table.value()); !s.ok()) return s;
  PlanSettings how;
  how.num_threads = settings.executor != nullptr ? settings.executor->num_threads() : 0;
  if (layout.memory != Memory::cpu) {
    how.max_query_len = longest(indices->lengths.query_start_loc);
    how.max_seq_len = 1;
    for (const std::int64_t n : indices->lengths.seq_lens) how.max_seq_len = std::max(how.max_seq_len, n);
  }
  Options own_options = options;
  if (shard.rank != 0) own_options.sinks = Tensor{};
  Result<Plan> made = quire::plan(step.own_, cache, own_options, how);
  if (!made.ok()) return made.status();
  step.plan_ = std::move(made).value();
  return step;
}

Status ShardedStep::exchange_and_merge(Exchange& exchange, const Batch& batch, void* stream) const {
  const std::int64_t world = shard_.world;
  const PartialLayout all{own_.output.shape[0], own_.output.shape[1], own_.output.shape[2], own_.output.dtype,
                          own_.output.memory};
  const PartialLayout own = all.with_heads(all.heads / world);
  const MergeOptions how{.executor = settings_.executor, .stream = stream, .output_scale = batch.output_scale};
  if (!settings_.swap_heads) {
    if (Status s = exchange.all_gather(partial_, received_, all.bytes(), stream); !s.ok()) return s;
    Tensor outs = all.outs(received_, world), lses = all.lses(received_, world);
    if (settings_.own_heads) {
      outs = heads_of(outs, 2, shard_.rank * own.heads, own.heads);
      lses = heads_of(lses, 2, shard_.rank * own.heads, own.heads);
    }
    return merge_many(outs, lses, batch.output, batch.lse, how);
  }
  if (Status s = exchange.all_to_all(partial_, received_, own.bytes(), stream); !s.ok()) return s;
  const Tensor outs = own.outs(received_, world), lses = own.lses(received_, world);
  if (settings_.own_heads) return merge_many(outs, lses, batch.output, batch.lse, how);
  const PartialLayout share = share_of(all, batch.output, shard_.world);
  std::byte* const mine = received_ + all.bytes();
  std::byte* const shares = mine + share.bytes();
  const MergeOptions plain{.executor = settings_.executor, .stream = stream};
  if (Status s = merge_many(outs, lses, only(share.outs(mine, 1)), only(share.lses(mine, 1)), plain); !s.ok()) return s;
  if (Status s = exchange.all_gather(mine, shares, share.bytes(), stream); !s.ok()) return s;
  for (std::int64_t k = 0; k < world; ++k) {  // a stack of one part is a copy, or the rounding of an 8-bit output
    std::byte* const from = shares + k * static_cast<std::int64_t>(share.bytes());
    const Tensor lse = batch.lse.present() ? heads_of(batch.lse, 1, k * own.heads, own.heads) : Tensor{};
    const Tensor out = heads_of(batch.output, 1, k * own.heads, own.heads);
    if (Status s = merge_many(share.outs(from, 1), share.lses(from, 1), out, lse, how); !s.ok()) return s;
  }
  return {};
}

Status ShardedStep::run(Exchange& exchange, const Batch& batch, const KVCache& cache, const Options& options,
                        std::span<std::byte> workspace, void* stream) const {
  Batch own = own_;
  own.query = batch.query;
  own.q_scale = batch.q_scale;
  Options own_options = options;
  if (shard_.rank != 0) own_options.sinks = Tensor{};  // one logit in the denominator: one rank counts it
  if (Status s = attend(plan_, own, cache, own_options, workspace, {.executor = settings_.executor, .stream = stream}); !s.ok())
    return s;
  return exchange_and_merge(exchange, batch, stream);
}

}  // namespace quire
