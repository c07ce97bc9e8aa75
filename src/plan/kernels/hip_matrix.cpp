// SPDX-License-Identifier: Apache-2.0
// hip_matrix: AMD's matrix units (MFMA, WMMA). src/backend/hip launches it; it was executed under emulation, never on AMD
// hardware (docs/kernels/amd_matrix.md).
#include <algorithm>
#include <iterator>

#include "plan/device_lists.h"
#include "plan/kernels/refusals.h"

namespace quire::plan_detail {
namespace {

/// src/backend/hip/matrix/sizes.h. Registers and 64 KiB of shared memory leave room for three blocks at head_dim 128
/// (docs/kernels/amd_matrix.md); not measured.
constexpr ShortAndTall kMatrixTiles = {.short_rows = 16, .tall_rows = 64, .tile_keys = 64, .blocks_per_unit = 3};

/// The instances of src/backend/hip/matrix_kernels.inc.
Reasons matrix_refuses(const Problem& problem, const Device& device) {
  constexpr std::string_view kUnits[] = {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"};
  Reasons reasons;
  if (!is_16_bit(problem.q_dtype)) reasons.push_back(formatted("q is {}, expected f16 or bf16", name(problem.q_dtype)));
  if (problem.kv_dtype != problem.q_dtype && !is_fp8(problem.kv_dtype))
    reasons.push_back(formatted("kv is {}, expected {} (as q) or fp8", name(problem.kv_dtype), name(problem.q_dtype)));
  const std::int64_t d = problem.head_dim;
  if (d != 64 && d != 128 && d != 256) reasons.push_back(formatted("d is {}, expected 64, 128 or 256", d));
  if (std::find(std::begin(kUnits), std::end(kUnits), device.name) == std::end(kUnits))
    reasons.push_back(formatted("has no instance for device {}", device.name));
  if (device.name == "gfx90a" && problem.q_dtype == DType::f16)
    reasons.push_back("gfx90a takes f16 subnormals for zero in matrix products");
  if (problem.out_dtype() != problem.q_dtype)
    reasons.push_back(formatted("out is {}, expected {} (as q)", name(problem.out_dtype()), name(problem.q_dtype)));
  refuse_unequal_dims(problem, reasons);
  refuse_unlike_types(problem, reasons);
  refuse_token_scales(problem, reasons);
  refuse_other_masks(problem, reasons);
  return reasons;
}

std::vector<DeviceList> matrix_lists(const Plan& plan) { return short_and_tall_lists(plan, rows::hip_matrix, kMatrixTiles); }

constexpr Body kMatrixBodies[] = {{.role = Role::short_rows, .name = "matrix_short"},
                                  {.role = Role::tall_rows, .name = "matrix_tall"}};
constexpr GpuTraits kMatrixTraits = {.lists = matrix_lists, .bodies = kMatrixBodies};

}  // namespace

constinit const KernelRow rows::hip_matrix = {
    .info = {"hip_matrix", Backend::hip, 0u,
             "q=f16 or bf16 with kv=q or any fp8 and d=64, 128, 256, dv=d; gfx90a (bf16), gfx942, gfx950, gfx1100, gfx1201",
             "matrix units (MFMA, WMMA). Experimental: passes all tests in an emulator, has never run on an AMD GPU"},
    .refuses = matrix_refuses,
    .why_first = "it multiplies on matrix units",
    .gpu = &kMatrixTraits};

}  // namespace quire::plan_detail
