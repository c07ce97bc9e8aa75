// SPDX-License-Identifier: Apache-2.0
// Nearest names.
#include "suggest.h"

#include <algorithm>

#include "plan/products.h"
#include "quire/contract.hpp"
#include "quire/plan.hpp"
#include "text/edit_distance.h"
#include "text/formatted.h"

namespace quire::cli {
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  if (word.size() > 64) return {};
  const std::string* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 2);
  for (const std::string& candidate : known) {
    const bool prefix = word.size() >= 2 && candidate.starts_with(word);
    const std::size_t distance = prefix ? 1 : edit_distance(word, candidate);
    if (distance < best_distance || (distance == best_distance && best == nullptr)) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? std::string() : formatted("did you mean '{}'?", *best);
}

std::vector<std::string> device_names() {
  std::vector<std::string> names = plan_detail::product_names();
  for (const Device& device : known_devices()) names.push_back(device.name);
  return names;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const Kernel& kernel : kernels()) names.emplace_back(kernel.name);
  return names;
}

std::vector<std::string> rule_ids() {
  std::vector<std::string> ids;
  for (const Rule& rule : rules()) ids.emplace_back(rule.id);
  return ids;
}

}  // namespace quire::cli
