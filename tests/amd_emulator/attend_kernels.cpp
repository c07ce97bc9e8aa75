// SPDX-License-Identifier: Apache-2.0
// See attend_kernels.h.
#include "amd_emulator/attend_kernels.h"

namespace quire::amd {

namespace {

/// The instances for the matrix units.
struct MatrixInstance {
  std::string_view symbol, type;  ///< type: F16 or Bf16
  std::int64_t head_dim, tile_rows;
};

constexpr MatrixInstance kMatrixInstances[] = {
#define QUIRE_MATRIX_KERNEL(name, shape, type, head_dim, tile_rows, tile_keys) {#name, #type, head_dim, tile_rows},
#include "backend/hip/matrix_kernels.inc"
#undef QUIRE_MATRIX_KERNEL
};

std::string matrix_symbol(const Plan& plan, const plan_detail::DeviceList& list) {
  const std::string_view type = plan.problem.q_dtype == DType::f16 ? "F16" : "Bf16";
  for (const MatrixInstance& i : kMatrixInstances)
    if (i.type == type && i.head_dim == plan.problem.head_dim && i.tile_rows == list.tile_rows) return std::string(i.symbol);
  return "an instance that is not in matrix_kernels.inc";
}

verify_detail::AskedTypes matrix_types() {
  verify_detail::AskedTypes takes;
  takes.head_dims = {64, 128, 256};
  for (const DType query : {DType::f16, DType::bf16})
    for (const DType cache : {query, DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz})
      takes.types.push_back({query, cache});
  return takes;
}

}  // namespace

const std::vector<AttendKernel>& attend_kernels() {
  static const auto generic = [](const Plan&, const plan_detail::DeviceList&) -> std::string { return "quire_attend_generic"; };
  static const std::vector<AttendKernel> list = {
      {"hip_generic", {}, generic, /*reads_blocks=*/true},
      {"hip_matrix", matrix_types(), matrix_symbol},
  };
  return list;
}

}  // namespace quire::amd
