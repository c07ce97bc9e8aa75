// SPDX-License-Identifier: Apache-2.0
// The only vendor shim: what kernels need of CUDA, of AMD's compiler (without ROCm's headers or device libraries), and of the x86
// stand-in that runs the same sources in tests (QUIRE_SIMT, tests/simt). One-dimensional blocks and grids. Include it first.
#pragma once

#if defined(__HIP__)
#include "backend/gpu/hip.h"
#endif

#include <cstdint>

#include "semantics/dtype.h"

#if defined(QUIRE_SIMT)
#include <cmath>
#include <type_traits>

/// The stand-in, defined by tests/simt. File and line tell calls apart: threads must meet at the same call.
namespace quire::simt {
int thread_index();
int block_index();
int num_blocks();
void barrier(const char* file, int line);
void wave_barrier(const char* file, int line);
std::int32_t wave_uniform(std::int32_t value, const char* file, int line);
void fence();
void buffer_store(float* to, float value);
void* shared_piece(int index, std::size_t bytes);
std::uint32_t shuffle(std::uint32_t value, int lane, const char* file, int line);
int wave_size();
}  // namespace quire::simt
#endif

namespace quire::gpu {

#if defined(__CUDACC__)

#define QUIRE_DEVICE __device__ __forceinline__
#define QUIRE_SHARED(name, bytes) __shared__ __align__(16) unsigned char name[bytes]

#define QUIRE_UNROLL _Pragma("unroll")
#define QUIRE_NO_UNROLL _Pragma("unroll 1")

QUIRE_DEVICE constexpr int wave_size() { return 32; }
QUIRE_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
QUIRE_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
QUIRE_DEVICE int num_blocks() { return static_cast<int>(gridDim.x); }
/// Barrier of all threads of the block: all threads see, after it, every write before it.
QUIRE_DEVICE void block_barrier() { __syncthreads(); }
/// Fence: a thread of the device that sees a later write of this thread also sees all earlier ones; and likewise for reads.
QUIRE_DEVICE void device_fence() { __threadfence(); }
QUIRE_DEVICE std::int32_t atomic_add(std::int32_t* at, std::int32_t value) { return atomicAdd(at, value); }
QUIRE_DEVICE void atomic_add(unsigned long long* at, unsigned long long value) { atomicAdd(at, value); }
QUIRE_DEVICE void atomic_set(std::int32_t* at, std::int32_t value) { atomicExch(at, value); }
QUIRE_DEVICE void atomic_set(unsigned long long* at, unsigned long long value) { atomicExch(at, value); }
/// A store that the host sees while the device goes on.
QUIRE_DEVICE void store_for_host(unsigned long long* at, unsigned long long value) {
  *static_cast<volatile unsigned long long*>(at) = value;
  __threadfence_system();
}
QUIRE_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
QUIRE_DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }  // no compiler fuses __fmul_rn
QUIRE_DEVICE float exp2(float x) { return exp2f(x); }
QUIRE_DEVICE float f16_decode(std::uint16_t code) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
  return value;
}
QUIRE_DEVICE std::uint16_t f16_encode(float value) {
  std::uint16_t code;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
  return code;
}
/// The value of lane `lane` of the wave; every lane takes part.
QUIRE_DEVICE std::uint32_t shuffle(std::uint32_t value, int lane) { return __shfl_sync(0xFFFFFFFFu, value, lane); }
/// The value of lane (own lane ^ mask); every lane of the wave takes part.
QUIRE_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, value, mask); }
QUIRE_DEVICE std::uint32_t shuffle_xor(std::uint32_t value, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, value, mask); }
/// Barrier of all lanes of the wave: all lanes see, after it, every write to shared memory before it.
QUIRE_DEVICE void wave_barrier() { __syncwarp(); }
/// wave_barrier() for lanes that are already synchronised: only the compiler must keep the order of accesses.
QUIRE_DEVICE void wave_order() { __syncwarp(); }
/// A value that all lanes of the wave have in common.
QUIRE_DEVICE std::int32_t wave_uniform(std::int32_t value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }
/// Three ways to save registers, where a compiler is too eager. thread_index(), anew at each call: what is computed from it is
/// not kept in registers from one end of a kernel to the other.
QUIRE_DEVICE int thread_here() { return thread_index(); }
/// The only argument of the kernel, which must be `args`, read anew: likewise.
template <class Args>
QUIRE_DEVICE const Args& args_here(const Args& args) {
  return args;
}
/// The value is computed no later than here, so that what it is made of need not be kept.
QUIRE_DEVICE void compute_here(float&) {}

#elif defined(__HIP__)

#define QUIRE_DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define QUIRE_SHARED(name, bytes) static __attribute__((shared)) __attribute__((aligned(16))) unsigned char name[bytes]

#define QUIRE_UNROLL _Pragma("unroll")
#define QUIRE_NO_UNROLL _Pragma("unroll 1")

#if defined(__GFX9__)
QUIRE_DEVICE constexpr int wave_size() { return 64; }
#else
QUIRE_DEVICE constexpr int wave_size() { return 32; }
#endif
QUIRE_DEVICE int thread_index() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
QUIRE_DEVICE int block_index() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
QUIRE_DEVICE int num_blocks() { return hip::num_blocks(); }
QUIRE_DEVICE void block_barrier() { hip::block_barrier(); }
QUIRE_DEVICE void device_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent"); }
QUIRE_DEVICE std::int32_t atomic_add(std::int32_t* at, std::int32_t value) { return hip::atomic_add(at, value); }
QUIRE_DEVICE void atomic_add(unsigned long long* at, unsigned long long value) { hip::atomic_add(at, value); }
QUIRE_DEVICE void atomic_set(std::int32_t* at, std::int32_t value) { hip::atomic_set(at, value); }
QUIRE_DEVICE void atomic_set(unsigned long long* at, unsigned long long value) { hip::atomic_set(at, value); }
QUIRE_DEVICE void store_for_host(unsigned long long* at, unsigned long long value) { hip::store_for_host(at, value); }
QUIRE_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
QUIRE_DEVICE float mul(float a, float b) {
#pragma clang fp contract(off)
  return a * b;
}
QUIRE_DEVICE float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
QUIRE_DEVICE float f16_decode(std::uint16_t code) { return static_cast<float>(__builtin_bit_cast(_Float16, code)); }
QUIRE_DEVICE std::uint16_t f16_encode(float value) { return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(value)); }
QUIRE_DEVICE std::uint32_t shuffle(std::uint32_t value, int lane) { return hip::shuffle(value, lane); }
QUIRE_DEVICE float shuffle_xor(float value, int mask) {
  return __builtin_bit_cast(float, hip::shuffle(__builtin_bit_cast(std::uint32_t, value), hip::lane_index() ^ mask));
}
QUIRE_DEVICE std::uint32_t shuffle_xor(std::uint32_t value, int mask) { return hip::shuffle(value, hip::lane_index() ^ mask); }
QUIRE_DEVICE void wave_barrier() { hip::wave_barrier(); }
QUIRE_DEVICE void wave_order() { hip::wave_barrier(); }
QUIRE_DEVICE std::int32_t wave_uniform(std::int32_t value) { return __builtin_amdgcn_readfirstlane(value); }
QUIRE_DEVICE int thread_here() { return hip::opaque(thread_index()); }
template <class Args>
QUIRE_DEVICE const Args& args_here(const Args&) {
  return hip::read_arguments<Args>();
}
QUIRE_DEVICE void compute_here(float& value) { hip::compute_here(value); }

#elif defined(QUIRE_SIMT)

#define QUIRE_DEVICE inline
#define QUIRE_UNROLL
#define QUIRE_NO_UNROLL

QUIRE_DEVICE int thread_index() { return simt::thread_index(); }
QUIRE_DEVICE int block_index() { return simt::block_index(); }
QUIRE_DEVICE int num_blocks() { return simt::num_blocks(); }
QUIRE_DEVICE void block_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { simt::barrier(file, line); }
QUIRE_DEVICE void device_fence() { simt::fence(); }
/// GPUs add modulo 2^32 and 2^64 (PTX ISA, "atom"); sums of fingerprints (layer.h) pass 2^31.
template <class T>
T atomic_add(T* at, T value) {
  using Unsigned = std::make_unsigned_t<T>;
  const T before = *at;
  *at = static_cast<T>(static_cast<Unsigned>(before) + static_cast<Unsigned>(value));
  return before;
}
QUIRE_DEVICE void atomic_set(std::int32_t* at, std::int32_t value) { *at = value; }
QUIRE_DEVICE void atomic_set(unsigned long long* at, unsigned long long value) { *at = value; }
QUIRE_DEVICE void store_for_host(unsigned long long* at, unsigned long long value) { *at = value; }
QUIRE_DEVICE float fma(float a, float b, float c) { return a * b + c; }
QUIRE_DEVICE float mul(float a, float b) { return a * b; }
QUIRE_DEVICE float exp2(float x) { return ::exp2f(x); }
QUIRE_DEVICE float f16_decode(std::uint16_t code) { return semantics::f16_decode(code); }
QUIRE_DEVICE std::uint16_t f16_encode(float value) { return semantics::f16_encode(value); }
QUIRE_DEVICE int wave_size() { return simt::wave_size(); }
QUIRE_DEVICE std::uint32_t shuffle(std::uint32_t value, int lane, const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE()) {
  return simt::shuffle(value, lane, file, line);
}
QUIRE_DEVICE float shuffle_xor(float value, int mask, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const int lane = (simt::thread_index() % simt::wave_size()) ^ mask;
  return semantics::bits_to_float(simt::shuffle(semantics::float_to_bits(value), lane, file, line));
}
QUIRE_DEVICE std::uint32_t shuffle_xor(std::uint32_t value, int mask, const char* file = __builtin_FILE(),
                                       int line = __builtin_LINE()) {
  return simt::shuffle(value, (simt::thread_index() % simt::wave_size()) ^ mask, file, line);
}
QUIRE_DEVICE void wave_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  simt::wave_barrier(file, line);
}
QUIRE_DEVICE void wave_order() {}
QUIRE_DEVICE std::int32_t wave_uniform(std::int32_t value, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return simt::wave_uniform(value, file, line);
}
QUIRE_DEVICE int thread_here() { return simt::thread_index(); }
template <class Args>
QUIRE_DEVICE const Args& args_here(const Args& args) {
  return args;  // NOLINT(bugprone-return-const-ref-from-parameter): a kernel's arguments outlive it
}
QUIRE_DEVICE void compute_here(float&) {}

#else
#error "backend/gpu is compiled by nvcc, by clang for AMD, or with QUIRE_SIMT"
#endif

/// A store that other blocks read after a device_fence(): the stand-in keeps it back until that fence.
QUIRE_DEVICE void store_for_others(float* to, float value) {
#if defined(QUIRE_SIMT)
  simt::buffer_store(to, value);
#else
  *to = value;
#endif
}

/// Hands out pieces of the block's shared memory, 16-byte aligned. All threads ask for the same pieces in the same order, so that
/// the stand-in can give each piece a guarded place of its own.
class SharedArea {
 public:
#if defined(QUIRE_SIMT)
  template <class T>
  T* take(int count) {
    return static_cast<T*>(simt::shared_piece(next_++, static_cast<std::size_t>(count) * sizeof(T)));
  }

 private:
  int next_ = 0;
#else
  QUIRE_DEVICE explicit SharedArea(unsigned char* memory) : memory_(memory) {}
  template <class T>
  QUIRE_DEVICE T* take(int count) {
    T* piece = reinterpret_cast<T*>(memory_);
    memory_ += (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
    return piece;
  }

 private:
  unsigned char* memory_;
#endif
};

/// Bytes of one piece, for adding up what a kernel takes.
template <class T>
constexpr int piece_bytes(int count) {
  return (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
}

}  // namespace quire::gpu
