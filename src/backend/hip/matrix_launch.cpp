// SPDX-License-Identifier: Apache-2.0
// See matrix_launch.h.
#include "backend/hip/matrix_launch.h"

#include <string_view>

#include "backend/hip/matrix/sizes.h"
#include "text/formatted.h"

namespace quire::hip {
namespace {

/// What sizes.h wants to know of a GPU.
template <int kLanes>
struct Waves {
  static constexpr int kWave = kLanes;
};

template <class Gpu, int kDim>
constexpr int kThreads_short = hip::matrix::kShortWaves<Gpu, kDim> * Gpu::kWave;
template <class Gpu, int kDim>
constexpr int kThreads_tall = hip::matrix::kTallWaves<Gpu, kDim> * Gpu::kWave;

constexpr const char* kSource_F16 = "matrix_f16";
constexpr const char* kSource_Bf16 = "matrix_bf16";
constexpr DType kType_F16 = DType::f16, kType_Bf16 = DType::bf16;

struct Row {
  DType type;
  std::int64_t head_dim, tile_rows, tile_keys;
  Launch on_64_lanes, on_32_lanes;
};

constexpr Row kRows[] = {
#define QUIRE_MATRIX_KERNEL(name, shape, type, head_dim, tile_rows, tile_keys) \
  {kType_##type,                                                               \
   head_dim,                                                                   \
   tile_rows,                                                                  \
   tile_keys,                                                                  \
   {kSource_##type, #name, kThreads_##shape<Waves<64>, head_dim>},             \
   {kSource_##type, #name, kThreads_##shape<Waves<32>, head_dim>}},
#include "backend/hip/matrix_kernels.inc"
#undef QUIRE_MATRIX_KERNEL
};

}  // namespace

Result<Launch> matrix_launch(const Plan& plan, const plan_detail::DeviceList& list) {
  const bool of_64_lanes = std::string_view(plan.device.name).substr(0, 4) == "gfx9";
  for (const Row& row : kRows)
    if (row.type == plan.problem.q_dtype && row.head_dim == plan.problem.head_dim && row.tile_rows == list.tile_rows &&
        row.tile_keys == list.tile_keys)
      return of_64_lanes ? row.on_64_lanes : row.on_32_lanes;
  return Status(Code::internal_error,
                formatted("attend: no matrix kernel for q={} d={} in tiles of {} rows and {} keys", name(plan.problem.q_dtype),
                          plan.problem.head_dim, list.tile_rows, list.tile_keys));
}

}  // namespace quire::hip
