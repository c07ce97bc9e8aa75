// SPDX-License-Identifier: Apache-2.0
// Stage: plan. The pretend devices: what planning may be asked about without owning the machine.
// Counts and cache sizes are those of one common product per architecture; they only shape tiles and splits, never results.
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "plan/products.h"
#include "quire/plan.hpp"

namespace quire {
namespace {

constexpr std::int64_t kKiB = 1 << 10;
constexpr std::int64_t kMiB = 1 << 20;
constexpr std::uint32_t kAllAvx512 = kAvx2 | kAvx512;
constexpr std::uint32_t kAmdBf16 = kAllAvx512 | kAvx512Bf16 | kFastBf16Dot;

std::vector<Device> make_devices() {
  return {
      {"scalar", Backend::cpu, 0, 4, 512 * kKiB},                                // a CPU without a vector kernel
      {"avx2", Backend::cpu, kAvx2, 8, 512 * kKiB},                              // Zen 3 class
      {"avx512", Backend::cpu, kAllAvx512, 16, 1 * kMiB},                        // Cascade Lake class
      {"avx512bf16", Backend::cpu, kAmdBf16, 16, 1 * kMiB},                      // Zen 4 class
      {"amx", Backend::cpu, kAllAvx512 | kAvx512Bf16 | kAmxBf16, 16, 2 * kMiB},  // Sapphire Rapids class
      {"neon", Backend::cpu, kNeon, 16, 1 * kMiB},                               // Neoverse N1/V1 class
      {"sm80", Backend::cuda, 0, 108, 40 * kMiB, 80},                            // A100: 108 SMs
      {"sm86", Backend::cuda, 0, 72, 6 * kMiB, 86},                              // A10: 72 SMs
      {"sm89", Backend::cuda, 0, 142, 96 * kMiB, 89},                            // L40S: 142 SMs
      {"sm90", Backend::cuda, 0, 132, 50 * kMiB, 90},                            // H100, H200: 132 SMs
      {"sm100", Backend::cuda, 0, 148, 126 * kMiB, 100},                         // B200: 148 SMs
      {"sm120", Backend::cuda, 0, 170, 96 * kMiB, 120},                          // RTX 5090: 170 SMs
      {"gfx90a", Backend::hip, 0, 110, 8 * kMiB},                                // MI250X, one die: 110 CUs
      {"gfx942", Backend::hip, 0, 304, 32 * kMiB},                               // MI300X: 304 CUs, 4 MiB in each of 8 dies
      {"gfx950", Backend::hip, 0, 256, 32 * kMiB},                               // MI355X: 256 CUs, 4 MiB in each of 8 dies
      {"gfx1100", Backend::hip, 0, 96, 6 * kMiB},                                // RX 7900 XTX: 96 CUs
      {"gfx1201", Backend::hip, 0, 64, 8 * kMiB},                                // RX 9070 XT: 64 CUs
  };
}

/// A product: what people type, the architecture, and the name that the driver gives, by which roofline.cpp finds its ceilings.
struct Product {
  std::string_view typed, device, driver;
};

constexpr Product kProducts[] = {{"a100", "sm80", "NVIDIA A100"},
                                 {"h100", "sm90", "NVIDIA H100 80GB HBM3"},
                                 {"h200", "sm90", "NVIDIA H200"},
                                 {"h20", "sm90", "NVIDIA H20"},
                                 {"gh200", "sm90", "NVIDIA GH200"},
                                 {"b200", "sm100", "NVIDIA B200"},
                                 {"gb200", "sm100", "NVIDIA GB200"},
                                 {"a10", "sm86", "NVIDIA A10"},
                                 {"l40s", "sm89", "NVIDIA L40S"},
                                 {"rtx5090", "sm120", "NVIDIA GeForce RTX 5090"},
                                 {"mi210", "gfx90a", "AMD Instinct MI210"},
                                 {"mi250", "gfx90a", "AMD Instinct MI250"},
                                 {"mi250x", "gfx90a", "AMD Instinct MI250X"},
                                 {"mi300a", "gfx942", "AMD Instinct MI300A"},
                                 {"mi300x", "gfx942", "AMD Instinct MI300X"},
                                 {"mi325x", "gfx942", "AMD Instinct MI325X"},
                                 {"mi350x", "gfx950", "AMD Instinct MI350X"},
                                 {"mi355x", "gfx950", "AMD Instinct MI355X"}};

std::string lower(std::string_view text) {
  std::string out(text.substr(0, 64));
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::vector<std::string> plan_detail::product_names() {
  std::vector<std::string> names;
  for (const Product& known : kProducts) names.emplace_back(known.typed);
  return names;
}

std::vector<Device> known_devices() { return make_devices(); }

Result<Device> find_device(std::string_view name) {
  const std::string typed = lower(name);
  std::string names, product;
  std::string_view wanted = typed;
  for (const Product& known : kProducts)
    if (known.typed == typed) wanted = known.device, product = known.driver;
  for (Device& device : make_devices()) {
    if (device.name == wanted) {
      device.product = product;
      return std::move(device);
    }
    if (!names.empty()) names += ", ";
    names += device.name;
  }
  std::string products;
  for (const Product& known : kProducts) products += (products.empty() ? "" : ", ") + std::string(known.typed);
  return Status(Code::invalid_argument, "no device named '" + std::string(name.substr(0, 64)) + "'; known devices: " + names +
                                            "; or a product: " + products);
}

}  // namespace quire
