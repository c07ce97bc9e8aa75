// The end of a split segment where no tile is needed any more: partial results to rows of the output, by way of shared memory.
//
// What it costs is round trips to memory. So two halves of the memory that tiles had are filled with parts at once, as many as
// there is room for, and each is folded and filled again in turn. A thread copies the four dims of a row that it adds up, and a
// warp the states of its rows: no barrier is needed.
//
// A part's state is as the tiles leave it: a base-2 maximum and a sum of weights times 2^kWeightShift.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/sm90/shares.h"

namespace quire::cuda::sm90 {

/// By 128 threads, each with four dims of a row at a time (a chunk). kBytes: of shared memory.
template <int kDim, int kRows, int kBytes>
class StagedMerge {
 public:
  static constexpr int kThreads = kDim / 4;                     ///< of a row
  static constexpr int kLanes = kThreads < 32 ? kThreads : 32;  ///< of a warp among them
  static constexpr int kGroups = 128 / kLanes;                  ///< of so many lanes
  static constexpr int kPartBytes = 128 * sizeof(float4) + kGroups * (sizeof(float2) + sizeof(float));
  static constexpr int kFit = kBytes / 2 / kPartBytes / 4 * 4, kAtOnce = kFit < kLanes ? kFit : kLanes;
  static_assert(kAtOnce >= 4);

  struct Half {
    float4 acc[kAtOnce][128];
    float2 states[kGroups][kAtOnce];
    alignas(16) float weights[kGroups][kAtOnce];
  };
  struct Row {
    float4 total{};                     ///< this thread's dims
    float max = -INFINITY, sum = 0.0f;  ///< the sum over the parts that were this lane's, until all are folded
  };

  /// rows: that exist. halves: [2]
  __device__ StagedMerge(const gpu::AttendArgs& a, int rows, const Parts& parts, Half* halves)
      : first_acc_(a.work.partial_acc + dim()),
        first_state_(reinterpret_cast<const float2*>(a.work.partial_states)),
        parts_(parts),
        chunks_((rows * kThreads + 127) / 128),
        halves_(halves) {}

  __device__ static int dim() { return thread() % kThreads * 4; }

  /// Calls finish(row, the row's number) for each chunk.
  template <typename Finish>
  __device__ void run(Finish&& finish) const {
    Next next;
    copy(next), copy(next);
#pragma unroll 1
    for (int chunk = 0, half = 0; chunk < chunks_; ++chunk) {
      Row row;
#pragma unroll 1
      for (int first = 0; first < parts_.count; first += kAtOnce, half ^= 1) {
        ptx::wait_copies<1>();
        __syncwarp();
        fold(row, halves_[half], min(parts_.count - first, kAtOnce));
        copy(next);
      }
#pragma unroll
      for (int mask = 1; mask < kLanes; mask *= 2) row.sum += __shfl_xor_sync(~0u, row.sum, mask);
      finish(row, row_of(chunk));
    }
  }

 private:
  /// The parts that are copied next.
  struct Next {
    int chunk = 0, first = 0, half = 0;
  };

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % 128; }
  __device__ static int lane() { return thread() % kLanes; }
  __device__ static int group() { return thread() / kLanes; }
  __device__ static int row_of(int chunk) { return (thread() + 128 * chunk) / kThreads; }

  /// Asks for kAtOnce parts, or those that there are. (Rows that do not exist have places, too.)
  __device__ void copy(Next& next) const {
    if (next.chunk < chunks_) {
      Half& to = halves_[next.half];
      const int count = min(parts_.count - next.first, kAtOnce);
      const auto row = [&](int part) { return std::int64_t{parts_.place(part)} * kRows + row_of(next.chunk); };
      if (lane() < count) ptx::copy_async_8(&to.states[group()][lane()], first_state_ + row(next.first + lane()), 8);
      const float* from = first_acc_ + row(next.first) * kDim;
      const float* second = first_acc_ + row(next.first + 1) * kDim;  // part 0 may be anywhere
      const std::int64_t stride = std::int64_t{parts_.step} * (kRows * kDim);
      float4* slot = &to.acc[0][thread()];
#pragma unroll 4
      for (int part = 0; part < count; ++part, slot += 128) {
        ptx::copy_async_16(slot, from, 16);
        from = second, second += stride;
      }
      next.first += kAtOnce, next.half ^= 1;
      if (next.first >= parts_.count) next.first = 0, ++next.chunk;
    }
    ptx::commit_copies();
  }

  /// `count` parts into the row.
  __device__ static void fold(Row& row, Half& from, int count) {
    const float2 state = lane() < count ? from.states[group()][lane()] : make_float2(-INFINITY, 0.0f);
    float max = fmaxf(row.max, state.x);
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, mask));
    const float base = max == -INFINITY ? 0.0f : max;  // all parts may be empty
    const float weight = ptx::exp2_approx(state.x - base), rescale = ptx::exp2_approx(row.max - base);
    if (lane() < kAtOnce) from.weights[group()][lane()] = weight;  // 0 where there is no part
    __syncwarp();
    row.max = max, row.sum = row.sum * rescale + weight * state.y;
    row.total.x *= rescale, row.total.y *= rescale, row.total.z *= rescale, row.total.w *= rescale;
#pragma unroll 2
    for (int part = 0; part < count; part += 4) {
      const float4 weights = *reinterpret_cast<const float4*>(&from.weights[group()][part]);
      const float of_part[4] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 acc = from.acc[part + i][thread()];
        const float w = of_part[i];
        const bool counts = w != 0.0f;  // of an empty part, and of none, nothing is read
        row.total.x = counts ? row.total.x + acc.x * w : row.total.x;
        row.total.y = counts ? row.total.y + acc.y * w : row.total.y;
        row.total.z = counts ? row.total.z + acc.z * w : row.total.z;
        row.total.w = counts ? row.total.w + acc.w * w : row.total.w;
      }
    }
    __syncwarp();  // weights are used up
  }

  const float* const first_acc_;
  const float2* const first_state_;
  const Parts parts_;
  const int chunks_;
  Half* const halves_;
};

}  // namespace quire::cuda::sm90
