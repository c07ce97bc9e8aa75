// Instances of the tensor-core kernels: query type x head_dim x tile shape.
#include "backend/cuda/mma/attend_short.h"
#include "backend/cuda/mma/attend_tall.h"

namespace quire::cuda::mma {
template __global__ void attend_short<Bf16, 128>(const __grid_constant__ gpu::AttendArgs, bool);
template __global__ void attend_tall<Bf16, 128, 2>(const __grid_constant__ gpu::AttendArgs, bool);
template __global__ void attend_tall<Bf16, 128, 1>(const __grid_constant__ gpu::AttendArgs, bool);
}
