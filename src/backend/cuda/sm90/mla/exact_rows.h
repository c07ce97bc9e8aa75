// SPDX-License-Identifier: Apache-2.0
// Score rows in f32, key by key, a warp a row: what is done again where a product of tiles came out infinite or NaN. There a key
// with weight 0 whose value is infinite or NaN spoils rows that do not see it; here no row touches a key that it does not see.
#pragma once

#include "backend/cuda/sm90/mla/memory.h"
#include "backend/cuda/tile/logits.h"
#include "backend/gpu/pages.h"

namespace quire::cuda::sm90::mla {

/// Stores score row `row` of the item as output, or as the item's part of it (`place`: its row among the partial results).
template <typename T>
__device__ inline void store_exact_row(const gpu::AttendArgs& a, const tile::Item& item, int row, std::int64_t place) {
  constexpr int kValues = kValueDim / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, head = item.kv_head * a.group + row % a.group;
  const semantics::KeyRange seen = tile::keys_of_row(a, item.lengths, row);
  const int end = min(static_cast<int>(seen.end), item.slice.key_end);
  float query[kKeyDim / 32], k[kKeyDim / 32], acc[kValues] = {}, max2 = -INFINITY, sum = 0.0f;
  tile::load_pairs<T>(query, a.query.data, a.query.strides.row(0, head, item.lengths.first_token + row / a.group));
#pragma unroll 1
  for (int position = max(static_cast<int>(seen.begin), item.slice.key_begin); position < end; ++position) {
    const std::int64_t page = gpu::seen_page_at(a, item.slice.req, position / a.page_size);
    tile::load_pairs<T>(k, a.cache_k.data, a.cache_k.strides.row(page, item.kv_head, position % a.page_size));
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kKeyDim / 32; ++i) dot = fmaf(query[i], k[i], dot);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) dot += __shfl_xor_sync(~0u, dot, mask);
    const float score = tile::rounded_product(dot * a.score.scale, tile::kLog2e), top = fmaxf(max2, score);
    const float rescale = semantics::weight_in<ptx::Exp2>(max2, top), weight = semantics::weight_in<ptx::Exp2>(score, top);
    sum = sum * rescale + weight;
#pragma unroll
    for (int i = 0; i < kValues; ++i) acc[i] = acc[i] * rescale + weight * k[i];
    max2 = top;
  }
  const semantics::SoftmaxState state{sum != sum ? sum : max2 * tile::kLn2, sum};  // a NaN sum marks a NaN score
  if (item.slice.num_parts > 1) {
    if (lane == 0) *reinterpret_cast<float2*>(a.work.partial_states + place * 2) = make_float2(state.max, state.sum);
#pragma unroll
    for (int i = 0; i < kValues / 2; ++i)
      *reinterpret_cast<float2*>(a.work.partial_acc + place * kValueDim + i * 64 + lane * 2) =
          make_float2(acc[2 * i], acc[2 * i + 1]);
    return;
  }
  const tile::OutputRow to = tile::finish_row<tile::Output::own>(a, item, row, state, lane == 0);
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i)
    tile::store_pair<T, tile::Output::own>(a, to, i * 64 + lane * 2, acc[2 * i], acc[2 * i + 1]);
}

}  // namespace quire::cuda::sm90::mla
