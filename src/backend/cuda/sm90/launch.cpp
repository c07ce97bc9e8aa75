// SPDX-License-Identifier: Apache-2.0
// The entry of cuda_sm90: decode rows by decode/ and others by prefill/ where tensors can be read by tensor copies, what is
// left by cuda_mma's kernels, and by cuda_generic's where that has no instance.
#include <algorithm>
#include <cstdint>

#include "backend/cuda/launches.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/tensor_maps.h"
#include "backend/cuda/tile/whole_chunks.h"
#include "plan/device_lists.h"

namespace quire::cuda {
namespace sm90 {
namespace {

static_assert(plan_detail::kMmaTileKeys == kTileKeys && plan_detail::kSm90WideShare == kWideShare &&
              plan_detail::kSm90WholeShare == kWholeShare);
using plan_detail::is_sm90_decode;

static_assert(plan_detail::kPrefillRows == kPair * kPrefillBlockRows);
static_assert(plan_detail::prefill_tile_keys(128) == prefill_keys(128) &&
              plan_detail::prefill_tile_keys(256) == prefill_keys(256));

/// Every place in the row of decode/scheduler.h has a number of 32 bits.
bool fits_row(const gpu::AttendArgs& a) {
  const std::int64_t tiles = (a.block_table.columns * a.page_size + a.num_tokens) / kTileKeys + 1;
  const std::int64_t pieces = a.work.split_keys > 0 ? tiles * kTileKeys / a.work.split_keys + 2 : 1;
  const std::int64_t rows = std::min<std::int64_t>(a.work.max_rows, std::int64_t{a.num_tokens} * a.group);
  const std::int64_t slices = std::min<std::int64_t>(a.num_reqs * ((rows - 1) / a.work.tile_rows + 1),
                                                     std::int64_t{a.num_tokens} * a.group / a.work.tile_rows + a.num_reqs);
  constexpr std::int64_t kMost = 0x7FFFFFFF;
  return tiles + pieces <= kMost && slices <= kMost && slices * (tiles + pieces) <= kMost / a.num_kv_heads;
}

/// The kernel that serves a list.
enum class Server { decode, prefill, mma, generic };

Server server_of(const gpu::AttendArgs& args, const Plan& plan, std::size_t list) {
  if (is_sm90_decode(plan.lists[list]) && takes_boxes(args) && fits_row(args)) return Server::decode;
  if (plan.lists[list].rounded_weights && takes_prefill_boxes(args)) return Server::prefill;
  const bool mma = plan_detail::has_mma_instance(args.query.dtype, args.cache_k.dtype, args.head_dim);
  return mma ? Server::mma : Server::generic;
}

/// Decode keeps memory busy and prefill the tensor cores. In this order, each launch starting before the one ahead of it is done:
/// prefill on the SMs that are its, decode on those that it leaves, prefill again on those that decode leaves. A
/// block of either fills what the other would need, so none of them shares a SM.
Order order(std::span<gpu::AttendArgs> args, const Plan& plan) {
  if (server_of(args[0], plan, 0) != Server::decode || server_of(args[1], plan, 1) != Server::prefill) return Order::in_turn;
  if (!plan.lists[1].beside) return Order::trailing;
  // Cycles that an H200 took as long for (docs/kernels/sm90_prefill.md, "Beside decode").
  gpu::Division& division = args[1].work.division;
  division.all_units = static_cast<std::int32_t>(plan.lists[1].num_blocks);
  division.long_weight = args[1].head_dim == 256 ? 3 : 5;
  args[0].work.division = division;
  return Order::divided;
}

bool deals_itself(const gpu::AttendArgs& args, const Plan& plan, std::size_t list) {
  return server_of(args, plan, list) == Server::decode;
}

/// The tiles of cuda_mma and cuda_generic, for what is left to them.
void reshape(gpu::AttendArgs& args, const Plan& plan, std::size_t list) {
  switch (server_of(args, plan, list)) {
    case Server::decode:
    case Server::prefill: return;
    case Server::mma:
      if (plan.lists[list].tile_rows == plan_detail::kShortTileRows) return;
      if (is_sm90_decode(plan.lists[list]))
        args.work.max_partials /= static_cast<std::int32_t>(plan_detail::kTallTileRows) / args.work.tile_rows;
      args.work.tile_rows = plan_detail::kTallTileRows;
      args.work.tile_keys = plan_detail::kMmaTileKeys;
      return;
    case Server::generic:
      args.work.tile_rows = std::min<std::int32_t>(args.work.tile_rows, plan_detail::kGenericTileRows);
      args.work.tile_keys = plan_detail::kGenericTileKeys;
      return;
  }
}

/// Few instructions read it: a short call waits for every one of those before its first copy.
bool is_plain(const semantics::IndexView& view) { return view.data == nullptr || (view.dtype == DType::i32 && view.stride == 1); }

cudaError_t launch(const gpu::AttendArgs& args, const Plan& plan, std::size_t list, cudaStream_t stream) {
  const int blocks = static_cast<int>(plan.lists[list].num_blocks);
  gpu::AttendArgs mine = args;
  mine.output_pairs = tile::has_output_pairs(args);
  mine.plain_lengths = is_plain(args.query_start_loc) && is_plain(args.seq_lens) && is_plain(args.cached_lens);
  mine.plain_table = is_plain({args.block_table.data, args.block_table.dtype, args.block_table.column_stride});
  switch (server_of(args, plan, list)) {
    case Server::decode: {
      CacheMaps maps;
      if (!encode(maps, args)) return cudaErrorInvalidValue;
      return (is_packed(args) ? launch_decode_packed : launch_decode)(mine, maps, blocks, stream);
    }
    case Server::prefill: {
      PrefillMaps maps;
      if (!encode(maps, args)) return cudaErrorInvalidValue;
      const bool codes = is_fp8(args.cache_k.dtype);
      if (is_packed(args)) return (codes ? launch_prefill_packed_codes : launch_prefill_packed)(mine, maps, blocks, stream);
      return (codes ? launch_prefill_codes : launch_prefill)(mine, maps, blocks, stream);
    }
    case Server::mma: return kMmaEntry.attend(args, plan, list, stream);
    case Server::generic: return kGenericEntry.attend(args, plan, list, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace sm90

const KernelEntry kSm90Entry = {"cuda_sm90", sm90::launch, sm90::order, sm90::deals_itself, sm90::reshape};

}  // namespace quire::cuda
