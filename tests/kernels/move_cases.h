// SPDX-License-Identifier: Apache-2.0
// Tensors for append() and merge(), whose results must be the same bits on every backend: every type, layout and stride.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "quire/attention.hpp"
#include "support/small_case.h"

namespace quire::test {

/// Tensors of one append; equal arguments give equal bits.
struct AppendCase {
  static constexpr std::int64_t kTokens = 7, kPages = 4, kPageSize = 3;

  static constexpr int kOfTokens = 3;  ///< scales that append() writes

  /// scales: 0 none, 1 of K by head, 2 of V too, kOfTokens. v_dim: 0 = k_dim. v_stored: none = stored.
  AppendCase(DType stored, DType source, CacheLayout layout, bool gap, std::int64_t heads, std::int64_t k_dim, int scales,
             std::int64_t v_dim = 0, DType v_stored = DType::none) {
    const std::int64_t x = packed_x(stored);
    const DType v_type = v_stored == DType::none ? stored : v_stored;
    cache.layout = layout;
    const auto dim_of = [&](bool is_k) { return is_k || v_dim == 0 ? k_dim : v_dim; };
    const auto make = [&](bool is_k) {
      const std::int64_t dim = dim_of(is_k);
      const DType type = is_k ? stored : v_type;
      if (is_four_bit(type)) return make_codes(type, layout, heads, dim, gap);
      if (layout == CacheLayout::nhd) return make_tensor(storage, type, {kPages, kPageSize, heads, dim}, gap);
      if (layout == CacheLayout::hnd) return make_tensor(storage, type, {kPages, heads, kPageSize, dim}, gap);
      return is_k ? make_tensor(storage, type, {kPages, heads, dim / x, kPageSize, x}, gap)
                  : make_tensor(storage, type, {kPages, heads, dim, kPageSize}, gap);
    };
    cache.k = make(true);
    cache.v = make(false);
    std::mt19937_64 random(11);
    std::normal_distribution<float> normal;
    for (Tensor* rows : {&key, &value}) {
      const std::int64_t dim = dim_of(rows == &key);
      *rows = make_tensor(storage, source, {kTokens, heads, dim}, gap);
      for (std::int64_t t = 0; t < kTokens; ++t)
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t d = 0; d < dim; ++d) set(*rows, {t, h, d}, normal(random) * (h == 1 ? 400.0f : 1.0f));
    }
    if (is_four_bit(stored)) cache.k_block_scale = make_block_scales(stored, heads, dim_of(true), gap);
    if (is_four_bit(v_type)) cache.v_block_scale = make_block_scales(v_type, heads, dim_of(false), !gap);
    if (is_four_bit(stored) || is_four_bit(v_type)) plant_odd_blocks();
    if (scales == kOfTokens) {
      if (is_code(stored)) cache.k_scale = make_tensor(storage, DType::f32, {kPages, kPageSize, heads}, gap);
      if (is_code(v_type)) cache.v_scale = make_tensor(storage, DType::f32, {kPages, kPageSize, heads}, !gap);
      return;
    }
    if (scales > 0) cache.k_scale = make_tensor(storage, DType::f32, {heads}, gap);
    if (scales > 1) cache.v_scale = make_tensor(storage, DType::f32, {1});
    for (std::int64_t h = 0; scales > 0 && h < heads; ++h) set(cache.k_scale, {h}, 0.3 * static_cast<double>(h + 1));
    if (scales > 1) set(cache.v_scale, {0}, 0.7);
  }

  /// Bytes of two codes. With `gap`, rows begin at odd addresses.
  Tensor make_codes(DType type, CacheLayout layout, std::int64_t heads, std::int64_t dim, bool gap) {
    const std::int64_t bytes = dim / 2, with_gap = bytes + (gap ? 3 : 0);
    Tensor t = layout == CacheLayout::hnd ? make_tensor(storage, type, {kPages, heads, kPageSize, with_gap})
                                          : make_tensor(storage, type, {kPages, kPageSize, heads, with_gap});
    t.shape[3] = bytes;
    return t;
  }

  Tensor make_block_scales(DType type, std::int64_t heads, std::int64_t dim, bool gap) {
    return make_tensor(storage, block_scale_type(type), {kPages, kPageSize, heads, dim / block_size(type)}, gap);
  }

  /// A block of zeros, and one with a NaN.
  void plant_odd_blocks() {
    for (const Tensor* rows : {&key, &value}) {
      for (std::int64_t d = 0; d < 32; ++d) set(*rows, {4, 0, d}, 0.0);
      set(*rows, {6, 1, 3}, NAN);
    }
  }

  Tensor slot_mapping() const {
    return Tensor::contiguous(const_cast<std::int64_t*>(slots.data()), DType::i64, static_cast<std::int64_t>(slots.size()));
  }

  Storage storage;
  KVCache cache;
  Tensor key, value;
  std::vector<std::int64_t> slots = {5, -1, 0, 11, 7, -100, 3};
};

/// Bytes of a tensor from its first to its last element.
inline std::size_t bytes_of(const Tensor& t) {
  std::int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) last += (t.shape[i] - 1) * t.stride[i];
  return static_cast<std::size_t>((last + 1) * itemsize(t.dtype));
}

/// Whether two tensors of one shape and one set of strides hold the same bytes, gaps included.
inline bool same_bytes(const Tensor& a, const Tensor& b) { return std::memcmp(a.data, b.data, bytes_of(a)) == 0; }
inline bool same_bytes(const KVCache& a, const KVCache& b) {
  const auto same_scales = [](const Tensor& x, const Tensor& y) { return x.rank < 3 || same_bytes(x, y); };
  return same_bytes(a.k, b.k) && same_bytes(a.v, b.v) && same_scales(a.k_scale, b.k_scale) && same_scales(a.v_scale, b.v_scale) &&
         same_scales(a.k_block_scale, b.k_block_scale) && same_scales(a.v_block_scale, b.v_block_scale);
}

/// Calls visit(stored, source, layout, gap, scales) for every combination that the contract allows, scale forms in turn.
template <class Visit>
void for_each_append(Visit&& visit) {
  int turn = 0;
  for (const DType stored : {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2,
                             DType::fp8_e5m2fnuz, DType::i8})
    for (const DType source : {DType::f32, DType::f16, DType::bf16})
      for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed})
        for (const bool gap : {false, true}) {
          if (stored == DType::f32 && source != DType::f32) continue;  // Q-M20: no query type could read it
          visit(stored, source, layout, gap, stored == DType::i8 ? 2 : turn++ % 3);
          if (is_code(stored)) visit(stored, source, layout, gap, AppendCase::kOfTokens);
        }
}

/// Calls visit(name, make), where make() gives equal cases, for caches with 4 bits on a side or on both.
template <class Visit>
void for_each_four_bit_append(Visit&& visit) {
  constexpr std::pair<DType, DType> kPairs[] = {{DType::nvfp4, DType::nvfp4},
                                                {DType::mxfp4, DType::mxfp4},
                                                {DType::fp8_e4m3fn, DType::nvfp4},
                                                {DType::i8, DType::mxfp4},
                                                {DType::nvfp4, DType::bf16}};
  int turn = 0;
  for (const auto& [k, v] : kPairs)
    for (const DType source : {DType::f32, DType::f16, DType::bf16})
      for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd})
        for (const bool gap : {false, true}) {
          const int scales = k == DType::i8 ? AppendCase::kOfTokens : turn++ % 3;
          const std::string text = std::string(name(k)) + "/" + std::string(name(v)) + " " + std::string(name(layout)) +
                                   " from " + std::string(name(source)) + (gap ? " with gaps" : "");
          visit(text, [=, k = k, v = v] { return AppendCase(k, source, layout, gap, 3, 64, scales, 96, v); });
        }
}

/// Pairs of types of K and V that are unlike: every type is each side once, and each form of scales comes up.
inline const std::vector<std::pair<DType, DType>>& unlike_pairs() {
  static const std::vector<std::pair<DType, DType>> list = {
      {DType::f32, DType::i8},           {DType::i8, DType::fp8_e4m3fn},   {DType::fp8_e4m3fn, DType::bf16},
      {DType::bf16, DType::fp8_e5m2},    {DType::fp8_e5m2, DType::f16},    {DType::f16, DType::fp8_e4m3fnuz},
      {DType::fp8_e4m3fnuz, DType::f32}, {DType::fp8_e5m2fnuz, DType::i8}, {DType::i8, DType::fp8_e5m2fnuz},
      {DType::bf16, DType::f16},
  };
  return list;
}

/// Result of merging two rows in fp64, and the tolerance for f32 arithmetic and the rounding of the output.
struct MergedLse {
  MergedLse(double lse_a, double lse_b)
      : a(lse_a), b(lse_b), value(std::max(a, b) + std::log1p(std::exp(-std::fabs(a - b)))), tolerance(4 * kUnit * scale()) {}
  double element(double from_a, double from_b) const { return std::exp(a - value) * from_a + std::exp(b - value) * from_b; }
  /// Output rounding (half the spacing of subnormals at least), plus 16 f32 roundings on each weight (differences of lse carry
  /// u * |lse|).
  double element_tolerance(double from_a, double from_b, DType dtype) const {
    const double u = dtype == DType::f32 ? kUnit : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    const double half_subnormal = dtype == DType::f16 ? 0x1p-25 : 0x1p-134;
    const double terms = std::fabs(std::exp(a - value) * from_a) + std::fabs(std::exp(b - value) * from_b);
    return half_subnormal + u * std::fabs(element(from_a, from_b)) + 16 * kUnit * terms * scale();
  }

  double a, b, value, tolerance;

 private:
  static constexpr double kUnit = 0x1p-24;
  double scale() const { return 1.0 + std::fabs(a) + std::fabs(b); }
};

struct MergeCase {
  static constexpr std::int64_t kTokens = 9, kHeads = 5, kDim = 24;

  MergeCase(DType dtype, bool gap) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    for (Tensor* t : {&out_a, &out_b, &out}) *t = make_tensor(storage, dtype, {kTokens, kHeads, kDim}, gap);
    for (Tensor* t : {&lse_a, &lse_b, &lse}) *t = make_tensor(storage, DType::f32, {kTokens, kHeads}, gap);
    for (const auto& [values, sums] : {std::pair{&out_a, &lse_a}, {&out_b, &lse_b}})
      for (std::int64_t t = 0; t < kTokens; ++t)
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const bool empty = (t == 2 && sums == &lse_a) || (t == 4 && sums == &lse_b) || t == 7;
          set(*sums, {t, h}, static_cast<double>(empty ? -INFINITY : 3.0f * normal(random)));
          for (std::int64_t d = 0; d < kDim; ++d) set(*values, {t, h, d}, empty ? NAN : normal(random));
        }
  }

  Storage storage;
  Tensor out_a, out_b, out, lse_a, lse_b, lse;
};

/// A stack of finished partial results; part t % (parts + 1) of row t is empty, all parts of row 7 are.
struct StackCase {
  static constexpr std::int64_t kTokens = 9, kHeads = 5, kDim = 70;

  StackCase(DType dtype, bool gap, std::int64_t parts) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    outs = make_tensor(storage, dtype, {parts, kTokens, kHeads, kDim}, gap);
    lses = make_tensor(storage, DType::f32, {parts, kTokens, kHeads}, gap);
    out = make_tensor(storage, dtype, {kTokens, kHeads, kDim}, gap);
    lse = make_tensor(storage, DType::f32, {kTokens, kHeads}, gap);
    for (std::int64_t i = 0; i < parts; ++i)
      for (std::int64_t t = 0; t < kTokens; ++t)
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const bool empty = i == t % (parts + 1) || t == 7;
          set(lses, {i, t, h}, static_cast<double>(empty ? -INFINITY : 3.0f * normal(random)));
          for (std::int64_t d = 0; d < kDim; ++d) set(outs, {i, t, h, d}, static_cast<double>(empty ? NAN : normal(random)));
        }
  }

  Storage storage;
  Tensor outs, lses, out, lse;
};

/// Calls visit(dtype, gap, parts).
template <class Visit>
void for_each_stack(Visit&& visit) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool gap : {false, true})
      for (const std::int64_t parts : {1, 2, 5}) visit(dtype, gap, parts);
}

/// Calls visit(dtype, gap, in_place).
template <class Visit>
void for_each_merge(Visit&& visit) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool gap : {false, true})
      for (const bool in_place : {false, true}) visit(dtype, gap, in_place);
}

}  // namespace quire::test
