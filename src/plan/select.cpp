// SPDX-License-Identifier: Apache-2.0
// The kernel table as data, and the walk through it.
#include "plan/select.h"
#include "plan/device_lists.h"
#include "text/formatted.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace quire {
namespace plan_detail {
namespace {

std::vector<std::string> refuses_nothing(const Problem&, const Device&) { return {}; }

/// hip_matrix writes rows of the query's type.
void refuse_other_outputs(const Problem& problem, std::vector<std::string>& reasons) {
  if (problem.out_dtype() != problem.q_dtype)
    reasons.push_back(formatted("out is {}, expected {} (as q)", name(problem.out_dtype()), name(problem.q_dtype)));
}

/// Tensor-core kernels write rows of 16 or 8 bits.
bool asks_for_wide_rows(const Problem& problem) { return problem.q_dtype != DType::f32 && problem.out_dtype() == DType::f32; }

/// The tuned GPU kernels know causal rows at the end of their keys, with or without a window.
void refuse_other_masks(const Problem& problem, std::vector<std::string>& reasons) {
  if (problem.has_causal) reasons.push_back("causal is given by request, expected absent");
  if (!problem.causal) reasons.push_back("causal is 0, expected 1");
  if (problem.has_q_begin) reasons.push_back("q_begin is given, expected absent (rows at the end of their keys)");
}

/// Products of bf16 pairs are exact for bf16 and fp8 values, and for no other.
std::vector<std::string> refuses_all_but_bf16_scores(const Problem& problem, const Device&) {
  std::vector<std::string> reasons;
  const auto is_bf16_or_fp8 = [](DType t) { return t == DType::bf16 || itemsize(t) == 1; };
  if (problem.q_dtype != DType::bf16) reasons.push_back(formatted("q is {}, expected bf16", name(problem.q_dtype)));
  if (!is_bf16_or_fp8(problem.kv_dtype)) reasons.push_back(formatted("kv is {}, expected bf16 or fp8", name(problem.kv_dtype)));
  return reasons;
}

/// The instances of src/backend/cuda/mma/.
std::vector<std::string> refuses_all_but_mma_shapes(const Problem& problem, const Device& device) {
  std::vector<std::string> reasons;
  const bool fp8 = problem.kv_dtype == DType::fp8_e4m3fn || problem.kv_dtype == DType::fp8_e5m2;
  if (problem.q_dtype != DType::f16 && problem.q_dtype != DType::bf16)
    reasons.push_back(formatted("q is {}, expected f16 or bf16", name(problem.q_dtype)));
  if (problem.kv_dtype != problem.q_dtype && !fp8)
    reasons.push_back(
        formatted("kv is {}, expected {} (as q), fp8_e4m3fn or fp8_e5m2", name(problem.kv_dtype), name(problem.q_dtype)));
  const std::int64_t d = problem.head_dim;
  if (d != 64 && d != 128 && (d != 256 || fp8))
    reasons.push_back(formatted("d is {}, expected {}", d, fp8 ? "64 or 128" : "64, 128 or 256"));
  if (asks_for_wide_rows(problem)) reasons.push_back(formatted("out is f32, expected {} or fp8_e4m3fn", name(problem.q_dtype)));
  if (device.sm < 80) reasons.push_back(formatted("needs sm80, which device {} lacks", device.name));
  refuse_other_masks(problem, reasons);
  return reasons;
}

/// What src/backend/cuda/sm90/ reads by tensor copies.
std::vector<std::string> refuses_all_but_sm90_shapes(const Problem& problem, const Device& device) {
  std::vector<std::string> reasons;
  if (problem.q_dtype != DType::f16 && problem.q_dtype != DType::bf16 && problem.q_dtype != DType::fp8_e4m3fn)
    reasons.push_back(formatted("q is {}, expected f16, bf16 or fp8_e4m3fn", name(problem.q_dtype)));
  const bool fp8 = problem.kv_dtype == DType::fp8_e4m3fn || problem.kv_dtype == DType::fp8_e5m2;
  if (problem.kv_dtype != problem.q_dtype && !fp8)
    reasons.push_back(
        formatted("kv is {}, expected {} (as q), fp8_e4m3fn or fp8_e5m2", name(problem.kv_dtype), name(problem.q_dtype)));
  if (problem.head_dim != 64 && problem.head_dim != 128 && problem.head_dim != 256)
    reasons.push_back(formatted("d is {}, expected 64, 128 or 256", problem.head_dim));
  // Tiles of prefill hold whole groups.
  const std::int64_t widest = std::min(plan_detail::kSm90SlicedRows, plan_detail::kPrefillRows / 2);
  if (problem.group() > widest) reasons.push_back(formatted("group is {}, expected at most {}", problem.group(), widest));
  const std::int64_t tokens = problem.layout == CacheLayout::packed ? 16 : 8;  // of a box, or a part of one
  if (problem.page_size % tokens != 0)
    reasons.push_back(formatted("page is {}, expected a multiple of {}", problem.page_size, tokens));
  if (device.sm != 90) reasons.push_back(formatted("needs sm90, device {} is not", device.name));
  if (asks_for_wide_rows(problem)) reasons.push_back("out is f32, expected f16, bf16 or fp8_e4m3fn");
  refuse_other_masks(problem, reasons);
  return reasons;
}

/// The instances of src/backend/hip/matrix_kernels.inc.
std::vector<std::string> refuses_all_but_matrix_shapes(const Problem& problem, const Device& device) {
  constexpr std::string_view kUnits[] = {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"};
  std::vector<std::string> reasons;
  if (problem.q_dtype != DType::f16 && problem.q_dtype != DType::bf16)
    reasons.push_back(formatted("q is {}, expected f16 or bf16", name(problem.q_dtype)));
  if (problem.kv_dtype != problem.q_dtype && itemsize(problem.kv_dtype) != 1)
    reasons.push_back(formatted("kv is {}, expected {} (as q) or fp8", name(problem.kv_dtype), name(problem.q_dtype)));
  const std::int64_t d = problem.head_dim;
  if (d != 64 && d != 128 && d != 256) reasons.push_back(formatted("d is {}, expected 64, 128 or 256", d));
  if (std::find(std::begin(kUnits), std::end(kUnits), device.name) == std::end(kUnits))
    reasons.push_back(formatted("has no instance for device {}", device.name));
  if (device.name == "gfx90a" && problem.q_dtype == DType::f16)
    reasons.push_back("gfx90a takes f16 subnormals for zero in matrix products");
  refuse_other_outputs(problem, reasons);
  refuse_other_masks(problem, reasons);
  return reasons;
}

constexpr std::array kRows = {
#define QUIRE_KERNEL(name, backend, features, predicate, takes, description) \
  KernelRow{Kernel{#name, backend, features, takes, description}, predicate},
#include "plan/kernels.inc"
#undef QUIRE_KERNEL
};

constexpr struct {
  CpuFeature feature;
  std::string_view name;
} kFeatureNames[] = {{kAvx2, "AVX2+FMA+F16C"},
                     {kAvx512, "AVX-512 F/BW/VL/DQ"},
                     {kAvx512Bf16, "AVX512-BF16"},
                     {kNeon, "NEON"},
                     {kAmxBf16, "AMX-BF16"}};

constexpr bool every_needed_feature_has_a_name() {
  std::uint32_t unnamed = 0;
  for (const KernelRow& row : kRows) unnamed |= row.info.cpu_features;
  for (const auto& f : kFeatureNames) unnamed &= ~static_cast<std::uint32_t>(f.feature);
  return unnamed == 0;
}
// refusals_of() walks the names: a feature without one would be needed by a row and asked of no device.
static_assert(every_needed_feature_has_a_name());

}  // namespace

std::span<const KernelRow> kernel_rows() noexcept { return kRows; }

std::vector<std::string> refusals_of(const KernelRow& row, const Problem& problem, const Device& device) {
  if (row.info.backend != device.backend)
    return {formatted("is a {} kernel, device {} is {}", name(row.info.backend), device.name, name(device.backend))};
  std::vector<std::string> reasons;
  for (const auto& f : kFeatureNames) {
    if ((row.info.cpu_features & f.feature) != 0 && (device.cpu_features & f.feature) == 0)
      reasons.push_back(formatted("needs {}, which device {} lacks", f.name, device.name));
  }
  for (std::string& reason : row.refuses(problem, device)) reasons.push_back(std::move(reason));
  return reasons;
}

std::string slower_than_the_next_row(const KernelRow& row, const Device& device) {
  const bool pairs_on_vectors = (row.info.cpu_features & (kAvx512Bf16 | kAmxBf16)) == kAvx512Bf16;
  if (!pairs_on_vectors || (device.cpu_features & (kAvx512Bf16 | kFastBf16Dot)) != kAvx512Bf16) return {};
  return formatted("device {} runs vdpbf16ps at half rate, f32 products are faster; runs if asked for by name", device.name);
}

Selection select(const Problem& problem, const Device& device, const std::string& forced) {
  Selection selection;
  for (const KernelRow& row : kernel_rows()) {
    if (!forced.empty() && row.info.name != forced) continue;
    std::vector<std::string> reasons = refusals_of(row, problem, device);
    if (forced.empty())
      if (std::string slower = slower_than_the_next_row(row, device); !slower.empty()) reasons.push_back(std::move(slower));
    if (reasons.empty()) {
      selection.row = &row;
      break;
    }
    for (const std::string& reason : reasons) selection.refusals.push_back({std::string(row.info.name), reason});
  }
  return selection;
}

}  // namespace plan_detail

std::string_view name(Backend backend) noexcept {
  switch (backend) {
    case Backend::cpu: return "cpu";
    case Backend::cuda: return "cuda";
    case Backend::hip: return "hip";
  }
  return "invalid";
}

std::span<const Kernel> kernels() noexcept {
  static const auto infos = [] {
    std::array<Kernel, plan_detail::kRows.size()> out{};
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = plan_detail::kRows[i].info;
    return out;
  }();
  return infos;
}

}  // namespace quire
