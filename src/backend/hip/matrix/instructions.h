// SPDX-License-Identifier: Apache-2.0
// What AMD's matrix kernels need of the instruction set beside runtime.h: products of 16x16 matrices and fp8 conversions.
// Compiled for AMD each is one builtin; in tests/simt each is a model that all lanes of a wave enter together.
#pragma once

#include "backend/gpu/runtime.h"

#if defined(QUIRE_SIMT)
/// tests/simt/matrix_unit.cpp. Element -> (lane, register) is AMD's published layout of the instruction.
namespace quire::simt {
enum class MatrixUnit { mfma, wmma_gfx11, wmma_gfx12 };
/// d += a * b of 16x16 matrices; every lane of the wave brings its registers.
void multiply(MatrixUnit unit, bool bf16, const std::uint32_t* a, const std::uint32_t* b, float* d, const char* file, int line);
}  // namespace quire::simt
#endif

namespace quire::hip::matrix {

/// Registers: 32-bit words, as wide as one aligned load of them.
template <int kCount>
struct alignas(kCount >= 4 ? 16 : 4 * kCount) Words {
  std::uint32_t word[kCount];
};

template <int kCount>
struct Floats {
  float x[kCount];
};

struct Float2 {
  float x, y;
};

/// Which fp8 formats the conversion instructions of a device read: none, e4m3fnuz and e5m2fnuz, or e4m3fn and e5m2.
enum class Fp8Unit { none, fnuz, ocp };

#if defined(__HIP__)

#define QUIRE_VECTOR(type, count) type __attribute__((ext_vector_type(count)))

#if defined(__GFX9__)
QUIRE_DEVICE void mfma_f16(Floats<4>& d, const Words<2>& a, const Words<2>& b) {
  using Half4 = QUIRE_VECTOR(_Float16, 4);
  using Float4 = QUIRE_VECTOR(float, 4);
  d = __builtin_bit_cast(Floats<4>,
                         __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Half4, a), __builtin_bit_cast(Half4, b),
                                                               __builtin_bit_cast(Float4, d), 0, 0, 0));
}
QUIRE_DEVICE void mfma_bf16(Floats<4>& d, const Words<2>& a, const Words<2>& b) {
  using Short4 = QUIRE_VECTOR(short, 4);
  using Float4 = QUIRE_VECTOR(float, 4);
  d = __builtin_bit_cast(Floats<4>,
                         __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Short4, a), __builtin_bit_cast(Short4, b),
                                                                   __builtin_bit_cast(Float4, d), 0, 0, 0));
}
#elif defined(__GFX11__)
QUIRE_DEVICE void wmma_gfx11_f16(Floats<8>& d, const Words<8>& a, const Words<8>& b) {
  using Half16 = QUIRE_VECTOR(_Float16, 16);
  using Float8 = QUIRE_VECTOR(float, 8);
  d = __builtin_bit_cast(Floats<8>,
                         __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(Half16, a), __builtin_bit_cast(Half16, b),
                                                                    __builtin_bit_cast(Float8, d)));
}
QUIRE_DEVICE void wmma_gfx11_bf16(Floats<8>& d, const Words<8>& a, const Words<8>& b) {
  using Short16 = QUIRE_VECTOR(short, 16);
  using Float8 = QUIRE_VECTOR(float, 8);
  d = __builtin_bit_cast(
      Floats<8>, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Short16, a), __builtin_bit_cast(Short16, b),
                                                             __builtin_bit_cast(Float8, d)));
}
#elif defined(__GFX12__)
QUIRE_DEVICE void wmma_gfx12_f16(Floats<8>& d, const Words<4>& a, const Words<4>& b) {
  using Half8 = QUIRE_VECTOR(_Float16, 8);
  using Float8 = QUIRE_VECTOR(float, 8);
  d = __builtin_bit_cast(
      Floats<8>, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(Half8, a), __builtin_bit_cast(Half8, b),
                                                                  __builtin_bit_cast(Float8, d)));
}
QUIRE_DEVICE void wmma_gfx12_bf16(Floats<8>& d, const Words<4>& a, const Words<4>& b) {
  using Short8 = QUIRE_VECTOR(short, 8);
  using Float8 = QUIRE_VECTOR(float, 8);
  d = __builtin_bit_cast(
      Floats<8>, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Short8, a), __builtin_bit_cast(Short8, b),
                                                                   __builtin_bit_cast(Float8, d)));
}
#endif

/// An aligned piece of a row. An address that went through shared memory has lost where it points: without being told, the
/// compiler would ask at run time.
template <int kCount>
QUIRE_DEVICE Words<kCount> load_global(std::uint64_t address) {
  using Vector = std::uint32_t __attribute__((ext_vector_type(kCount), aligned(alignof(Words<kCount>))));
  return __builtin_bit_cast(Words<kCount>, *(const __attribute__((address_space(1))) Vector*)address);
}
QUIRE_DEVICE std::uint32_t load_global_byte(std::uint64_t address) {
  return *(const __attribute__((address_space(1))) std::uint8_t*)address;
}
QUIRE_DEVICE std::uint32_t load_global_half(std::uint64_t address) {
  return *(const __attribute__((address_space(1))) std::uint16_t*)address;
}

#undef QUIRE_VECTOR

/// Codes 2 * kPair and 2 * kPair + 1 of a word, in the formats of the device's unit, if it has one.
template <Fp8Unit, int kPair>
QUIRE_DEVICE Float2 fp8_pair(std::uint32_t codes);
template <Fp8Unit, int kPair>
QUIRE_DEVICE Float2 bf8_pair(std::uint32_t codes);
#if defined(__gfx942__) || defined(__gfx950__) || defined(__GFX12__)
template <Fp8Unit, int kPair>
QUIRE_DEVICE Float2 fp8_pair(std::uint32_t codes) {
  return __builtin_bit_cast(Float2, __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(codes), kPair != 0));
}
template <Fp8Unit, int kPair>
QUIRE_DEVICE Float2 bf8_pair(std::uint32_t codes) {
  return __builtin_bit_cast(Float2, __builtin_amdgcn_cvt_pk_f32_bf8(static_cast<int>(codes), kPair != 0));
}
#endif

/// Two values that f16 holds exactly.
QUIRE_DEVICE std::uint32_t pack_exact_f16(float low, float high) {
  return __builtin_bit_cast(std::uint32_t, __builtin_amdgcn_cvt_pkrtz(low, high));
}

#elif defined(QUIRE_SIMT)

#define QUIRE_SIMT_PRODUCT(name, unit, bf16, sums, words)                                                  \
  QUIRE_DEVICE void name(Floats<sums>& d, const Words<words>& a, const Words<words>& b) {                  \
    simt::multiply(simt::MatrixUnit::unit, bf16, a.word, b.word, d.x, __builtin_FILE(), __builtin_LINE()); \
  }
QUIRE_SIMT_PRODUCT(mfma_f16, mfma, false, 4, 2)
QUIRE_SIMT_PRODUCT(mfma_bf16, mfma, true, 4, 2)
QUIRE_SIMT_PRODUCT(wmma_gfx11_f16, wmma_gfx11, false, 8, 8)
QUIRE_SIMT_PRODUCT(wmma_gfx11_bf16, wmma_gfx11, true, 8, 8)
QUIRE_SIMT_PRODUCT(wmma_gfx12_f16, wmma_gfx12, false, 8, 4)
QUIRE_SIMT_PRODUCT(wmma_gfx12_bf16, wmma_gfx12, true, 8, 4)
#undef QUIRE_SIMT_PRODUCT

/// Models of v_cvt_pk_f32_fp8 and v_cvt_pk_f32_bf8.
template <class Format, int kPair>
Float2 convert_pair_of(std::uint32_t codes) {
  return {semantics::fp8_decode<Format>(static_cast<std::uint8_t>(codes >> 16 * kPair)),
          semantics::fp8_decode<Format>(static_cast<std::uint8_t>(codes >> (16 * kPair + 8)))};
}
template <Fp8Unit kUnit, int kPair>
Float2 fp8_pair(std::uint32_t codes) {
  if constexpr (kUnit == Fp8Unit::fnuz) return convert_pair_of<semantics::E4m3fnuz, kPair>(codes);
  return convert_pair_of<semantics::E4m3fn, kPair>(codes);
}
template <Fp8Unit kUnit, int kPair>
Float2 bf8_pair(std::uint32_t codes) {
  if constexpr (kUnit == Fp8Unit::fnuz) return convert_pair_of<semantics::E5m2fnuz, kPair>(codes);
  return convert_pair_of<semantics::E5m2, kPair>(codes);
}

// NOLINTBEGIN(performance-no-int-to-ptr): the instructions take addresses as numbers
template <int kCount>
Words<kCount> load_global(std::uint64_t address) {
  return *reinterpret_cast<const Words<kCount>*>(address);
}
QUIRE_DEVICE std::uint32_t load_global_byte(std::uint64_t address) { return *reinterpret_cast<const std::uint8_t*>(address); }
QUIRE_DEVICE std::uint32_t load_global_half(std::uint64_t address) { return *reinterpret_cast<const std::uint16_t*>(address); }
// NOLINTEND(performance-no-int-to-ptr)

QUIRE_DEVICE std::uint32_t pack_exact_f16(float low, float high) {
  return gpu::f16_encode(low) | static_cast<std::uint32_t>(gpu::f16_encode(high)) << 16;
}

#endif

}  // namespace quire::hip::matrix
