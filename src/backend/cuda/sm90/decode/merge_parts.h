// SPDX-License-Identifier: Apache-2.0
// The end of a split segment of wide tiles: partial results of its parts to rows of the output, by the warpgroup that completes
// it and then goes on with its share.
//
// A part's state is as the tiles leave it: a base-2 maximum and a sum of weights times 2^kWeightShift. Round trips to memory and
// instructions one after the other are what it costs: accumulators are asked for together with the states, and each warp has what
// it needs of those, so that no barrier is needed.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/sm90/decode/scheduler.h"
#include "backend/cuda/tile/finish.h"
#include "semantics/softmax_state.h"

namespace quire::cuda::sm90::decode {

/// A merge by 128 threads, each with four dims of a row at a time (a chunk) and kAtOnce parts.
template <typename T, int kDim, int kRows, int kAtOnce>
struct MergeParts {
  static constexpr int kThreads = kDim / 4;                     ///< threads that share a row
  static constexpr int kLanes = kThreads < 32 ? kThreads : 32;  ///< lanes of one warp among those threads
  static constexpr int kChunks = kRows * kThreads / 128;        ///< chunks that a thread merges
  static_assert(kLanes % kAtOnce == 0);

  const gpu::AttendArgs& a;
  const int rows;          ///< rows of the tile that exist
  const int partial_rows;  ///< rows of a partial result
  const int rows_before;   ///< rows of a partial result before this merge's
  const Parts parts;
  float2* const staged;  ///< [128]: of a part, its weight and weighted sum

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % 128; }
  __device__ static int dim() { return thread() % kThreads * 4; }
  __device__ static int row_of(int chunk) { return (thread() + 128 * chunk) / kThreads; }
  /// Chunks that hold rows.
  __device__ int chunks() const { return min(kChunks, (rows * kThreads + 127) / 128); }

  /// First row of part `part`, counted from where part 0 would be if it were like the others.
  __device__ int stride() const { return parts.step * partial_rows; }
  __device__ int row_of_part(int part) const {
    return part == 0 ? (parts.first_partial - parts.next_partial) * partial_rows : part * stride();
  }
  __device__ std::int64_t first_row(int chunk) const {
    return static_cast<std::int64_t>(parts.next_partial) * partial_rows + rows_before + row_of(chunk);
  }

  /// Maximum and sum; of no keys where there is no such part. (Rows that do not exist have memory, too.)
  __device__ float2 state_of(int chunk, int part) const {
    if (part >= parts.count) return make_float2(-INFINITY, 0.0f);
    return __ldcg(reinterpret_cast<const float2*>(a.work.partial_states) + first_row(chunk) + row_of_part(part));
  }
  __device__ void load(float4 (&acc)[kAtOnce], int chunk, int first) const {
    const float* const accs = a.work.partial_acc + first_row(chunk) * kDim + dim();
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p)
      if (first + p < parts.count)
        acc[p] = __ldcg(
            reinterpret_cast<const float4*>(accs + std::int64_t{p == 0 ? row_of_part(first) : (first + p) * stride()} * kDim));
  }

  /// The largest maximum of all parts; `state`: of part `lane`.
  __device__ float largest(int chunk, const float2& state, int lane) const {
    float max = state.x;
#pragma unroll 1
    for (int part = lane + kLanes; part < parts.count; part += kLanes) max = fmaxf(max, state_of(chunk, part).x);
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, mask));
    return max;
  }

  /// The sum over all parts, one after the other, and the state of the row.
  __device__ float4 fold(int chunk, float2& of_row) const {
    const int lane = thread() % kLanes;
    float4 total{};
    float max = 0.0f, sum = 0.0f;
#pragma unroll 1
    for (int first = 0; first < parts.count; first += kAtOnce) {
      float4 acc[kAtOnce];
      load(acc, chunk, first);
      if (first % kLanes == 0) {
        const float2 state = state_of(chunk, first + lane);
        if (first == 0) max = largest(chunk, state, lane);
        const float weight = semantics::weight_in<ptx::Exp2>(state.x, max);
        // The weights before are used up.
        __syncwarp();
        staged[thread()] = make_float2(weight, weight * state.y);
        __syncwarp();
      }
      const float2* const of_lanes = staged + thread() - lane + first % kLanes;
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        if (first + p == parts.count) break;
        const float2 part = of_lanes[p];
        sum += part.y;
        if (part.x == 0.0f) continue;  // an empty part
        total.x += acc[p].x * part.x, total.y += acc[p].y * part.x, total.z += acc[p].z * part.x, total.w += acc[p].w * part.x;
      }
    }
    of_row = make_float2(max, sum);
    return total;
  }

  __device__ void store(const float4& total, const tile::OutputRow& end) const {
    tile::store_pair<T>(a, end, dim(), total.x, total.y);
    tile::store_pair<T>(a, end, dim() + 2, total.z, total.w);
  }
};

}  // namespace quire::cuda::sm90::decode
