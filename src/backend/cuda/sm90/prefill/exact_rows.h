// SPDX-License-Identifier: Apache-2.0
// Score rows in f32, key by key, a warp a row: what prefill does again where a product of tiles came out infinite or NaN. There a
// key with weight 0 whose value is infinite or NaN spoils rows that do not see it; here no row touches a key that it does not
// see.
#pragma once

#include "backend/cuda/sm90/prefill/rows.h"
#include "backend/cuda/tile/convert_fp8.h"
#include "backend/cuda/tile/finish.h"
#include "backend/cuda/tile/logits.h"
#include "backend/gpu/pages.h"

namespace quire::cuda::sm90::prefill {

/// One row's softmax and sums; lane l has dims 2 l, 2 l + 1, 2 l + 64, ... of the block's.
template <int kOutDim>
struct ExactRow {
  semantics::SoftmaxState state;  ///< natural units
  float acc[kOutDim / 32];
};

/// A row's state as it is stored beside partial sums, and what the sums are multiplied by. kSplit: blocks that have different
/// dims of a row may compute it in different ways, with other maxima. Each divides by its own sum, and the state is the row's
/// log-sum-exp, so that sums of one block fit the state of the other.
struct Partial {
  semantics::SoftmaxState state;
  float factor;
};
template <bool kSplit>
__device__ inline Partial partial_of(const semantics::SoftmaxState& natural) {
  if constexpr (!kSplit) return {natural, 1.0f};
  if (natural.sum == 0.0f) return {natural, 0.0f};
  return {{semantics::log_sum_exp(natural), 1.0f}, 1.0f / natural.sum};
}

/// Element 0 of the row of key `position`, in elements from `cache.data`, or from `fresh.data` if the row is this step's.
__device__ inline std::int64_t row_of_key(const gpu::AttendArgs& a, const tile::Item& item, const gpu::RowSource& cache,
                                          const gpu::RowSource& fresh, int position) {
  const gpu::Lengths& n = item.lengths;
  if (position >= n.cached_len) return fresh.strides.row(0, item.kv_head, n.first_token + position - n.context_len);
  const std::int64_t page = gpu::seen_page_at(a, item.slice.req, position / a.page_size);
  return cache.strides.row(page, item.kv_head, position % a.page_size);
}

/// tile::load_pairs() of codes.
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

/// A row of K or of V, not scaled: kDim dims of it from `first_dim` on, which is 0 for caches of codes and packed ones.
template <typename T, int kDim, bool kCodes, bool kPacked>
__device__ inline void load_key_row(float (&to)[kDim / 32], const gpu::AttendArgs& a, const tile::Item& item,
                                    const gpu::RowSource& cache, const gpu::RowSource& fresh, int position, int first_dim) {
  const std::int64_t row = row_of_key(a, item, cache, fresh, position) + first_dim;
  const bool cached = position < item.lengths.cached_len;
  if (kPacked && cached)
    load_dims<kDim>(to, cache, row);
  else if (kCodes && cached)
    load_codes<kDim>(to, cache.data, row, cache.dtype == DType::fp8_e4m3fn);
  else
    tile::load_pairs<T>(to, cached ? cache.data : fresh.data, row);
}

/// A row of the query.
template <typename T, int kDim, bool kCodes>
__device__ inline void load_query_row(float (&to)[kDim / 32], const gpu::AttendArgs& a, std::int64_t row) {
  if (kCodes && a.query.dtype == DType::fp8_e4m3fn)
    load_codes<kDim>(to, a.query.data, row, /*e4m3=*/true);
  else
    tile::load_pairs<T>(to, a.query.data, row);
}

/// Keys of the item that one score row sees.
template <bool kMasks>
struct ExactKeys {
  int begin, end, position;  ///< position: of the row

  __device__ ExactKeys(const gpu::AttendArgs& a, const tile::Item& item, int row)
      : position(a.has_masks ? item.lengths.seq_len() - 1 : item.lengths.context_len + row / a.group) {
    const semantics::KeyRange seen = semantics::visible_range(position, a.window);
    begin = max(static_cast<int>(seen.begin), item.slice.key_begin);
    end = min(static_cast<int>(seen.end), item.slice.key_end);
  }
  __device__ static bool sees(int) { return true; }
};
template <>
struct ExactKeys<true> {
  const gpu::AttendArgs& a;
  const gpu::Sight sight;
  const RowKeys keys;
  const int token, begin, end, position;

  __device__ ExactKeys(const gpu::AttendArgs& args, const tile::Item& item, int row)
      : a(args),
        sight(gpu::sight_of(a, item.slice.req, item.lengths)),
        keys(keys_of_row(sight, row / a.group)),
        token(item.lengths.first_token + row / a.group),
        begin(item.slice.key_begin),
        end(item.slice.key_end),
        position(keys.position) {}
  __device__ bool sees(int key) const {
    if (key >= sight.mask.tree_begin) return sees_in_tree(a, token, key - static_cast<int>(sight.mask.tree_begin));
    return key < keys.prefix_end || (key >= keys.begin && key < keys.end);
  }
};

/// Score row `row` of the item against its keys.
template <typename T, typename Memory>
__device__ inline ExactRow<Memory::kOutDim> exact_row(const Block<Memory>& block, const tile::Item& item, int row) {
  constexpr int kDim = Memory::kDim, kOutDim = Memory::kOutDim;
  constexpr bool kCodes = Memory::kCodes, kPacked = Memory::kPacked;
  const gpu::AttendArgs& a = block.a;
  const int head = item.kv_head * a.group + row % a.group;
  const ExactKeys<Memory::kMasks> keys(a, item, row);
  const float slope = a.alibi_slopes.at(head, 0.0f);
  float query[kDim / 32], k[kDim / 32], v[kOutDim / 32];
  load_query_row<T, kDim, kCodes>(query, a, a.query.strides.row(0, head, item.lengths.first_token + row / a.group));
  const float cached_k_scale = a.k_scale.at(item.kv_head, 1.0f) * a.q_scale.at(item.kv_head, 1.0f);
  const float cached_v_scale = a.v_scale.at(item.kv_head, 1.0f);
  ExactRow<kOutDim> out{};
  float max2 = -INFINITY;
#pragma unroll 1
  for (int position = keys.begin; position < keys.end; ++position) {
    if (!keys.sees(position)) continue;
    load_key_row<T, kDim, kCodes, kPacked>(k, a, item, a.cache_k, a.key, position, 0);
    load_key_row<T, kOutDim, kCodes, kPacked>(v, a, item, a.cache_v, a.value, position, block.first_out_dim());
    const bool cached = position < item.lengths.cached_len;
    const float k_scale = cached ? cached_k_scale : 1.0f, v_scale = cached ? cached_v_scale : 1.0f;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) dot = fmaf(query[i], k[i], dot);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) dot += __shfl_xor_sync(~0u, dot, mask);
    const auto distance = static_cast<float>(position - keys.position);
    const float score =
        tile::rounded_product(semantics::score<tile::ShortTanh>(dot * k_scale, a.score, slope, distance), tile::kLog2e);
    const float top = fmaxf(max2, score), rescale = semantics::weight_in<ptx::Exp2>(max2, top);
    const float weight = semantics::weight_in<ptx::Exp2>(score, top);
    out.state.sum = out.state.sum * rescale + weight;
#pragma unroll
    for (int i = 0; i < kOutDim / 32; ++i) out.acc[i] = out.acc[i] * rescale + weight * (v[i] * v_scale);
    max2 = top;
  }
  // A NaN sum marks a NaN score, which a maximum passes over.
  out.state.max = out.state.sum != out.state.sum ? out.state.sum : max2 * tile::kLn2;
  return out;
}

/// Stores the row as output, or as the item's part of it (`place`: its row among the partial results).
template <typename T, typename Memory>
__device__ inline void store_exact_row(const Block<Memory>& block, const tile::Item& item, int row, std::int64_t place) {
  constexpr int kOutDim = Memory::kOutDim;
  const gpu::AttendArgs& a = block.a;
  const ExactRow<kOutDim> result = exact_row<T>(block, item, row);
  const int lane = threadIdx.x % 32, first_dim = block.first_out_dim() + lane * 2;
  if (item.slice.num_parts > 1) {
    const auto [state, factor] = partial_of<Memory::kSplitsValues>(result.state);
    if (block.in_one_block(lane == 0))
      *reinterpret_cast<float2*>(a.work.partial_states + place * 2) = make_float2(state.max, state.sum);
#pragma unroll
    for (int i = 0; i < kOutDim / 64; ++i)
      *reinterpret_cast<float2*>(a.work.partial_acc + place * Memory::kValueDim + i * 64 + first_dim) =
          make_float2(result.acc[2 * i] * factor, result.acc[2 * i + 1] * factor);
    return;
  }
  const tile::OutputRow to = tile::finish_row(a, item, row, result.state, block.in_one_block(lane == 0));
#pragma unroll
  for (int i = 0; i < kOutDim / 64; ++i) tile::store_pair<T>(a, to, i * 64 + first_dim, result.acc[2 * i], result.acc[2 * i + 1]);
}

}  // namespace quire::cuda::sm90::prefill
