// The one macro that lets semantics headers compile for the host, CUDA and HIP alike.
#pragma once

#if defined(__CUDACC__) || defined(__HIP__)
#define QUIRE_HD __host__ __device__ inline
#else
#define QUIRE_HD inline
#endif
