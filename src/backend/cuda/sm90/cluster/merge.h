// SPDX-License-Identifier: Apache-2.0
// The end of a segment: the partial results of a block's warps become one, and those of the cluster's blocks become rows.
//
// Each block finishes an equal share of the rows' quads (four dims). It gets them from all blocks by stores to distributed shared
// memory that count on a barrier there (st.async, PTX ISA 8.1): nobody fences, and no block waits for a barrier of the cluster.
#pragma once

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/cluster/memory.h"
#include "backend/cuda/tile/finish.h"
#include "backend/gpu/break_call.h"

namespace quire::cuda::sm90::cluster {

/// Four floats, or two, to where `to` is in block `rank`; counts their bytes on that block's barrier.
__device__ inline void send(float4* to, const float4& x, hopper::Barrier* barrier, int rank) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   hopper::address_in_cluster(to, rank)),
               "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(hopper::address_in_cluster(barrier, rank))
               : "memory");
}
__device__ inline void send(RowState* to, const RowState& x, hopper::Barrier* barrier, int rank) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                   hopper::address_in_cluster(to, rank)),
               "f"(x.max), "f"(x.sum), "r"(hopper::address_in_cluster(barrier, rank))
               : "memory");
}

/// `parts` partial results of one row, at most kMost, as one. All of them are asked for at once. A part of weight 0 may hold
/// anything.
template <int kMost, typename State, typename Out>
__device__ inline float4 merged(RowState& all, int parts, State&& state_of, Out&& out_of) {
  RowState states[kMost];
  float4 outs[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    states[i] = i < parts ? state_of(i) : RowState{-INFINITY, 0.0f};
    outs[i] = i < parts ? out_of(i) : float4{};
  }
  all = {-INFINITY, 0.0f};
#pragma unroll
  for (int i = 0; i < kMost; ++i) all.max = fmaxf(all.max, states[i].max);
  float4 sum{};
  const auto add = [](float& total, float x, float weight) { total = weight != 0.0f ? total + x * weight : total; };
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const float weight = semantics::weight_in<ptx::Exp2>(states[i].max, all.max);
    all.sum += weight * states[i].sum;
    add(sum.x, outs[i].x, weight), add(sum.y, outs[i].y, weight), add(sum.z, outs[i].z, weight), add(sum.w, outs[i].w, weight);
  }
  return sum;
}

/// T: type of the output that most calls have. Weight: of the softmax weights.
template <typename T, typename Weight, typename Memory>
struct Merge {
  using Shared = typename Memory::Shared;
  static constexpr int kQuads = Memory::kQuads;
  static_assert(kRows * kQuads <= kThreads, "a thread has one quad");

  const gpu::AttendArgs& a;
  Shared& shared;
  const int kv_head;
  const std::int32_t token;
  const int blocks, shift, rank;  ///< size of the cluster, log2 of it, and this block's index in it

  __device__ int quads() const { return a.group * kQuads; }
  /// Pieces that block `of` finishes: every blocks-th, from piece `of` on.
  __device__ int pieces(int of) const { return (quads() / kPieceQuads - of + blocks - 1) >> shift; }
  __device__ int share() const { return pieces(0) * kPieceQuads; }
  __device__ int mine() const { return pieces(rank) * kPieceQuads; }
  /// A quad's owner is the block that finishes the quad; its number is its index among the owner's quads.
  __device__ int owner_of(int quad) const { return quad / kPieceQuads & (blocks - 1); }
  __device__ int number_of(int quad) const { return (quad / kPieceQuads >> shift) * kPieceQuads + quad % kPieceQuads; }
  __device__ int quad_of(int number) const { return (number / kPieceQuads << shift | rank) * kPieceQuads + number % kPieceQuads; }

  /// Sets the barrier's count to the bytes that the cluster will send here. Must run before a block sends.
  __device__ void expect() const {
    hopper::init_barrier(&shared.all_received, 1);
    hopper::fence_barrier_init();
    const auto bytes = static_cast<std::uint32_t>(mine() * sizeof(float4) + a.group * sizeof(RowState));
    hopper::arrive_and_expect(&shared.all_received, static_cast<std::uint32_t>(blocks) * bytes);
  }

  template <tile::Output kOutput>
  __device__ void write(int quad, const RowState& state, const float4& sum) const {
    tile::Item item;
    item.kv_head = kv_head;
    item.lengths.first_token = token;
    const int row = quad / kQuads, dim = quad % kQuads * 4;
    const tile::OutputRow end =
        tile::finish_row<kOutput>(a, item, 0, row, tile::natural_state<Weight>(state.max, state.sum), dim == 0);
    tile::store_pair<T, kOutput>(a, end, dim, sum.x, sum.y);
    tile::store_pair<T, kOutput>(a, end, dim + 2, sum.z, sum.w);
    if (quad == 0) atomicAdd(&a.outcome->rows_written, static_cast<unsigned long long>(a.group));
  }

  /// Waits for the prepare kernel; false if that kernel refused the call.
  __device__ bool is_sound() const {
    wait_for_dependencies();
    return !gpu::is_refused(a);
  }

  /// The partial result of the block's warps.
  __device__ float4 of_block(int quad, RowState& state) const {
    const int row = quad / kQuads, dim = quad % kQuads * 4;
    const float4 sum = merged<kWarps>(
        state, kWarps, [&](int i) { return shared.states[i][row]; },
        [&](int i) { return *reinterpret_cast<const float4*>(&shared.of_warp[i].out[row][dim]); });
    const float scale = a.v_scale.at(kv_head, 1.0f);
    return {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
  }
  /// Sends the quad to its owner. The row's first `blocks` threads send the row's state, each to one block.
  __device__ void send_to_cluster(int quad, const RowState& state, const float4& sum) const {
    static_assert(kQuads >= kMostBlocks);
    send(&shared.received[rank * share() + number_of(quad)], sum, &shared.all_received, owner_of(quad));
    const int to = quad % kQuads;
    if (to < blocks) send(&shared.received_states[rank][quad / kQuads], state, &shared.all_received, to);
  }
  __device__ float4 of_cluster(int i, int quad, RowState& state) const {
    return merged<kMostBlocks>(
        state, blocks, [&](int from) { return shared.received_states[from][quad / kQuads]; },
        [&](int from) { return shared.received[from * share() + i]; });
  }

  __device__ void run() const {
    const int i = static_cast<int>(threadIdx.x);
    RowState state{};
    float4 sum{};
    if (i < quads()) sum = of_block(i, state);
    if (blocks > 1 && i < quads()) send_to_cluster(i, state, sum);
    const int quad = quad_of(i);
    const bool writes = i < mine() && is_sound();
    if (blocks > 1) {
      hopper::wait(&shared.all_received, 0);  // all threads wait: the block may not end while other blocks write to it
      if (writes) sum = of_cluster(i, quad, state);
    }
    if (!writes) return;
    if (tile::is_own_output<T>(a))
      write<tile::Output::own>(quad, state, sum);
    else
      write<tile::Output::any>(quad, state, sum);
  }
};

}  // namespace quire::cuda::sm90::cluster
