// SPDX-License-Identifier: Apache-2.0
// The matrix kernels for bf16 queries. Compiled and checked by tools/check_gpu_kernels.py, never run on AMD hardware.
#include "backend/hip/matrix/define_kernel.h"

#define QUIRE_KERNEL_OF_Bf16(...) QUIRE_DEFINE_KERNEL(__VA_ARGS__)
#define QUIRE_KERNEL_OF_F16(...)
#define QUIRE_MATRIX_KERNEL(name, shape, type, ...) QUIRE_KERNEL_OF_##type(name, shape, type, __VA_ARGS__)
#include "backend/hip/matrix_kernels.inc"
