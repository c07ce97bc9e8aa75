// SPDX-License-Identifier: Apache-2.0
// The entry of cuda_sm90: decode rows by decode/ and others by prefill/, where tensors can be read by tensor copies.
#include <algorithm>
#include <cstdint>

#include "backend/cuda/launches.h"
#include "backend/cuda/sm90/cluster/sizes.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/tensor_maps.h"
#include "backend/cuda/tile/whole_chunks.h"
#include "plan/kernels/cuda_sm90.h"

namespace quire::cuda {
namespace sm90 {
namespace {

constexpr plan_detail::Sm90Tuning kTuning = plan_detail::kSm90;
static_assert(kTuning.cluster_unit_keys == cluster::kUnitKeys && kTuning.most_cluster == cluster::kMostBlocks);
static_assert(kTuning.prefill_pair == kPair && kTuning.most_out_dims == kMostOutDims);

/// Every iteration of decode/scheduler.h has a number of 32 bits.
bool fits_row(const gpu::AttendArgs& a) {
  const std::int64_t tiles = (a.block_table.columns * a.page_size + a.num_tokens) / kTileKeys + 1;
  const std::int64_t pieces = a.work.split_keys > 0 ? tiles * kTileKeys / a.work.split_keys + 2 : 1;
  const std::int64_t rows = std::min<std::int64_t>(a.work.max_rows, std::int64_t{a.num_tokens} * a.group);
  const std::int64_t slices = std::min<std::int64_t>(a.num_reqs * ((rows - 1) / a.work.tile_rows + 1),
                                                     std::int64_t{a.num_tokens} * a.group / a.work.tile_rows + a.num_reqs);
  constexpr std::int64_t kMost = 0x7FFFFFFF;
  return tiles + pieces <= kMost && slices <= kMost && slices * (tiles + pieces) <= kMost / a.num_kv_heads;
}

/// Few instructions read it: a short call waits for every one of those before its first copy.
bool is_plain(const semantics::IndexView& view) { return view.data == nullptr || (view.dtype == DType::i32 && view.stride == 1); }
bool has_plain_lengths(const gpu::AttendArgs& a) {
  return is_plain(a.query_start_loc) && is_plain(a.seq_lens) && is_plain(a.cached_lens);
}
bool has_plain_table(const gpu::AttendArgs& a) {
  return is_plain({a.block_table.data, a.block_table.dtype, a.block_table.column_stride});
}

/// Cached keys in chunks of 16 bytes, whose places in a page fit 32 bits, and nothing that cluster decode has no code for.
bool takes_clusters(const gpu::AttendArgs& a) {
  constexpr std::int64_t kMost = 0x7FFFFFFF;
  const std::int64_t unit = 2 * kTuning.cluster_unit_keys;
  return a.cached_lens.data == nullptr && !is_packed(a) && has_plain_lengths(a) && has_plain_table(a) &&
         tile::has_whole_chunks(a) && a.cache_k.strides.token <= kMost / unit && a.cache_v.strides.token <= kMost / unit &&
         a.block_table.columns * a.page_size <= kMost / 2;
}

/// Tiles of two KV heads have no code for scales, nor for this step's rows outside tiles, where scales would have them.
bool suits_heads(const gpu::AttendArgs& a, const DeviceList& list) {
  return list.heads == 1 || (a.k_scale.data == nullptr && a.v_scale.data == nullptr);
}

bool reads(const gpu::AttendArgs& args, const DeviceList& list) {
  if (list.role == Role::decode_cluster) return takes_clusters(args);
  return list.role == Role::prefill ? takes_prefill_boxes(args) : takes_boxes(args) && fits_row(args) && suits_heads(args, list);
}

void divide(Served& prefill) {
  prefill.args.work.division.all_units = static_cast<std::int32_t>(prefill.list.num_blocks);
  prefill.args.work.division.long_weight = kTuning.prefill_weight(prefill.args.head_dim);
}

/// Decode keeps memory busy and prefill the tensor cores. In this order, each launch starting before the one ahead of it is done:
/// prefill on the SMs that are its, decode on those that it leaves, prefill again on those that decode leaves. A
/// block of either fills what the other would need, so none of them shares an SM.
Order order(Served& decode, Served& prefill) {
  if (!prefill.list.beside) return Order::trailing;
  divide(prefill);
  decode.args.work.division = prefill.args.work.division;
  return Order::divided;
}

cudaError_t launch(const gpu::GenericArgs& args, const DeviceList& list, Turn turn, cudaStream_t stream) {
  const int blocks = static_cast<int>(list.num_blocks);
  HopperArgs mine{args, turn};
  mine.common.output_pairs = tile::has_output_pairs(args);
  mine.plain_lengths = has_plain_lengths(args);
  mine.plain_table = has_plain_table(args);
  if (list.role == Role::decode_cluster) return launch_cluster(mine.common, static_cast<int>(list.cluster), stream);
  if (list.role != Role::prefill) {
    CacheMaps maps;
    if (!encode(maps, args)) return cudaErrorInvalidValue;
    if (list.heads == 2) return launch_decode_head_pairs(mine, maps, blocks, stream);
    return (is_packed(args) ? launch_decode_packed : launch_decode)(mine, maps, blocks, stream);
  }
  PrefillMaps maps;
  if (!encode(maps, args)) return cudaErrorInvalidValue;
  const bool codes = is_fp8(args.cache_k.dtype);
  if (list.masks) return launch_prefill_masked(mine, maps, blocks, stream);
  if (kTuning.has_wide_dims(args.head_dim, args.v_head_dim)) return launch_prefill_wide(mine, maps, blocks, stream);
  if (is_packed(args)) return (codes ? launch_prefill_packed_codes : launch_prefill_packed)(mine, maps, blocks, stream);
  return (codes ? launch_prefill_codes : launch_prefill)(mine, maps, blocks, stream);
}

}  // namespace
}  // namespace sm90

const KernelEntry kSm90Entry = {.row = &plan_detail::rows::cuda_sm90,
                                .attend = sm90::launch,
                                .reads = sm90::reads,
                                .order = sm90::order,
                                .divide = sm90::divide};

}  // namespace quire::cuda
