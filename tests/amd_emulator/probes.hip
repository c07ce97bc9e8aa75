// SPDX-License-Identifier: Apache-2.0
// One small kernel for each fault that corrections.py mends and each model of conversions.cpp, with answers known in advance
// (probes.py). Blocks of 64 threads: one wave or two.
#include "backend/gpu/runtime.h"

struct Probe {
  const std::uint8_t* in;
  std::uint32_t* out;
};

#define QUIRE_PROBE(name) \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(64, 64))) void name(const Probe probe)

namespace gpu = quire::gpu;

/// Lanes without a source add nothing.
template <int kControl>
QUIRE_DEVICE int plus_dpp(int x) {
  return x + __builtin_amdgcn_update_dpp(0, x, kControl, 0xF, 0xF, false);
}

/// Permutations whose destination is their source: row_shr:1, row_shr:2, row_ror:4, row_mirror, quad_perm:[3,2,1,0], and where they
/// exist row_bcast:15 and row_bcast:31.
QUIRE_PROBE(probe_dpp) {
  int x = probe.in[gpu::thread_index()];
  x = plus_dpp<0x111>(x);
  x = plus_dpp<0x112>(x);
  x = plus_dpp<0x124>(x);
  x = plus_dpp<0x140>(x);
  x = plus_dpp<0x1B>(x);
#if defined(__GFX9__)
  x = plus_dpp<0x142>(x);
  x = plus_dpp<0x143>(x);
#endif
  probe.out[gpu::thread_index()] = static_cast<std::uint32_t>(x);
}

/// Two neighbouring bytes at any address: one load of 16 bits.
QUIRE_PROBE(probe_two_bytes) {
  const std::uint8_t* at = probe.in + 3 * gpu::thread_index();
  probe.out[gpu::thread_index()] = at[0] | at[1] << 8;
}

/// Four neighbouring bytes at an odd address: one store of 32 bits. The first thread begins at the second byte, the last one has no
/// room left.
QUIRE_PROBE(probe_four_bytes) {
  const int t = gpu::thread_index();
  if (t == 63) return;
  const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(probe.in)[t];
  auto* to = reinterpret_cast<std::uint8_t*>(probe.out) + 4 * t + 1;
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(word >> (8 * i));
}

/// Every third thread uses shared memory; the others have an address a gigabyte further.
QUIRE_PROBE(probe_divergent_shared) {
  static __attribute__((shared)) int values[64];
  const int t = gpu::thread_index();
  const bool mine = t % 3 == 0;
  int slot = probe.in[t] + (mine ? 0 : 0x10000000);
  asm volatile("" : "+v"(slot));
  if (mine) values[slot] = t;
  gpu::block_barrier();
  int found = -1;
  if (mine) found = values[slot];
  probe.out[t] = static_cast<std::uint32_t>(found);
}

/// Stores the result of a returning atomic.
QUIRE_PROBE(probe_atomic) {
  auto* counter = reinterpret_cast<std::int32_t*>(probe.out + 64);
  probe.out[gpu::thread_index()] = static_cast<std::uint32_t>(gpu::atomic_add(counter, gpu::thread_index() + 1));
}

#if defined(__GFX9__)
#if defined(__gfx90a__)
#define QUIRE_MFMA "v_mfma_f32_16x16x16f16"
#else
#define QUIRE_MFMA "v_mfma_f32_16x16x16_f16"
#endif
/// A 16-bit operation on registers beyond v127.
QUIRE_PROBE(probe_high_registers) {
  const int t = gpu::thread_index();
  int result = 0;
  const int first = probe.in[t] << 4;
  asm volatile(
      "v_mov_b32 v11, 0x7777\n v_mov_b32 v12, 0x5555\n v_mov_b32 v139, %1\n v_lshrrev_b16_e32 v140, 4, v139\n"
      "v_mov_b32 %0, v140"
      : "=v"(result)
      : "v"(first)
      : "v11", "v12", "v139", "v140");
  probe.out[t] = static_cast<std::uint32_t>(result);
}

#if defined(__gfx90a__)
/// 1000 - 3 x, by the multiplication and sum of two roundings.
QUIRE_PROBE(probe_multiply_add) {
  const int t = gpu::thread_index();
  float result = 0.0f;
  const float x = static_cast<float>(probe.in[t]), thousand = 1000.0f, three = 3.0f;
  asm volatile("v_mad_f32 %0, -%1, %2, |%3|" : "=v"(result) : "v"(x), "v"(three), "v"(-thousand));
  probe.out[t] = static_cast<std::uint32_t>(result);
}
#endif

/// A product whose D lies over half of its C: A and B are all ones, so every element of D is 16 more than C's.
QUIRE_PROBE(probe_overlapping_mfma) {
  const int t = gpu::thread_index();
  const int ones = 0x3C003C00;
  float d[4];
  const float first = static_cast<float>(probe.in[t]);
  asm volatile(
      "v_mov_b32 v30, %4\n v_mov_b32 v31, %4\n v_mov_b32 v20, %5\n v_add_f32 v21, 1.0, v20\n v_add_f32 v22, 1.0, v21\n"
      "v_add_f32 v23, 1.0, v22\n s_nop 7\n" QUIRE_MFMA " v[22:25], v[30:31], v[30:31], v[20:23]\n s_nop 15\n"
      "v_mov_b32 %0, v22\n v_mov_b32 %1, v23\n v_mov_b32 %2, v24\n v_mov_b32 %3, v25"
      : "=&v"(d[0]), "=&v"(d[1]), "=&v"(d[2]), "=&v"(d[3])
      : "v"(ones), "v"(first)
      : "v20", "v21", "v22", "v23", "v24", "v25", "v30", "v31");
  for (int i = 0; i < 4; ++i) probe.out[4 * t + i] = static_cast<std::uint32_t>(d[i]);
}
#endif

#if !defined(__gfx90a__) && !defined(__GFX11__)
/// All codes of both formats, two at a time and one at a time; and back.
QUIRE_PROBE(probe_fp8) {
  const int t = gpu::thread_index();
  const int codes = reinterpret_cast<const int*>(probe.in)[t];
  float* out = reinterpret_cast<float*>(probe.out) + 16 * t;
  using Float2 = float __attribute__((ext_vector_type(2)));
  const Float2 pairs[] = {__builtin_amdgcn_cvt_pk_f32_fp8(codes, false), __builtin_amdgcn_cvt_pk_f32_fp8(codes, true),
                          __builtin_amdgcn_cvt_pk_f32_bf8(codes, false), __builtin_amdgcn_cvt_pk_f32_bf8(codes, true)};
  for (int i = 0; i < 4; ++i) out[2 * i] = pairs[i].x, out[2 * i + 1] = pairs[i].y;
  out[8] = __builtin_amdgcn_cvt_f32_fp8(codes, 0);
  out[9] = __builtin_amdgcn_cvt_f32_fp8(codes, 1);
  out[10] = __builtin_amdgcn_cvt_f32_fp8(codes, 2);
  out[11] = __builtin_amdgcn_cvt_f32_bf8(codes, 3);
  int again = __builtin_amdgcn_cvt_pk_fp8_f32(pairs[0].x, pairs[0].y, 0, false);
  again = __builtin_amdgcn_cvt_pk_fp8_f32(pairs[1].x, pairs[1].y, again, true);
  probe.out[16 * t + 12] = static_cast<std::uint32_t>(again);
  again = __builtin_amdgcn_cvt_pk_bf8_f32(pairs[2].x, pairs[2].y, 0, false);
  again = __builtin_amdgcn_cvt_pk_bf8_f32(pairs[3].x, pairs[3].y, again, true);
  probe.out[16 * t + 13] = static_cast<std::uint32_t>(again);
}
#endif
