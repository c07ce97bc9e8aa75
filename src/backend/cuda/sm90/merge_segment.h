// The end of a split segment: partial results of its parts to rows of the output, by the warpgroup that completes it.
//
// A part's state is as the tiles leave it: a base-2 maximum and a sum of weights times 2^kWeightShift. Few round trips to memory
// matter more than anything else here: the first accumulators are asked for together with the states.
#pragma once

#include "backend/cuda/mma/finish.h"
#include "backend/cuda/sm90/shares.h"

namespace quire::cuda::sm90 {

constexpr int kPartsStaged = 64;  ///< whose states are in shared memory at once

/// By 128 threads, each with four dims of a row at a time (a chunk) and kAtOnce parts.
template <typename T, int kDim, int kRows, int kAtOnce>
struct SegmentMerge {
  static constexpr int kLanes = kDim / 4;               ///< threads a row
  static constexpr int kChunks = kRows * kLanes / 128;  ///< a thread

  const gpu::AttendArgs& a;
  const int rows;         ///< that exist
  const int place_rows;   ///< of a partial result's place
  const int rows_before;  ///< in it
  const Parts parts;
  float2 (*const staged)[kRows];  ///< [kPartsStaged]

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % 128; }
  __device__ static int dim() { return thread() % kLanes * 4; }
  __device__ static int row_of(int chunk) { return (thread() + 128 * chunk) / kLanes; }
  /// Chunks that hold rows.
  __device__ int chunks() const { return min(kChunks, (rows * kLanes + 127) / 128); }

  /// Where part `part` is, in rows from part 0's place of the second kind on.
  __device__ int row_of_part(int part) const {
    return (part == 0 ? parts.first_place - parts.next_place : part * parts.step) * place_rows;
  }
  __device__ std::int64_t origin() const { return static_cast<std::int64_t>(parts.next_place) * place_rows + rows_before; }

  template <typename Sync>
  __device__ void stage(int first, Sync&& sync) const {
    sync();  // those before are used up
    const int count = min(parts.count - first, kPartsStaged);
    const auto* const states = reinterpret_cast<const float2*>(a.work.partial_states) + origin();
#pragma unroll 1
    for (int i = thread(); i < count * kRows; i += 128)
      staged[i / kRows][i % kRows] = __ldcg(states + row_of_part(first + i / kRows) + i % kRows);
    sync();
  }

  __device__ void load(float4 (&acc)[kAtOnce], int chunk, int first) const {
    const float* const accs = a.work.partial_acc + (origin() + row_of(chunk)) * kDim + dim();
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p)  // rows that do not exist have places, too
      if (first + p < parts.count) acc[p] = __ldcg(reinterpret_cast<const float4*>(accs + row_of_part(first + p) * kDim));
  }

  /// The sum over all parts, and the rows' states.
  template <typename Sync>
  __device__ float4 fold(int chunk, float2* states, Sync&& sync) const {
    const bool restaged = parts.count > kPartsStaged;
    const int row = row_of(chunk);
    float4 acc[kAtOnce], total{};
    load(acc, chunk, 0);
    float max = -INFINITY, sum = 0.0f;
#pragma unroll 1
    for (int first = 0; first < parts.count; first += kPartsStaged) {
      if (chunk == 0 || restaged) stage(first, sync);
      const int count = min(parts.count - first, kPartsStaged);
#pragma unroll 4
      for (int p = 0; p < count; ++p) max = fmaxf(max, staged[p][row].x);
    }
#pragma unroll 1
    for (int first = 0; first < parts.count; first += kAtOnce) {
      if (first > 0) load(acc, chunk, first);
      if (restaged && first % kPartsStaged == 0) stage(first, sync);
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        if (first + p >= parts.count) break;
        const float2 state = staged[(first + p) % kPartsStaged][row];
        const float weight = max == -INFINITY ? 0.0f : exp2f(state.x - max);  // all parts may be empty
        sum += weight * state.y;
        if (weight == 0.0f) continue;  // an empty part
        total.x += acc[p].x * weight, total.y += acc[p].y * weight, total.z += acc[p].z * weight, total.w += acc[p].w * weight;
      }
    }
    if (dim() == 0) states[row] = make_float2(max, sum);
    return total;
  }

  __device__ void store(const float4& total, int chunk, const mma::OutputRow& end) const {
    if (row_of(chunk) >= rows) return;
    mma::store_pair<T>(a, end, dim(), total.x, total.y);
    mma::store_pair<T>(a, end, dim() + 2, total.z, total.w);
  }
};

}  // namespace quire::cuda::sm90
