// SPDX-License-Identifier: Apache-2.0
// Small cases drawn at random, for every test that asks the oracle the same question in two ways.
#pragma once

#include "support/small_case.h"

namespace quire::test {

/// Options drawn so that every pair of values meets often in 400 cases.
inline SmallSpec random_spec(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  SmallSpec spec;
  Problem& p = spec.problem;
  spec.seed = seed;
  p.q_dtype = pick(DType::f32, DType::f16, DType::bf16);
  p.kv_dtype =
      pick(DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz);
  if (p.kv_dtype == DType::f32) p.q_dtype = DType::f32;
  p.layout = pick(CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed);
  p.num_kv_heads = pick(1, 2, 3);
  p.num_q_heads = p.num_kv_heads * pick(1, 2, 5);
  p.head_dim = p.layout == CacheLayout::packed ? packed_x(p.kv_dtype) * pick(1, 2, 3) : pick(1, 7, 8, 24, 33);
  p.page_size = pick(1, 3, 8, 16);
  if (random() % 2 == 0) p.sliding_window = pick(1, 2, 7, 8, 9, 30, 1000);
  if (random() % 3 == 0) p.logits_soft_cap = pick(0.5f, 3.0f, 30.0f);
  if (random() % 3 == 0) p.softmax_scale = pick(0.05f, 1.0f, 0.7f);
  p.alibi = random() % 2 == 0;
  p.sinks = random() % 2 == 0;
  p.k_scale = pick(ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head);
  p.v_scale = pick(ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head);
  spec.index_dtype = pick(DType::i32, DType::i64);
  spec.strided = random() % 2 == 0;
  if (random() % 3 == 0) p.v_head_dim = pick(1, 6, 16, 37);
  const int num_reqs = pick(1, 2, 4);
  for (int r = 0; r < num_reqs; ++r) {
    Request req{pick(0, 1, 1, 2, 5, 17), pick(0, 1, 7, 8, 31), 0};
    req.cached_len = req.context_len + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(req.query_len + 1));
    p.reqs.push_back(req);
  }
  return spec;
}

}  // namespace quire::test
