// SPDX-License-Identifier: Apache-2.0
// wgmma products of 64 rows by 8, 16, 32 or 64 columns, as decode uses them (PTX ISA 8.x, "Asynchronous warpgroup level matrix
// instructions"). Prefill's wide ones are in wgmma.h.
#pragma once

#include <cstdint>

namespace quire::cuda::hopper {

// Operands d[first], d[first + 1], ..., and the names of as many.
#define QUIRE_D4(first) "+f"(d[first]), "+f"(d[first + 1]), "+f"(d[first + 2]), "+f"(d[first + 3])
#define QUIRE_D8(first) QUIRE_D4(first), QUIRE_D4(first + 4)
#define QUIRE_D16(first) QUIRE_D8(first), QUIRE_D8(first + 8)
#define QUIRE_D32(first) QUIRE_D16(first), QUIRE_D16(first + 16)
#define QUIRE_NAMES_4 "%0, %1, %2, %3"
#define QUIRE_NAMES_8 QUIRE_NAMES_4 ", %4, %5, %6, %7"
#define QUIRE_NAMES_16 QUIRE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_NAMES_32 QUIRE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

// SS: both operands in shared memory; RS: the first in registers. The last arguments name what follows d.
#define QUIRE_WGMMA_SS(columns, types, D, NAMES, a_name, b_name, add_name, ta_name, tb_name)                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_name                                                     \
               ", 0;\n"                                                                                         \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." types " {" NAMES "}, " a_name ", " b_name \
               ", p, 1, 1, " ta_name ", " tb_name ";\n}"                                                        \
               : D                                                                                              \
               : "l"(a), "l"(b), "r"(add), "n"(kTransposedA), "n"(kTransposedB))
#define QUIRE_WGMMA_RS(columns, types, D, NAMES, a_names, b_name, add_name, tb_name)                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_name                                                        \
               ", 0;\n"                                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." types " {" NAMES "}, {" a_names "}, " b_name \
               ", p, 1, 1, " tb_name ";\n}"                                                                        \
               : D                                                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposedB))

#define QUIRE_SS_4(types) QUIRE_WGMMA_SS("8", types, QUIRE_D4(0), QUIRE_NAMES_4, "%4", "%5", "%6", "%7", "%8")
#define QUIRE_SS_8(types) QUIRE_WGMMA_SS("16", types, QUIRE_D8(0), QUIRE_NAMES_8, "%8", "%9", "%10", "%11", "%12")
#define QUIRE_SS_16(types) QUIRE_WGMMA_SS("32", types, QUIRE_D16(0), QUIRE_NAMES_16, "%16", "%17", "%18", "%19", "%20")
#define QUIRE_SS_32(types) QUIRE_WGMMA_SS("64", types, QUIRE_D32(0), QUIRE_NAMES_32, "%32", "%33", "%34", "%35", "%36")
#define QUIRE_RS_4(types) QUIRE_WGMMA_RS("8", types, QUIRE_D4(0), QUIRE_NAMES_4, "%4, %5, %6, %7", "%8", "%9", "%10")
#define QUIRE_RS_8(types) QUIRE_WGMMA_RS("16", types, QUIRE_D8(0), QUIRE_NAMES_8, "%8, %9, %10, %11", "%12", "%13", "%14")
#define QUIRE_RS_16(types) QUIRE_WGMMA_RS("32", types, QUIRE_D16(0), QUIRE_NAMES_16, "%16, %17, %18, %19", "%20", "%21", "%22")
#define QUIRE_RS_32(types) QUIRE_WGMMA_RS("64", types, QUIRE_D32(0), QUIRE_NAMES_32, "%32, %33, %34, %35", "%36", "%37", "%38")

/// d (+)= a * b for a 64x16 `a` and a 16xN `b` of N = 2 * kCount columns, both in shared memory. Transposed: an operand whose
/// rows run along M or N.
template <bool kF16, int kTransposedA, int kTransposedB, int kCount>
__device__ inline void wgmma(float (&d)[kCount], std::uint64_t a, std::uint64_t b, int add) {
  static_assert(kCount == 4 || kCount == 8 || kCount == 16 || kCount == 32);
  if constexpr (kCount == 4 && kF16) QUIRE_SS_4("f16.f16");
  if constexpr (kCount == 4 && !kF16) QUIRE_SS_4("bf16.bf16");
  if constexpr (kCount == 8 && kF16) QUIRE_SS_8("f16.f16");
  if constexpr (kCount == 8 && !kF16) QUIRE_SS_8("bf16.bf16");
  if constexpr (kCount == 16 && kF16) QUIRE_SS_16("f16.f16");
  if constexpr (kCount == 16 && !kF16) QUIRE_SS_16("bf16.bf16");
  if constexpr (kCount == 32 && kF16) QUIRE_SS_32("f16.f16");
  if constexpr (kCount == 32 && !kF16) QUIRE_SS_32("bf16.bf16");
}

/// Multiplies with `a` in registers (fragments of m64k16).
template <bool kF16, int kTransposedB, int kCount>
__device__ inline void wgmma(float (&d)[kCount], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  static_assert(kCount == 4 || kCount == 8 || kCount == 16 || kCount == 32);
  if constexpr (kCount == 4 && kF16) QUIRE_RS_4("f16.f16");
  if constexpr (kCount == 4 && !kF16) QUIRE_RS_4("bf16.bf16");
  if constexpr (kCount == 8 && kF16) QUIRE_RS_8("f16.f16");
  if constexpr (kCount == 8 && !kF16) QUIRE_RS_8("bf16.bf16");
  if constexpr (kCount == 16 && kF16) QUIRE_RS_16("f16.f16");
  if constexpr (kCount == 16 && !kF16) QUIRE_RS_16("bf16.bf16");
  if constexpr (kCount == 32 && kF16) QUIRE_RS_32("f16.f16");
  if constexpr (kCount == 32 && !kF16) QUIRE_RS_32("bf16.bf16");
}

#undef QUIRE_SS_4
#undef QUIRE_SS_8
#undef QUIRE_SS_16
#undef QUIRE_SS_32
#undef QUIRE_RS_4
#undef QUIRE_RS_8
#undef QUIRE_RS_16
#undef QUIRE_RS_32
#undef QUIRE_WGMMA_SS
#undef QUIRE_WGMMA_RS
#undef QUIRE_NAMES_4
#undef QUIRE_NAMES_8
#undef QUIRE_NAMES_16
#undef QUIRE_NAMES_32
#undef QUIRE_D4
#undef QUIRE_D8
#undef QUIRE_D16
#undef QUIRE_D32

}  // namespace quire::cuda::hopper
