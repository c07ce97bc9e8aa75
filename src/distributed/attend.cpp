// SPDX-License-Identifier: Apache-2.0
// attend_sharded(): a step of one layer in host memory, whose exchanges are the group's own.
#include "batch/caught.h"
#include "quire/distributed.hpp"
#include "quire/interrupt.hpp"
#include "quire/workspace.hpp"

namespace quire {
namespace {

std::vector<std::int64_t> values_of(const Tensor& t) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(t.shape[0]));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * t.stride[0];
    values[i] =
        t.dtype == DType::i64 ? static_cast<const std::int64_t*>(t.data)[at] : static_cast<const std::int32_t*>(t.data)[at];
  }
  return values;
}

/// The exchanges of a Communicator.
class HostExchange final : public Exchange {
 public:
  explicit HostExchange(Communicator& group) : group_(group), world_(static_cast<std::size_t>(group.world())) {}
  Status all_gather(const void* sent, void* received, std::size_t bytes, void*) override {
    return group_.all_gather({static_cast<const std::byte*>(sent), bytes}, {static_cast<std::byte*>(received), bytes * world_});
  }
  Status all_to_all(const void* sent, void* received, std::size_t bytes, void*) override {
    return group_.all_to_all({static_cast<const std::byte*>(sent), bytes * world_},
                             {static_cast<std::byte*>(received), bytes * world_});
  }

 private:
  Communicator& group_;
  std::size_t world_;
};

Status attend_on_rank(Communicator& group, const ContextShard& shard, const Batch& batch, const KVCache& cache,
                      const Options& options, const ShardedSettings& settings) {
  if (batch.query.memory != Memory::cpu)
    return {Code::unsupported, "attend_sharded: query is on a device, expected host memory; ShardedStep takes device tensors"};
  for (const Tensor* t : {&batch.query_start_loc, &batch.seq_lens})
    if (t->rank != 1 || (t->dtype != DType::i32 && t->dtype != DType::i64))
      return check(batch, cache, options, Depth::metadata).status();
  const std::vector<std::int64_t> starts = values_of(batch.query_start_loc), keys = values_of(batch.seq_lens);
  const HostLengths lengths{starts, keys};
  const Result<std::size_t> bytes = ShardedStep::memory_bytes(shard, batch, cache, options, lengths, settings);
  if (!bytes.ok()) return bytes.status();
  Workspace memory, workspace;
  const Result<ShardedStep> step =
      ShardedStep::make(group, shard, batch, cache, options, lengths, memory.at_least(bytes.value()), settings);
  if (!step.ok()) return step.status();
  HostExchange exchange(group);
  return step->run(exchange, batch, cache, options, workspace.at_least(step->workspace_bytes()));
}

}  // namespace

Status attend_sharded(Communicator& group, const ContextShard& shard, const Batch& batch, const KVCache& cache,
                      const Options& options, const ShardedSettings& settings) {
  Status status;
  try {
    status = attend_on_rank(group, shard, batch, cache, options, settings);
  } catch (const Interrupted&) {
    group.fail("interrupted");
    throw;
  } catch (...) {
    status = batch::caught("attend_sharded");
  }
  // Every rank has found a broken Q-D05 for itself; of anything else the others are told.
  if (!status.ok() && status.code() != Code::rank_failed && status.rule() != "Q-D05") group.fail(status.message());
  return status;
}

}  // namespace quire
