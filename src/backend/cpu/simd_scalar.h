// SPDX-License-Identifier: Apache-2.0
// The vector interface of attend_body.h in portable C++: four lanes that any compiler can map to what it has.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cpu/faults.h"
#include "semantics/dtype.h"
#include "semantics/fp4.h"

namespace quire::cpu {

/// The interface: width, register blocking, loads from each stored type, arithmetic, selection by lane index.
struct ScalarSimd {
  using Faults = NoFaults;
  static constexpr int kWidth = 4;
  static constexpr int kRows = 2;   ///< query rows per register block
  static constexpr int kCols = 2;   ///< vectors per register block
  static constexpr int kPairs = 1;  ///< products in one step of a score's chain: 2 if queries and keys are bf16 pairs
  static constexpr bool kTransposesWords = false;
  static constexpr std::int64_t kTransposedCodes = 0;
  static constexpr bool kWidensFp8 = false;  // Fp8Codes, fp8_rows_as_bf16()
  static constexpr int kDirectRows = 2;      ///< rows scored together on the direct path

  struct Reg {
    float v[kWidth];
  };

  template <typename F>
  static Reg make(F&& f) {
    Reg r;
    for (int i = 0; i < kWidth; ++i) r.v[i] = f(i);
    return r;
  }

  static Reg set1(float x) {
    return make([&](int) { return x; });
  }
  static Reg lanes() {
    return make([](int i) { return static_cast<float>(i); });
  }
  static Reg load(const float* p) {
    return make([&](int i) { return p[i]; });
  }
  static void store(float* p, Reg a) {
    for (int i = 0; i < kWidth; ++i) p[i] = a.v[i];
  }
  static Reg load_f16(const std::uint16_t* p) {
    return make([&](int i) { return semantics::f16_decode(p[i]); });
  }
  static Reg load_bf16(const std::uint16_t* p) {
    return make([&](int i) { return semantics::bf16_decode(p[i]); });
  }
  /// Codes as f32, by whatever is fastest; `table` holds all values. NaN codes of e4m3 excepted: see has_code.
  template <DType kType>
  static Reg load_fp8(const std::uint8_t* p, const float* table) {
    return look_up(p, table);
  }
  static Reg load_i8(const std::uint8_t* p) {
    return make([&](int i) { return static_cast<float>(static_cast<std::int8_t>(p[i])); });
  }
  /// 16 codes of e2m1, two in a byte, the even one in its low bits.
  static void load_e2m1(const std::uint8_t* p, Reg (&to)[16 / kWidth]) {
    for (int r = 0; r < 16 / kWidth; ++r)
      to[r] = make([&](int i) { return semantics::e2m1_decode(semantics::load_code4(p, r * kWidth + i)); });
  }
  /// Whether (p[i] | or_mask) == code for some i < count, a multiple of kWidth. Here nothing needs to be excepted.
  static bool has_code(const std::uint8_t*, std::int64_t, std::uint8_t, std::uint8_t) { return false; }
  static Reg look_up(const std::uint8_t* p, const float* table) {
    return make([&](int i) { return table[p[i]]; });
  }
  static void store_f16(std::uint16_t* p, Reg a) {
    for (int i = 0; i < kWidth; ++i) p[i] = semantics::f16_encode(a.v[i]);
  }
  static void store_bf16(std::uint16_t* p, Reg a) {
    for (int i = 0; i < kWidth; ++i) p[i] = semantics::bf16_encode(a.v[i]);
  }

  static Reg add(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] + b.v[i]; });
  }
  static Reg sub(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] - b.v[i]; });
  }
  static Reg mul(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] * b.v[i]; });
  }
  static Reg div(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] / b.v[i]; });
  }
  static Reg fma(Reg a, Reg b, Reg c) {
    return make([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  /// One step of a score: kPairs products added to c.
  static Reg dot(Reg a, Reg b, Reg c) { return fma(a, b, c); }
  /// Larger of the two; `b` where `a` is NaN.
  static Reg max_ignoring_nan(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static bool any_nan(Reg a) {
    bool found = false;
    for (float x : a.v) found |= x != x;
    return found;
  }
  /// `a` in lanes whose index + first lies in [begin, end), `other` elsewhere.
  static Reg keep(Reg a, int first, int begin, int end, Reg other) {
    return make([&](int i) { return first + i >= begin && first + i < end ? a.v[i] : other.v[i]; });
  }
  /// Lane 0.
  static float lowest(Reg a) { return a.v[0]; }
  static float reduce_max(Reg a) {
    float m = a.v[0];
    for (float x : a.v) m = x > m ? x : m;
    return m;
  }
  /// to[i] = sum of the lanes of the i-th register.
  static void store_sums(float* to, Reg a, Reg b, Reg c, Reg d) {
    to[0] = reduce_add(a);
    to[1] = reduce_add(b);
    to[2] = reduce_add(c);
    to[3] = reduce_add(d);
  }
  static float reduce_add(Reg a) { return (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]); }
  static Reg exp(Reg a) {
    return make([&](int i) { return expf(a.v[i]); });
  }
  static Reg tanh(Reg a) {
    return make([&](int i) { return tanhf(a.v[i]); });
  }

  /// The rows of a kWidth x kWidth block become its columns.
  static void transpose(Reg (&a)[kWidth]) {
    for (int r = 0; r < kWidth; ++r)
      for (int c = 0; c < r; ++c) {
        const float below = a[r].v[c];
        a[r].v[c] = a[c].v[r];
        a[c].v[r] = below;
      }
  }
};

}  // namespace quire::cpu
