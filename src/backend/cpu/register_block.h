// SPDX-License-Identifier: Apache-2.0
// Stage: attend. A block of a matrix in registers, as members of structures: GCC 12 keeps an array of registers in memory around
// a loop.
#pragma once

#include <cstdint>

#include "backend/cpu/elements.h"

namespace quire::cpu {
namespace {

/// kCols vectors of one row.
template <class V, int kCols>
struct RegisterRow {
  using Reg = typename V::Reg;
  Reg first;
  RegisterRow<V, kCols - 1> others;

  static __attribute__((always_inline)) RegisterRow zero() { return {V::set1(0.0f), RegisterRow<V, kCols - 1>::zero()}; }
  template <DType kType>
  static __attribute__((always_inline)) RegisterRow of(const std::uint8_t* row, std::int64_t d) {
    return {load_elements<V, kType>(row, d), RegisterRow<V, kCols - 1>::template of<kType>(row, d + V::kWidth)};
  }
  static __attribute__((always_inline)) RegisterRow of(const float* row) {
    return {V::load(row), RegisterRow<V, kCols - 1>::of(row + V::kWidth)};
  }
  static __attribute__((always_inline)) RegisterRow scaled(const float* row, Reg factor) {
    return {V::mul(V::load(row), factor), RegisterRow<V, kCols - 1>::scaled(row + V::kWidth, factor)};
  }
  __attribute__((always_inline)) void add(Reg p, const RegisterRow& x) {
    first = V::fma(p, x.first, first);
    others.add(p, x.others);
  }
  __attribute__((always_inline)) void add_dot(Reg q, const RegisterRow& x) {
    first = V::dot(q, x.first, first);
    others.add_dot(q, x.others);
  }
  __attribute__((always_inline)) void store(float* row) const {
    V::store(row, first);
    others.store(row + V::kWidth);
  }
};
template <class V>
struct RegisterRow<V, 0> {
  using Reg = typename V::Reg;
  static RegisterRow zero() { return {}; }
  template <DType kType>
  static RegisterRow of(const std::uint8_t*, std::int64_t) {
    return {};
  }
  static RegisterRow of(const float*) { return {}; }
  static RegisterRow scaled(const float*, Reg) { return {}; }
  void add(Reg, const RegisterRow&) {}
  void add_dot(Reg, const RegisterRow&) {}
  void store(float*) const {}
};

/// kRows such rows. Factors of rows lie `pitch` floats apart.
template <class V, int kRows, int kCols>
struct RegisterBlock {
  using Row = RegisterRow<V, kCols>;
  Row mine;
  RegisterBlock<V, kRows - 1, kCols> others;

  static __attribute__((always_inline)) RegisterBlock zero() { return {Row::zero(), RegisterBlock<V, kRows - 1, kCols>::zero()}; }
  static __attribute__((always_inline)) RegisterBlock scaled(const float* rows, std::int64_t stride, const float* factors) {
    return {Row::scaled(rows, V::set1(*factors)), RegisterBlock<V, kRows - 1, kCols>::scaled(rows + stride, stride, factors + 1)};
  }
  __attribute__((always_inline)) void add(const float* factors, std::int64_t pitch, const Row& x) {
    mine.add(V::set1(*factors), x);
    others.add(factors + pitch, pitch, x);
  }
  __attribute__((always_inline)) void add_dots(const float* factors, std::int64_t pitch, const Row& x) {
    mine.add_dot(V::set1(*factors), x);
    others.add_dots(factors + pitch, pitch, x);
  }
  __attribute__((always_inline)) void store(float* rows, std::int64_t stride) const {
    mine.store(rows);
    others.store(rows + stride, stride);
  }
};
template <class V, int kCols>
struct RegisterBlock<V, 0, kCols> {
  using Row = RegisterRow<V, kCols>;
  static RegisterBlock zero() { return {}; }
  static RegisterBlock scaled(const float*, std::int64_t, const float*) { return {}; }
  void add(const float*, std::int64_t, const Row&) {}
  void add_dots(const float*, std::int64_t, const Row&) {}
  void store(float*, std::int64_t) const {}
};

}  // namespace
}  // namespace quire::cpu
