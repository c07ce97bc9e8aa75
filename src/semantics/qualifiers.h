// SPDX-License-Identifier: Apache-2.0
// The one macro that lets semantics headers compile for the host, CUDA and HIP alike.
#pragma once

// On the host always_inline matters for correctness: these headers are included by translation units compiled for AVX2 or
// AVX-512, and an out-of-line copy from such a unit could be the one that the linker keeps for the whole program.
#if defined(__CUDACC__)
#define QUIRE_HD __host__ __device__ inline
#elif defined(__HIP__)
#define QUIRE_HD __attribute__((host)) __attribute__((device)) inline __attribute__((always_inline))
#else
#define QUIRE_HD inline __attribute__((always_inline))
#endif
