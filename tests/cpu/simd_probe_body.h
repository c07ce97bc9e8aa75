// SPDX-License-Identifier: Apache-2.0
// The probe's functions for one vector type. Included once per instruction set; anonymous so that each unit keeps its own. Probes
// are constants: code that made them when the program starts would have the instruction set of its unit.
#pragma once

#include "backend/cpu/attend_tile.h"
#include "backend/cpu/elements.h"
#include "cpu/simd_probe.h"

namespace quire::test {
namespace {

template <class V>
constexpr SimdProbe make_probe(const char* name, std::uint32_t features) {
  SimdProbe p{};
  p.name = name;
  p.cpu_features = features;
  p.width = V::kWidth;
  p.exp = [](const float* x, float* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += V::kWidth) V::store(y + i, V::exp(V::load(x + i)));
  };
  p.tanh = [](const float* x, float* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += V::kWidth) V::store(y + i, V::tanh(V::load(x + i)));
  };
  p.store_f16 = [](const float* x, std::uint16_t* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += V::kWidth) V::store_f16(y + i, V::load(x + i));
  };
  p.store_bf16 = [](const float* x, std::uint16_t* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += V::kWidth) V::store_bf16(y + i, V::load(x + i));
  };
  p.load_f16 = [](const std::uint16_t* x, float* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += V::kWidth) V::store(y + i, V::load_f16(x + i));
  };
  p.load_bf16 = [](const std::uint16_t* x, float* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += V::kWidth) V::store(y + i, V::load_bf16(x + i));
  };
  p.load_fp8 = [](const cpu::RowSource& codes, float* y, std::int64_t n) { cpu::convert_run<V>(y, codes, 0, n); };
  p.load_block_row = [](const cpu::RowSource& rows, float* y, std::int64_t number) { cpu::load_block_row<V>(y, rows, number); };
  p.transpose = [](const float* src, float* dst) { cpu::transpose_block<V>(src, V::kWidth, dst, V::kWidth); };
  if constexpr (V::kWidth >= 8)
    p.split_bf16 = [](const std::uint16_t* x, float* even, float* odd) {
      const typename V::Reg pairs = V::load(reinterpret_cast<const float*>(x));
      V::store(even, V::even_bf16(pairs));
      V::store(odd, V::odd_bf16(pairs));
    };
  p.keep = [](float* row, int first, int begin, int end) {
    V::store(row, V::keep(V::load(row), first, begin, end, V::set1(-1.0f)));
  };
  p.reduce_max = [](const float* x) { return V::reduce_max(V::load(x)); };
  p.reduce_add = [](const float* x) { return V::reduce_add(V::load(x)); };
  p.any_nan = [](const float* x) { return V::any_nan(V::load(x)); };
  return p;
}

}  // namespace
}  // namespace quire::test
