// SPDX-License-Identifier: Apache-2.0
// The end of a split segment where no tile is needed any more: partial results to rows of the output, by way of shared memory.
//
// The price is round trips to memory, and then some 25 bytes a cycle. So parts stream through the memory that tiles had, as
// many ahead as it holds, and the states of all of them are asked for at once. A thread copies the four dims of a row that it
// adds up, and a warp weighs the parts of its rows: no barrier is needed. (Bulk copies bring half as many bytes a cycle.)
//
// A part's state is as the tiles leave it: a base-2 maximum and a sum of weights times 2^kWeightShift.
#pragma once

#include <algorithm>

#include "backend/cuda/ptx.h"
#include "backend/cuda/sm90/decode/scheduler.h"
#include "semantics/softmax_state.h"

namespace quire::cuda::sm90::decode {

/// A merge by 128 threads, each with four dims of a row at a time (a chunk). kBytes: of the memory that parts stream through.
template <int kDim, int kRows, int kBytes>
class StagedMerge {
 public:
  static constexpr int kThreads = kDim / 4;                            ///< threads that share a row
  static constexpr int kLanes = std::min(kThreads, 32);                ///< lanes of one warp among those threads
  static constexpr int kGroups = 128 / kLanes;                         ///< groups of kLanes lanes
  static constexpr int kMostParts = 128, kMine = kMostParts / kLanes;  ///< parts weighed at once, and a lane's share of them
  static constexpr int kSlotParts = 8;
  static constexpr int kSlots = std::min<int>(kBytes / (kSlotParts * 128 * sizeof(float4)), 12);
  static_assert(kSlots >= 2);

  using Slot = float4[kSlotParts][128];
  using Weights = float[kGroups][kMostParts];
  struct Row {
    float4 total{};                     ///< sum of this thread's four dims
    float max = -INFINITY, sum = 0.0f;  ///< the sum over the parts that were this lane's, until all are folded
  };

  /// rows: that exist. slots: [kSlots]
  __device__ StagedMerge(const gpu::AttendArgs& a, int rows, const Parts& parts, Slot* slots, Weights& weights)
      : a_(a), parts_(parts), rows_(rows), slots_(slots), weights_(weights[thread() / kLanes]) {}

  __device__ static int dim() { return thread() % kThreads * 4; }

  /// Calls finish(row, the row's number) for each chunk.
  template <typename Finish>
  __device__ void run(Finish&& finish) const {
#pragma unroll 1
    for (int chunk = 0; chunk * 128 < rows_ * kThreads; ++chunk) {
      Row row;
#pragma unroll 1
      for (int first = 0; first < parts_.count; first += kMostParts)
        fold(row, chunk, first, min(parts_.count, first + kMostParts));
#pragma unroll
      for (int mask = 1; mask < kLanes; mask *= 2) row.sum += __shfl_xor_sync(~0u, row.sum, mask);
      finish(row, row_of(chunk));
    }
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % 128; }
  __device__ static int lane() { return thread() % kLanes; }
  __device__ static int row_of(int chunk) { return (thread() + 128 * chunk) / kThreads; }
  /// Part p > 0 is so many rows behind part p - 1; part 0 is a partial result behind where it would be by that.
  static constexpr int kApart = kPartialsOfBlock * kRows;
  __device__ std::int64_t row_at(int chunk, int part) const {
    return (std::int64_t{parts_.next_partial} + part * kPartialsOfBlock) * kRows + row_of(chunk);
  }
  __device__ static int skipped(int part) { return part == 0 ? kRows : 0; }

  /// This thread's dims of the parts from `first` on that fit a slot, as far as they are below `end`; `accs`: of part `first`,
  /// were it not the first.
  __device__ static void copy(Slot& slot, const float* accs, int first, int end) {
#pragma unroll
    for (int i = 0; i < kSlotParts; ++i)
      if (first + i < end) ptx::copy_async_16(&slot[i][thread()], accs + (i == 0 ? skipped(first) : i * kApart) * kDim, 16);
    ptx::commit_copies();
  }

  /// Parts [first, end), at most kMostParts, into the row. One that does not exist has states, and accumulators that nobody
  /// wrote: they are not copied, and what is added up instead is nobody's.
  __device__ void fold(Row& row, int chunk, int first, int end) const {
    float2 states[kMine];
    load(states, chunk, first, end);
    const int copied = row_of(chunk) < rows_ ? end : first;
    constexpr int kSlotApart = kSlotParts * kApart * kDim;
    const float* accs = a_.work.partial_acc + row_at(chunk, first) * kDim + dim();
#pragma unroll 1
    for (int i = 0; i < kSlots; ++i, accs += kSlotApart) copy(slots_[i], accs, first + i * kSlotParts, copied);
    weigh(row, states);
    int slot = 0;
#pragma unroll 1
    for (int part = first; part < end; part += kSlotParts, accs += kSlotApart) {
      ptx::wait_copies<kSlots - 1>();
      __syncwarp();  // the slot's copies and the weights are visible to the warp
#pragma unroll
      for (int i = 0; i < kSlotParts; i += 4) {
        const float4 weights = *reinterpret_cast<const float4*>(&weights_[part - first + i]);
        add(row.total, slots_[slot][i][thread()], weights.x), add(row.total, slots_[slot][i + 1][thread()], weights.y);
        add(row.total, slots_[slot][i + 2][thread()], weights.z), add(row.total, slots_[slot][i + 3][thread()], weights.w);
      }
      __syncwarp();  // all lanes have read the slot
      copy(slots_[slot], accs, part + kSlots * kSlotParts, copied);
      slot = slot + 1 == kSlots ? 0 : slot + 1;
    }
  }

  /// States of this lane's parts; of no keys beyond the last.
  __device__ void load(float2 (&states)[kMine], int chunk, int first, int end) const {
    const int mine = first + lane();
    const auto* const of_parts = reinterpret_cast<const float2*>(a_.work.partial_states) + row_at(chunk, mine);
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      states[i] = mine + i * kLanes < end ? __ldcg(of_parts + (i == 0 ? skipped(mine) : i * kLanes * kApart))
                                          : make_float2(-INFINITY, 0.0f);
  }
  /// Weights of the parts, 0 beyond the last; rescales the row for a new largest logit.
  __device__ void weigh(Row& row, const float2 (&states)[kMine]) const {
    float max = row.max;
#pragma unroll
    for (int i = 0; i < kMine; ++i) max = fmaxf(max, states[i].x);
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, mask));
    const float rescale = semantics::weight_in<ptx::Exp2>(row.max, max);
    row.max = max, row.sum *= rescale;
    row.total.x *= rescale, row.total.y *= rescale, row.total.z *= rescale, row.total.w *= rescale;
    __syncwarp();  // the weights before are used up
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const float weight = semantics::weight_in<ptx::Exp2>(states[i].x, max);
      weights_[lane() + i * kLanes] = weight;
      row.sum += weight * states[i].y;
    }
  }

  /// Adds a part; a part of weight 0, or none, is not read.
  __device__ static void add(float4& total, const float4& acc, float weight) {
    const bool counts = weight != 0.0f;
    total.x = counts ? total.x + acc.x * weight : total.x;
    total.y = counts ? total.y + acc.y * weight : total.y;
    total.z = counts ? total.z + acc.z * weight : total.z;
    total.w = counts ? total.w + acc.w * weight : total.w;
  }

  const gpu::AttendArgs& a_;
  const Parts parts_;
  const int rows_;
  Slot* const slots_;
  float* const weights_;  ///< [kMostParts]: of this warp's row
};

}  // namespace quire::cuda::sm90::decode
