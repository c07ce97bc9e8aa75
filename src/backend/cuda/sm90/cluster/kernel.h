// SPDX-License-Identifier: Apache-2.0
// Cluster decode on Hopper: one new token a request, for calls so short that starting and merging take most of the time.
//
// A cluster of blocks has one segment: one request, one KV head, and the score rows of its group (packed GQA). Warp w of the
// cluster folds every n-th unit of 16 keys, from unit w on, with nothing shared between warps until the end. Three things make
// the kernel short where decode/ is made for long calls. A block knows its segment by its number, so no share is counted. Pages
// are asked for with the lengths, not after them. Partial results are merged in distributed shared memory (merge.h), not through
// the workspace.
//
// Blocks of a cluster are as many whatever the lengths are: plans choose this kernel where the longest request is not much work
// for one cluster (plan/kernels/cuda_sm90.cpp).
#pragma once

#include "backend/cuda/sm90/cluster/code_unit.h"
#include "backend/cuda/sm90/cluster/fold.h"
#include "backend/cuda/sm90/cluster/merge.h"
#include "backend/gpu/draw.h"
#include "semantics/visible_range.h"

namespace quire::cuda::sm90::cluster {

/// Lengths of a request and the page table's entries of a warp's first units, as they come.
struct Request {
  std::int32_t first_token, last_token, seq_len;

  /// IndexViews are plain: i32, one after the other.
  __device__ static Request of(const gpu::AttendArgs& a, int req) {
    const auto* const starts = static_cast<const std::int32_t*>(a.query_start_loc.data);
    return {starts[req], starts[req + 1], static_cast<const std::int32_t*>(a.seq_lens.data)[req]};
  }
  /// One row, whose place exists. (Prepare reports lengths that break a rule; here nothing is read by them.)
  __device__ bool is_one_row(const gpu::AttendArgs& a) const {
    return first_token >= 0 && last_token == first_token + 1 && last_token <= a.num_tokens && seq_len >= 1 &&
           seq_len <= a.block_table.columns * a.page_size;
  }
};

/// First element of this lane's row of the query; null if the group has no such row.
template <typename Products>
__device__ inline const Byte* query_row(const gpu::AttendArgs& a, int kv_head, std::int32_t token) {
  const int g = Products::lane() / 4;
  const std::int64_t at = a.query.strides.row(0, kv_head * a.group + g, token);
  const int bytes = a.query.dtype == DType::fp8_e4m3fn ? 1 : 2;
  return g < a.group ? static_cast<const Byte*>(a.query.data) + at * bytes : nullptr;
}

/// The units of a warp: kFirst of them on their way until the first is folded, kStages from then on.
template <typename Products>
__device__ inline void fold_units(Warp<Products>& rows, typename Products::Unit (&units)[Products::Memory::kStages],
                                  const PlaceWalk& walk, Place places, const KeyCopies<typename Products::Memory>& copies,
                                  std::int32_t first, const Byte* query_row) {
  constexpr int kStages = Products::Memory::kStages, kFirst = Products::Memory::kFirst;
  const gpu::AttendArgs& a = copies.a;
#pragma unroll 1
  for (int i = 0; i < kFirst; ++i) copies.start(units[i], PlaceWalk::of_unit(places, i), first + i * walk.stride);
  const float unit = Products::load_query(rows.query, a, query_row);
  const RowLogits logits = RowLogits::of(a, copies.kv_head, copies.seen.end - 1, unit);
  int stage = 0;
#pragma unroll 1
  for (int ahead = kStages; first < copies.seen.end; ++ahead, first += walk.stride) {
    const bool fills = kFirst < kStages && ahead == kStages;  // stages that are not in use yet
    const std::int32_t next = first + kStages * walk.stride;
    if (ahead % 32 == 0) places = walk.look_up(next);
    if (fills)
      ptx::wait_copies<kFirst - 1>();
    else
      ptx::wait_copies<kStages - 1>();
    __syncwarp();  // copies of all lanes are visible
    rows.fold(units[stage], first, copies.seen, logits);
    __syncwarp();  // the unit is used up
    if (fills) {
#pragma unroll 1
      for (int i = kFirst; i < kStages; ++i) copies.start(units[i], PlaceWalk::of_unit(places, i), first + i * walk.stride);
    }
    copies.start(units[stage], PlaceWalk::of_unit(places, ahead), next);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  ptx::wait_copies<0>();
}

/// Grid: blocks of a cluster x KV heads x requests. A division takes longer than a round trip to L2, so there is none.
struct ClusterArgs {
  gpu::AttendArgs common;
  int blocks = 1, shift = 0;  ///< blocks of a cluster, and log2 of them
  int page_shift = -1;        ///< see PlaceWalk
};

template <typename Products>
__global__ void __launch_bounds__(kThreads, 1) attend_cluster(const __grid_constant__ ClusterArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Memory = typename Products::Memory;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  const gpu::AttendArgs& a = args.common;
  if (a.prepared) {  // a layer: what it reads may still be written
    wait_for_dependencies();
    if (blockIdx.y == 0 && blockIdx.z == 0) gpu::confirm_if_first(a);
  }
  const int blocks = args.blocks, rank = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int req = static_cast<int>(blockIdx.z), warp = static_cast<int>(threadIdx.x) / 32;
  const PlaceWalk walk{a, args.page_shift, req, blocks * kWarps * kUnitKeys};
  std::int32_t first = (rank * kWarps + warp) * kUnitKeys;

  const Request request = Request::of(a, req);
  Place places = walk.look_up(first);  // lengths have not arrived yet, so the walk starts as if there were no window
  const Merge<typename Products::Query, typename Products::Weight, Memory> merge{a,      shared,     kv_head, request.first_token,
                                                                                 blocks, args.shift, rank};
  if (blocks > 1) {
    if (threadIdx.x == 0) merge.expect();
    __syncwarp();
    hopper::arrive_at_cluster();
  }
  const bool exists = request.is_one_row(a);
  const auto sees = semantics::visible_range<std::int32_t>(request.seq_len - 1, a.window);
  const Seen seen = exists ? Seen{sees.begin, sees.end} : Seen{};
  if (seen.begin > 0) {
    first += seen.begin / kUnitKeys * kUnitKeys;
    places = walk.look_up(first);
  }
  Warp<Products> rows;
  fold_units<Products>(rows, shared.of_warp[warp].units, walk, places, KeyCopies<Memory>::of(a, kv_head, seen), first,
                       query_row<Products>(a, kv_head, exists ? request.first_token : 0));
  rows.keep(shared.of_warp[warp].out, shared.states[warp]);
  __syncthreads();
  if (blocks > 1) hopper::wait_at_cluster();  // the mbarriers of all blocks are initialised
  if (exists) merge.run();
  wait_for_dependencies();  // the stream may go on only when this kernel and those ahead have ended
#endif
}

}  // namespace quire::cuda::sm90::cluster
