// SPDX-License-Identifier: Apache-2.0
// The vector interface of attend_body.h on AArch64 Advanced SIMD (NEON), base architecture only: f16 is converted by its
// instructions, bf16 by shifts. Operation names follow Arm's intrinsics reference.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/faults.h"
#include "backend/cpu/simd_exp.h"
#include "quire/tensor.hpp"

namespace quire::cpu {

struct NeonSimd {
  using Faults = NoFaults;
  static constexpr int kWidth = 4;
  static constexpr int kRows = 6;  // 6 x 4 accumulators + 5 operands fit the 32 registers
  static constexpr int kCols = 4;
  static constexpr int kDirectRows = 4;  // direct path: 4 x 4 keys + 5 operands
  static constexpr int kPairs = 1;
  static constexpr bool kTransposesWords = false;
  static constexpr std::int64_t kTransposedCodes = 0;
  static constexpr bool kWidensFp8 = false;  // Fp8Codes, fp8_rows_as_bf16()

  using Reg = float32x4_t;

  static Reg set1(float x) { return vdupq_n_f32(x); }
  static Reg lanes() {
    const float index[kWidth] = {0, 1, 2, 3};
    return vld1q_f32(index);
  }
  static Reg load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, Reg a) { vst1q_f32(p, a); }
  static Reg load_f16(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static Reg load_bf16(const std::uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  /// By way of f16: e5m2 is its upper byte; e4m3 has its fields seven bits lower, with another bias. NaN codes of e4m3 excepted.
  template <DType kType>
  static Reg load_fp8(const std::uint8_t* p, const float* table) {
    if constexpr (kType == DType::fp8_e5m2fnuz) return look_up(p, table);
    std::uint32_t four;
    std::memcpy(&four, p, sizeof four);
    const uint8x8_t codes = vcreate_u8(four);
    if constexpr (kType == DType::fp8_e5m2)
      return vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(vget_low_u16(vmovl_u8(codes)), 8)));
    const uint16x4_t wide = vreinterpret_u16_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(codes))));
    const uint16x4_t half = vand_u16(vshl_n_u16(wide, 7), vdup_n_u16(0xBFFF));
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(half)), kType == DType::fp8_e4m3fn ? 256.0f : 128.0f);
  }
  static Reg load_i8(const std::uint8_t* p) {
    std::uint32_t four;
    std::memcpy(&four, p, sizeof four);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(vcreate_u8(four))))));
  }
  /// 16 codes of e2m1: a value has two bytes that are not zero, and each is looked up.
  static void load_e2m1(const std::uint8_t* p, Reg (&to)[4]) {
    constexpr std::uint8_t kUpper[16] = {0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,
                                         0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0};
    constexpr std::uint8_t kLower[16] = {0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0,
                                         0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0};
    const uint8x8_t pairs = vld1_u8(p);
    const uint8x8x2_t codes = vzip_u8(vand_u8(pairs, vdup_n_u8(15)), vshr_n_u8(pairs, 4));
    const uint8x16_t index = vcombine_u8(codes.val[0], codes.val[1]);
    const uint8x16_t upper = vqtbl1q_u8(vld1q_u8(kUpper), index), lower = vqtbl1q_u8(vld1q_u8(kLower), index);
    const uint16x8_t first = vreinterpretq_u16_u8(vzip1q_u8(lower, upper)),
                     second = vreinterpretq_u16_u8(vzip2q_u8(lower, upper));
    to[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(first), 16));
    to[1] = vreinterpretq_f32_u32(vshll_high_n_u16(first, 16));
    to[2] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(second), 16));
    to[3] = vreinterpretq_f32_u32(vshll_high_n_u16(second, 16));
  }
  static bool has_code(const std::uint8_t* p, std::int64_t count, std::uint8_t or_mask, std::uint8_t code) {
    const uint8x16_t mask = vdupq_n_u8(or_mask), wanted = vdupq_n_u8(code);
    uint8x16_t found = vdupq_n_u8(0);
    std::int64_t i = 0;
    for (; i + 16 <= count; i += 16) found = vorrq_u8(found, vceqq_u8(vorrq_u8(vld1q_u8(p + i), mask), wanted));
    bool any = vmaxvq_u8(found) != 0;
    for (; i < count; ++i) any |= (p[i] | or_mask) == code;
    return any;
  }
  static Reg look_up(const std::uint8_t* p, const float* table) {
    const float values[kWidth] = {table[p[0]], table[p[1]], table[p[2]], table[p[3]]};
    return vld1q_f32(values);
  }
  static void store_f16(std::uint16_t* p, Reg a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
  static void store_bf16(std::uint16_t* p, Reg a) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a), upper = vshrq_n_u32(bits, 16);
    const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF))), 16);
    const uint32x4_t quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
    vst1_u16(p, vmovn_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet)));
  }

  static Reg add(Reg a, Reg b) { return vaddq_f32(a, b); }
  static Reg sub(Reg a, Reg b) { return vsubq_f32(a, b); }
  static Reg mul(Reg a, Reg b) { return vmulq_f32(a, b); }
  static Reg div(Reg a, Reg b) { return vdivq_f32(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return vfmaq_f32(c, a, b); }
  static Reg dot(Reg a, Reg b, Reg c) { return fma(a, b, c); }
  static Reg abs(Reg a) { return vabsq_f32(a); }
  static Reg copy_sign(Reg a, Reg sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, a); }
  static Reg round(Reg a) { return vrndnq_f32(a); }
  /// Valid where 2^n is a normal number; lanes outside are replaced by zero_below.
  static Reg times_power_of_two(Reg a, Reg n) {
    const int32x4_t exponent = vshlq_n_s32(vcvtnq_s32_f32(n), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), exponent));
  }
  static Reg max_ignoring_nan(Reg a, Reg b) { return vmaxnmq_f32(a, b); }
  static bool any_nan(Reg a) { return vminvq_u32(vceqq_f32(a, a)) == 0; }
  static Reg keep(Reg a, int first, int begin, int end, Reg other) {
    const std::int32_t lane[kWidth] = {0, 1, 2, 3};
    const int32x4_t index = vaddq_s32(vld1q_s32(lane), vdupq_n_s32(first));
    const uint32x4_t within = vandq_u32(vcgeq_s32(index, vdupq_n_s32(begin)), vcltq_s32(index, vdupq_n_s32(end)));
    return vbslq_f32(within, a, other);
  }
  static Reg zero_below(Reg x, float limit, Reg value) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), vcltq_f32(x, vdupq_n_f32(limit))));
  }
  static float lowest(Reg a) { return vgetq_lane_f32(a, 0); }
  static float reduce_max(Reg a) { return vmaxvq_f32(a); }
  static float reduce_add(Reg a) { return vaddvq_f32(a); }
  /// to[i] = sum of the lanes of the i-th register.
  static void store_sums(float* to, Reg a, Reg b, Reg c, Reg d) { store(to, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d))); }
  static Reg exp(Reg a) { return exp_by_polynomial<NeonSimd>(a); }
  static Reg tanh(Reg a) { return tanh_by_exp<NeonSimd>(a); }

  /// The rows of a 4 x 4 block become its columns.
  static void transpose(Reg (&a)[kWidth]) {
    const auto pairs = [](Reg x) { return vreinterpretq_f64_f32(x); };
    const float64x2_t ab0 = pairs(vtrn1q_f32(a[0], a[1])), ab1 = pairs(vtrn2q_f32(a[0], a[1]));
    const float64x2_t cd0 = pairs(vtrn1q_f32(a[2], a[3])), cd1 = pairs(vtrn2q_f32(a[2], a[3]));
    a[0] = vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0));
    a[1] = vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1));
    a[2] = vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0));
    a[3] = vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1));
  }
};

}  // namespace quire::cpu
