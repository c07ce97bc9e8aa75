// SPDX-License-Identifier: Apache-2.0
// This step's rows of decode where they are in no tile: one key at a time, in f32.
#pragma once

#include "backend/cuda/sm90/decode/partial_tile.h"

namespace quire::cuda::sm90::decode {

/// T: type of query, output and this step's rows.
template <typename T, typename Memory>
struct UncachedRows {
  using Online = Softmax<Memory>;
  using State = typename Online::State;
  using Me = Lane<typename Memory::Tiles>;
  static constexpr int kDim = Memory::kDim, kRows = Memory::kRows, kColumns = Online::kColumns;

  const gpu::AttendArgs& a;
  typename Memory::Shared& shared;
  const Warpgroup<Memory>& group;

  /// [kTileKeys][kRows] of f32 in the memory of weights that no product reads now.
  __device__ float (*exact_weights() const)[kRows] {
    static_assert(sizeof(shared.weights[0][0]) == sizeof(float[kTileKeys][kRows]));
    return reinterpret_cast<float(*)[kRows]>(shared.weights[group.index][0]);
  }

  /// Logit of key `position` and row r in base 2; -inf where the row does not see the key.
  __device__ float logit(const Job& job, int position, int r) const {
    const int row = group.first_row(job) + r, q_pos = job.item.lengths.context_len + row / a.group;
    const semantics::KeyRange seen = semantics::visible_range(q_pos, a.window);
    if (r >= group.num_rows(job) || position < seen.begin || position >= seen.end) return -INFINITY;
    const int head = job.item.kv_head * a.group + row % a.group;
    const auto* q =
        reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint16_t*>(a.query.data) +
                                               a.query.strides.row(0, head, job.item.lengths.first_token + row / a.group));
    const auto* k = reinterpret_cast<const std::uint32_t*>(group.uncached_row(a.key, job, position));
    float dot = 0.0f;
#pragma unroll 4
    for (int i = 0; i < kDim / 2; ++i) {
      const float2 x = T::unpack(q[i]), y = T::unpack(k[i]);
      dot += x.x * y.x;
      dot += x.y * y.y;
    }
    const float slope = a.alibi_slopes.at(head, 0.0f);
    return tile::kLog2e * semantics::score<tile::ShortTanh>(dot, a.score, slope, static_cast<float>(position - q_pos));
  }

  /// Folds positions [begin, begin + count) of one tile into values in real units.
  __device__ void fold(State& state, const Job& job, int begin, int count) const {
    const Me me;
    auto* const exact = exact_weights();
    group.sync();  // the weights of the last tile are used up
#pragma unroll 1
    for (int i = group.thread(); i < count * kRows; i += 128)
      exact[i / kRows][i % kRows] = logit(job, begin + i / kRows, i % kRows);
    group.sync();
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      float top = state.max[q];
#pragma unroll 1
      for (int i = 0; i < count; ++i) top = fmaxf(top, exact[i][me.column(q)]);
      Online::rescale(state, q, top);
    }
    group.sync();  // logits are read, and become weights
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
#pragma unroll 1
      for (int i = me.warp() * 8 + me.lane() / 4; i < count; i += 32) {
        float& weight = exact[i][me.column(q)];
        weight = Online::weight_of(state, weight, q);
        state.sum[q] += weight;
      }
    }
    group.sync();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const std::uint16_t* row = group.uncached_row(a.value, job, begin + i);
      PartialTile<Memory>{a, shared, group}.add_value(
          state, job, begin + i, [&](int dim) { return T::unpack(row[dim]).x; }, exact[i]);
    }
  }
  __device__ void fold(State& state, const Job& job) const {
    const int cached_len = job.item.lengths.cached_len;
#pragma unroll 1
    for (int tile = max(job.first, cached_len / kTileKeys); tile < job.end; ++tile) {
      const int begin = max(tile * kTileKeys, max(cached_len, job.span.any_begin));
      fold(state, job, begin, min((tile + 1) * kTileKeys, job.span.any_end) - begin);
    }
  }
};

}  // namespace quire::cuda::sm90::decode
