// SPDX-License-Identifier: Apache-2.0
// The entry of cuda_sm90_mla: latent caches that can be read by tensor copies, whose values are views of the keys.
#include "backend/cuda/launches.h"
#include "backend/cuda/sm90/mla/instance.h"
#include "backend/cuda/sm90/tensor_maps.h"
#include "backend/cuda/tile/whole_chunks.h"
#include "plan/kernels/cuda_sm90_mla.h"

namespace quire::cuda {
namespace sm90 {
namespace {

constexpr plan_detail::MlaTuning kTuning = plan_detail::kMla;
static_assert(kTuning.key_dim == kMlaKeyDim && kTuning.value_dim == kMlaValueDim);
static_assert(kTuning.tile_rows == kMlaRows && kTuning.tile_keys == kTileKeys);
static_assert(kTuning.copied_tokens == kMlaPieceKeys);

/// Row of a token in V begins where its row in K does.
bool values_are_keys(const gpu::AttendArgs& a) {
  const semantics::KvStrides &k = a.cache_k.strides, &v = a.cache_v.strides;
  return a.cache_k.data == a.cache_v.data && k.page == v.page && k.token == v.token && v.dim == 1 && v.x >= a.v_head_dim;
}

bool reads(const gpu::AttendArgs& args, const DeviceList&) {
  return args.cached_lens.data == nullptr && values_are_keys(args) && takes_latent_boxes(args);
}

cudaError_t launch(const gpu::GenericArgs& args, const DeviceList& list, Turn, cudaStream_t stream) {
  LatentMaps maps{};
  if (!encode(maps, args)) return cudaErrorInvalidValue;
  gpu::AttendArgs mine = args;
  mine.head_dim = args.v_head_dim;
  mine.output_pairs = tile::has_whole_chunks({args.output, args.output_dtype, args.output_strides}, args.v_head_dim);
  return launch_mla(mine, maps, static_cast<int>(list.num_blocks), stream);
}

}  // namespace
}  // namespace sm90

const KernelEntry kSm90MlaEntry = {.row = &plan_detail::rows::cuda_sm90_mla, .attend = sm90::launch, .reads = sm90::reads};

}  // namespace quire::cuda
