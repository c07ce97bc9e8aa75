// SPDX-License-Identifier: Apache-2.0
// AMD device code from the compiler's builtins alone: what runtime.h is made of there, and device forms of the C functions that
// the semantics headers call. Must come before any standard header, so that std:: sees the device overloads, too.
#pragma once

#define QUIRE_HIP_DEVICE __attribute__((device)) inline __attribute__((always_inline))

using size_t = decltype(sizeof(0));

QUIRE_HIP_DEVICE void* memcpy(void* to, const void* from, size_t bytes) { return __builtin_memcpy(to, from, bytes); }
/// Errors relative to the result: v_exp_f32 and v_log_f32 are within one unit in the last place, the change of base adds one
/// rounding relative to the argument of exp.
QUIRE_HIP_DEVICE float expf(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504f); }
QUIRE_HIP_DEVICE float logf(float x) { return __builtin_amdgcn_logf(x) * 0.693147181f; }
/// 1 - 2 / (exp(2 |x|) + 1): three roundings of quantities of at most 1, so the absolute error stays within the 4 u of
/// numerics.md.
QUIRE_HIP_DEVICE float tanhf(float x) {
  const float rest = 2.0f / (__builtin_amdgcn_exp2f(__builtin_fabsf(x) * 2.88539008f) + 1.0f);
  return __builtin_copysignf(1.0f - rest, x);
}

namespace quire::gpu::hip {

QUIRE_HIP_DEVICE int num_blocks() {
  // Code object v5: the implicit arguments begin with the number of workgroups in x.
  return *(const __attribute__((address_space(4))) int*)__builtin_amdgcn_implicitarg_ptr();  // a C cast crosses address spaces
}

QUIRE_HIP_DEVICE void block_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

QUIRE_HIP_DEVICE int lane_index() {
#if defined(__GFX9__)
  return static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)));
#else
  return static_cast<int>(__builtin_amdgcn_mbcnt_lo(~0u, 0u));
#endif
}

QUIRE_HIP_DEVICE unsigned shuffle(unsigned value, int lane) {
  return static_cast<unsigned>(__builtin_amdgcn_ds_bpermute(lane << 2, static_cast<int>(value)));
}

/// A wave's accesses to shared memory are carried out in order, so this only keeps the compiler from changing the order.
QUIRE_HIP_DEVICE void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

/// Returns the value, but hides it from the compiler's optimiser.
QUIRE_HIP_DEVICE int opaque(int value) {
  asm volatile("" : "+v"(value));
  return value;
}

QUIRE_HIP_DEVICE void compute_here(float& value) { asm volatile("" : "+v"(value)); }

/// The arguments as the launch left them, which the compiler cannot know to be what it has read before.
template <class Args>
QUIRE_HIP_DEVICE const Args& read_arguments() {
  auto* arguments = (const __attribute__((address_space(4))) Args*)__builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(arguments));
  return *(const Args*)arguments;
}

template <class T>
QUIRE_HIP_DEVICE T atomic_add(T* at, T value) {
  return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <class T>
QUIRE_HIP_DEVICE void atomic_set(T* at, T value) {
  __hip_atomic_store(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

/// Reads global memory. A volatile load would be a flat one, which may be of shared memory and waits for both.
template <class T>
QUIRE_HIP_DEVICE T atomic_get(const T* at) {
  return __hip_atomic_load(at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <class T>
QUIRE_HIP_DEVICE void store_for_host(T* at, T value) {
  __hip_atomic_store(at, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

}  // namespace quire::gpu::hip
