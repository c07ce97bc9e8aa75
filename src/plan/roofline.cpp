// SPDX-License-Identifier: Apache-2.0
// Stage: explain. See roofline.hpp. A wrong ceiling makes a wrong floor: no plan and no bit of an output depends on it.
#include "quire/roofline.hpp"

#include "text/formatted.h"

namespace quire {
namespace {

/// Fastest reading and fastest product of 16-bit matrices that were measured on a device.
struct DeviceCeilings {
  std::string_view product;  ///< name that `explain` prints
  std::string_view driver;   ///< name that the driver gives: products with other memory have other names
  int sm;                    ///< pretended device of this architecture that stands for the product; 0: none
  double bytes_per_second, flops_per_second;
};

/// Sources, bench/results: of an H200 h200-attend.json (64 decode rows of 32k, faster than a plain read, 4.604e12) and
/// h200-sidebyside.json (at c1717862); of an H100 h100-attend.json and h100-peers-c33f48cc.json.
constexpr DeviceCeilings kCeilings[] = {{"H200", "NVIDIA H200", 90, 4.62e12, 797e12},
                                        {"H100", "NVIDIA H100 80GB HBM3", 0, 3.131e12, 787e12}};

const DeviceCeilings* ceilings_of(const Device& device) {
  for (const DeviceCeilings& known : kCeilings) {
    const bool stands_for_it = device.product.empty() && device.sm == known.sm && known.sm != 0;
    if (device.product == known.driver || stands_for_it) return &known;
  }
  return nullptr;
}

}  // namespace

Roofline roofline_of(const Plan& plan) {
  Roofline floor;
  const DeviceCeilings* ceilings = ceilings_of(plan.device);
  if (!plan.assumptions.empty()) {
    floor.why_not = "the lengths are not known";
  } else if (ceilings == nullptr) {
    floor.why_not =
        formatted("the ceilings of {} were not measured", plan.device.product.empty() ? plan.device.name : plan.device.product);
  } else {
    floor.device = ceilings->product;
    floor.bytes_per_second = ceilings->bytes_per_second;
    floor.flops_per_second = ceilings->flops_per_second;
  }
  floor.bytes = plan.kv_bytes;
  floor.flops = plan.flops;
  return floor;
}

}  // namespace quire
