// SPDX-License-Identifier: Apache-2.0
// Score rows in f32, key by key, a warp a row: what prefill does again where a product of tiles came out infinite or NaN. There a
// key with weight 0 whose value is infinite or NaN spoils rows that do not see it; here no row touches a key that it does not
// see.
#pragma once

#include "backend/cuda/tile/convert_fp8.h"
#include "backend/cuda/tile/finish.h"
#include "backend/cuda/tile/logits.h"

namespace quire::cuda::sm90::prefill {

/// One row's softmax and sums; lane l has dims 2 l, 2 l + 1, 2 l + 64, ...
template <int kDim>
struct ExactRow {
  semantics::SoftmaxState state;  ///< natural units
  float acc[kDim / 32];
};

/// Element 0 of the row of key `position`, in elements from `cache.data`, or from `fresh.data` if the row is this step's.
__device__ inline std::int64_t row_of_key(const gpu::AttendArgs& a, const tile::Item& item, const gpu::RowSource& cache,
                                          const gpu::RowSource& fresh, int position) {
  const gpu::Lengths& n = item.lengths;
  if (position >= n.cached_len) return fresh.strides.row(0, item.kv_head, n.first_token + position - n.context_len);
  const std::int64_t page = a.block_table.page(item.slice.req, position / a.page_size);
  return cache.strides.row(page, item.kv_head, position % a.page_size);
}

template <typename T, int kDim>
__device__ inline void load_pairs(float (&to)[kDim / 32], const void* data, std::int64_t row) {
  const auto* from = static_cast<const std::uint16_t*>(data) + row + threadIdx.x % 32 * 2;
#pragma unroll
  for (int i = 0; i < kDim / 64; ++i) {
    const float2 pair = T::unpack(*reinterpret_cast<const std::uint32_t*>(from + i * 64));
    to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
  }
}
template <int kDim>
__device__ inline void load_codes(float (&to)[kDim / 32], const void* data, std::int64_t row, bool e4m3) {
  const auto* from = static_cast<const unsigned char*>(data) + row + threadIdx.x % 32 * 2;
#pragma unroll
  for (int i = 0; i < kDim / 64; ++i) {
    const std::uint16_t codes = *reinterpret_cast<const std::uint16_t*>(from + i * 64);
    const float2 pair = tile::F16::unpack(tile::convert_pair<tile::F16>(codes, e4m3));
    to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
  }
}

/// Dims that lie apart.
template <int kDim>
__device__ inline void load_dims(float (&to)[kDim / 32], const gpu::RowSource& cache, std::int64_t row) {
#pragma unroll 2
  for (int i = 0; i < kDim / 32; ++i) {
    const int dim = static_cast<int>(threadIdx.x) % 32 * 2 + i / 2 * 64 + i % 2;
    to[i] = semantics::load(cache.data, cache.dtype, row + gpu::element_of(cache.strides, dim));
  }
}

/// A row of K or of V, not scaled.
template <typename T, int kDim, bool kCodes, bool kPacked>
__device__ inline void load_key_row(float (&to)[kDim / 32], const gpu::AttendArgs& a, const tile::Item& item,
                                    const gpu::RowSource& cache, const gpu::RowSource& fresh, int position) {
  const std::int64_t row = row_of_key(a, item, cache, fresh, position);
  const bool cached = position < item.lengths.cached_len;
  if (kPacked && cached)
    load_dims<kDim>(to, cache, row);
  else if (kCodes && cached)
    load_codes<kDim>(to, cache.data, row, cache.dtype == DType::fp8_e4m3fn);
  else
    load_pairs<T, kDim>(to, cached ? cache.data : fresh.data, row);
}

/// A row of the query.
template <typename T, int kDim, bool kCodes>
__device__ inline void load_query_row(float (&to)[kDim / 32], const gpu::AttendArgs& a, std::int64_t row) {
  if (kCodes && a.query.dtype == DType::fp8_e4m3fn)
    load_codes<kDim>(to, a.query.data, row, /*e4m3=*/true);
  else
    load_pairs<T, kDim>(to, a.query.data, row);
}

/// Score row `row` of the item against its keys.
template <typename T, int kDim, bool kCodes, bool kPacked>
__device__ inline ExactRow<kDim> exact_row(const gpu::AttendArgs& a, const tile::Item& item, int row) {
  const int head = item.kv_head * a.group + row % a.group;
  const int q_pos = a.has_masks ? item.lengths.seq_len() - 1 : item.lengths.context_len + row / a.group;
  const semantics::KeyRange seen = semantics::visible_range(q_pos, a.window);
  const int begin = max(static_cast<int>(seen.begin), item.slice.key_begin);
  const int end = min(static_cast<int>(seen.end), item.slice.key_end);
  const float slope = a.alibi_slopes.at(head, 0.0f);
  float query[kDim / 32], k[kDim / 32], v[kDim / 32];
  load_query_row<T, kDim, kCodes>(query, a, a.query.strides.row(0, head, item.lengths.first_token + row / a.group));
  const float cached_k_scale = a.k_scale.at(item.kv_head, 1.0f) * a.q_scale.at(item.kv_head, 1.0f);
  const float cached_v_scale = a.v_scale.at(item.kv_head, 1.0f);
  ExactRow<kDim> out{};
  float max2 = -INFINITY;
#pragma unroll 1
  for (int position = begin; position < end; ++position) {
    load_key_row<T, kDim, kCodes, kPacked>(k, a, item, a.cache_k, a.key, position);
    load_key_row<T, kDim, kCodes, kPacked>(v, a, item, a.cache_v, a.value, position);
    const bool cached = position < item.lengths.cached_len;
    const float k_scale = cached ? cached_k_scale : 1.0f, v_scale = cached ? cached_v_scale : 1.0f;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) dot = fmaf(query[i], k[i], dot);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) dot += __shfl_xor_sync(~0u, dot, mask);
    const float score =
        tile::kLog2e * semantics::score<tile::ShortTanh>(dot * k_scale, a.score, slope, static_cast<float>(position - q_pos));
    const float top = fmaxf(max2, score), rescale = semantics::weight_in<ptx::Exp2>(max2, top);
    const float weight = semantics::weight_in<ptx::Exp2>(score, top);
    out.state.sum = out.state.sum * rescale + weight;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) out.acc[i] = out.acc[i] * rescale + weight * (v[i] * v_scale);
    max2 = top;
  }
  // A NaN sum marks a NaN score, which a maximum passes over.
  out.state.max = out.state.sum != out.state.sum ? out.state.sum : max2 * tile::kLn2;
  return out;
}

/// Stores the row as output, or as the item's part of it (`place`: its row among the partial results).
template <typename T, int kDim, bool kCodes, bool kPacked>
__device__ inline void store_exact_row(const gpu::AttendArgs& a, const tile::Item& item, int row, std::int64_t place) {
  const ExactRow<kDim> result = exact_row<T, kDim, kCodes, kPacked>(a, item, row);
  const int lane = threadIdx.x % 32;
  if (item.slice.num_parts > 1) {
    if (lane == 0)
      *reinterpret_cast<float2*>(a.work.partial_states + place * 2) = make_float2(result.state.max, result.state.sum);
#pragma unroll
    for (int i = 0; i < kDim / 64; ++i)
      *reinterpret_cast<float2*>(a.work.partial_acc + place * kDim + i * 64 + lane * 2) =
          make_float2(result.acc[2 * i], result.acc[2 * i + 1]);
    return;
  }
  const tile::OutputRow to = tile::finish_row(a, item, row, result.state, lane == 0);
#pragma unroll
  for (int i = 0; i < kDim / 64; ++i) tile::store_pair<T>(a, to, i * 64 + lane * 2, result.acc[2 * i], result.acc[2 * i + 1]);
}

}  // namespace quire::cuda::sm90::prefill
