// SPDX-License-Identifier: Apache-2.0
// wgmma products of 64 rows by 32, 64, 96, 128 or 256 columns, as prefill uses them: shared memory by shared memory, and
// registers by shared memory (PTX ISA 8.x, "Asynchronous warpgroup level matrix instructions"). Decode's narrow ones are in
// wgmma_narrow.h.
#pragma once

#include <cstdint>

#include "backend/cuda/hopper/instructions.h"

namespace quire::cuda::hopper {

/// A matrix in shared memory as wgmma takes it, with the strides of hopper::matrix(). The address goes through a reduction over
/// the warp, as ptxas then knows that it is the same in all threads and computes descriptors in uniform registers: from others it
/// moves four words for each wgmma, one wgmma after the other.
class Matrix {
 public:
  __device__ Matrix(const void* shared, std::uint32_t stride, std::uint32_t along = 16, Swizzle swizzle = Swizzle::bytes128)
      : low_(__reduce_or_sync(~0u, ((ptx::shared_address(shared) & 0x3FFFFu) >> 4) | (along >> 4) << 16)),
        high_((stride >> 4) | static_cast<std::uint32_t>(swizzle) << 30) {}
  __device__ std::uint64_t at(int bytes) const {
    return static_cast<std::uint64_t>(high_) << 32 | (low_ + static_cast<std::uint32_t>(bytes >> 4));
  }

 private:
  std::uint32_t low_, high_;
};

// Operands d[first], d[first + 1], ...
#define QUIRE_D8(first)                                                                                               \
  "+f"(d[first]), "+f"(d[first + 1]), "+f"(d[first + 2]), "+f"(d[first + 3]), "+f"(d[first + 4]), "+f"(d[first + 5]), \
      "+f"(d[first + 6]), "+f"(d[first + 7])
#define QUIRE_D16 QUIRE_D8(0), QUIRE_D8(8)
#define QUIRE_D32(first) QUIRE_D8(first), QUIRE_D8(first + 8), QUIRE_D8(first + 16), QUIRE_D8(first + 24)
#define QUIRE_D48 QUIRE_D32(0), QUIRE_D8(32), QUIRE_D8(40)
#define QUIRE_D64 QUIRE_D32(0), QUIRE_D32(32)
#define QUIRE_D128 QUIRE_D64, QUIRE_D32(64), QUIRE_D32(96)

#define QUIRE_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_REGISTERS_32                                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_REGISTERS_48                                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
  "%42, %43, %44, %45, %46, %47"
#define QUIRE_REGISTERS_64                                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
  "%62, %63"
#define QUIRE_REGISTERS_128                                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "   \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "   \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "   \
  "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "   \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, " \
  "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, " \
  "%119, %120, %121, %122, %123, %124, %125, %126, %127"

// d (+)= a * b with the columns of b along its rows, 64 halves apart. D: operands, R: their names, then the names of what
// follows.
#define QUIRE_WGMMA_SS(columns, types, D, R, a_name, b_name, add_name)                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_name                                                 \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." types " {" R "}, " a_name ", " b_name \
               ", p, 1, 1, 0, 0;\n}"                                                                        \
               : D                                                                                          \
               : "l"(a), "l"(b), "r"(add))
#define QUIRE_WGMMA_RS(columns, types, D, R, a_names, b_name, tb_name)                                                      \
  asm volatile(                                                                                                             \
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                                            \
      "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." types " {" R "}, {" a_names "}, " b_name ", p, 1, 1, " tb_name \
      ";\n}"                                                                                                                \
      : D                                                                                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposedB))

/// d (+)= a * b: 64x16 `a` and 16xN `b` of N = 2 * kCount columns, both with the 16 along their rows in shared memory.
template <bool kF16, int kCount>
__device__ inline void multiply_shared(float (&d)[kCount], std::uint64_t a, std::uint64_t b, int add) {
  static_assert(kCount == 16 || kCount == 32 || kCount == 48 || kCount == 64);
  if constexpr (kCount == 16 && kF16) QUIRE_WGMMA_SS("32", "f16.f16", QUIRE_D16, QUIRE_REGISTERS_16, "%16", "%17", "%18");
  if constexpr (kCount == 16 && !kF16) QUIRE_WGMMA_SS("32", "bf16.bf16", QUIRE_D16, QUIRE_REGISTERS_16, "%16", "%17", "%18");
  if constexpr (kCount == 32 && kF16) QUIRE_WGMMA_SS("64", "f16.f16", QUIRE_D32(0), QUIRE_REGISTERS_32, "%32", "%33", "%34");
  if constexpr (kCount == 32 && !kF16) QUIRE_WGMMA_SS("64", "bf16.bf16", QUIRE_D32(0), QUIRE_REGISTERS_32, "%32", "%33", "%34");
  if constexpr (kCount == 48 && kF16) QUIRE_WGMMA_SS("96", "f16.f16", QUIRE_D48, QUIRE_REGISTERS_48, "%48", "%49", "%50");
  if constexpr (kCount == 48 && !kF16) QUIRE_WGMMA_SS("96", "bf16.bf16", QUIRE_D48, QUIRE_REGISTERS_48, "%48", "%49", "%50");
  if constexpr (kCount == 64 && kF16) QUIRE_WGMMA_SS("128", "f16.f16", QUIRE_D64, QUIRE_REGISTERS_64, "%64", "%65", "%66");
  if constexpr (kCount == 64 && !kF16) QUIRE_WGMMA_SS("128", "bf16.bf16", QUIRE_D64, QUIRE_REGISTERS_64, "%64", "%65", "%66");
}

/// d += a * b: `a` in registers (this thread's four pairs), `b` in shared memory. kTransposedB: the columns of `b` lie along its
/// rows; else what is summed over does.
template <bool kF16, int kTransposedB, int kCount>
__device__ inline void multiply_registers(float (&d)[kCount], const std::uint32_t* a, std::uint64_t b) {
  static_assert(kCount == 32 || kCount == 64 || kCount == 128);
  if constexpr (kCount == 32 && kF16)
    QUIRE_WGMMA_RS("64", "f16.f16", QUIRE_D32(0), QUIRE_REGISTERS_32, "%32, %33, %34, %35", "%36", "%37");
  if constexpr (kCount == 32 && !kF16)
    QUIRE_WGMMA_RS("64", "bf16.bf16", QUIRE_D32(0), QUIRE_REGISTERS_32, "%32, %33, %34, %35", "%36", "%37");
  if constexpr (kCount == 64 && kF16)
    QUIRE_WGMMA_RS("128", "f16.f16", QUIRE_D64, QUIRE_REGISTERS_64, "%64, %65, %66, %67", "%68", "%69");
  if constexpr (kCount == 64 && !kF16)
    QUIRE_WGMMA_RS("128", "bf16.bf16", QUIRE_D64, QUIRE_REGISTERS_64, "%64, %65, %66, %67", "%68", "%69");
  if constexpr (kCount == 128 && kF16)
    QUIRE_WGMMA_RS("256", "f16.f16", QUIRE_D128, QUIRE_REGISTERS_128, "%128, %129, %130, %131", "%132", "%133");
  if constexpr (kCount == 128 && !kF16)
    QUIRE_WGMMA_RS("256", "bf16.bf16", QUIRE_D128, QUIRE_REGISTERS_128, "%128, %129, %130, %131", "%132", "%133");
}

#undef QUIRE_WGMMA_SS
#undef QUIRE_WGMMA_RS
#undef QUIRE_REGISTERS_16
#undef QUIRE_REGISTERS_32
#undef QUIRE_REGISTERS_48
#undef QUIRE_REGISTERS_64
#undef QUIRE_REGISTERS_128
#undef QUIRE_D128
#undef QUIRE_D48
#undef QUIRE_D64
#undef QUIRE_D32
#undef QUIRE_D16
#undef QUIRE_D8

/// The compiler moves no computation with these registers across this point: a product in flight writes them, or ought to run
/// beside what is before.
template <int kCount>
__device__ inline void settle(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i]));
}

/// 0, from shared memory: what is added to it is not added before this place. ptxas moves additions up between exponentials,
/// where each waits for one that was just begun and holds up the next.
__device__ inline float zero_from_here(const float* shared) {
  float zero;
  asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(zero) : "r"(ptx::shared_address(shared)) : "memory");
  return zero;
}

}  // namespace quire::cuda::hopper
