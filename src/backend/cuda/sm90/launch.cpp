// The entry of cuda_sm90: decode rows by decode.h and others by prefill.h where tensors can be read by tensor copies, what is
// left by cuda_mma's kernels.
#include <cstdint>

#include "backend/cuda/launches.h"
#include "backend/cuda/mma/whole_chunks.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/tensor_maps.h"
#include "plan/device_lists.h"

namespace quire::cuda {
namespace sm90 {
namespace {

static_assert(plan_detail::kPrefillRows == kPair * kPrefillBlockRows && plan_detail::kPrefillTileKeys == kPrefillKeys);

/// Every position's tile has a number of 32 bits, counted over requests and KV heads.
bool fits_row(const gpu::AttendArgs& a) {
  const std::int64_t most_keys = a.block_table.columns * a.page_size + a.num_tokens;
  return a.num_reqs <= kMostReqs && a.num_reqs * (most_keys / kTileKeys + 1) * a.num_kv_heads <= 0x7FFFFFFF;
}

bool is_for_decode(const Plan& plan, std::size_t list) { return plan.lists[list].tile_rows == plan_detail::kShortTileRows; }

bool deals_itself(const gpu::AttendArgs& args, const Plan& plan, std::size_t list) {
  return is_for_decode(plan, list) && takes_boxes(args) && fits_row(args);
}

bool takes_prefill(const gpu::AttendArgs& args, const Plan& plan, std::size_t list) {
  return plan.lists[list].rounded_weights && takes_prefill_boxes(args);
}

/// What prefill.h does not take goes to cuda_mma's kernel, in tiles of its height.
void reshape(gpu::AttendArgs& args, const Plan& plan, std::size_t list) {
  if (!plan.lists[list].rounded_weights || takes_prefill(args, plan, list)) return;
  args.work.tile_rows = plan_detail::kTallTileRows;
  args.work.tile_keys = plan_detail::kMmaTileKeys;
}

cudaError_t launch(const gpu::AttendArgs& args, const Plan& plan, std::size_t list, cudaStream_t stream) {
  const int blocks = static_cast<int>(plan.lists[list].num_blocks);
  gpu::AttendArgs mine = args;
  mine.output_pairs = mma::has_output_pairs(args);
  if (deals_itself(args, plan, list)) {
    CacheMaps maps;
    return encode(maps, args) ? launch_decode(mine, maps, blocks, stream) : cudaErrorInvalidValue;
  }
  if (takes_prefill(args, plan, list)) {
    PrefillMaps maps;
    return encode(maps, args) ? launch_prefill(mine, maps, blocks, stream) : cudaErrorInvalidValue;
  }
  return kMmaEntry.attend(args, plan, list, stream);
}

}  // namespace
}  // namespace sm90

const KernelEntry kSm90Entry = {"cuda_sm90", sm90::launch, sm90::deals_itself, sm90::reshape};

}  // namespace quire::cuda
