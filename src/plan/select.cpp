// SPDX-License-Identifier: Apache-2.0
// The walk through the kernel table.
#include "plan/select.h"

#include "text/formatted.h"
#include "text/names.h"

namespace quire {
namespace plan_detail {
namespace {

constexpr struct {
  CpuFeature feature;
  std::string_view name;
} kFeatureNames[] = {{kAvx2, "AVX2+FMA+F16C"},
                     {kAvx512, "AVX-512 F/BW/VL/DQ"},
                     {kAvx512Bf16, "AVX512-BF16"},
                     {kNeon, "NEON"},
                     {kAmxBf16, "AMX-BF16"}};

}  // namespace

std::vector<std::string> refusals_of(const KernelRow& row, const Problem& problem, const Device& device) {
  if (row.info.backend != device.backend)
    return {formatted("is a {} kernel, device {} is {}", name(row.info.backend), device.name, name(device.backend))};
  std::vector<std::string> reasons;
  std::uint32_t missing = row.info.cpu_features & ~device.cpu_features;
  for (const auto& f : kFeatureNames) {
    if ((missing & f.feature) != 0) reasons.push_back(formatted("needs {}, which device {} lacks", f.name, device.name));
    missing &= ~static_cast<std::uint32_t>(f.feature);
  }
  if (missing != 0) reasons.push_back(formatted("needs CPU features {:#x}, which device {} lacks", missing, device.name));
  for (std::string& reason : row.refuses(problem, device)) reasons.push_back(std::move(reason));
  return reasons;
}

Selection select(const Problem& problem, const Device& device, const std::string& forced) {
  Selection selection;
  for (const KernelRow* row : kernel_rows()) {
    if (!forced.empty() && row->info.name != forced) continue;
    std::vector<std::string> reasons = refusals_of(*row, problem, device);
    if (forced.empty())
      if (std::string slower = row->slower(device); !slower.empty()) reasons.push_back(std::move(slower));
    if (reasons.empty()) {
      selection.row = row;
      break;
    }
    for (const std::string& reason : reasons) selection.refusals.push_back({std::string(row->info.name), reason});
  }
  return selection;
}

}  // namespace plan_detail

std::string_view name(Backend backend) noexcept {
  static constexpr std::string_view kBackends[] = {"cpu", "cuda", "hip"};
  return name_in(kBackends, backend, "invalid");
}

}  // namespace quire
