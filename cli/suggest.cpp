// SPDX-License-Identifier: Apache-2.0
// Nearest names by Levenshtein distance (Wagner & Fischer 1974).
#include "suggest.h"

#include <algorithm>
#include <numeric>

#include "plan/products.h"
#include "quire/contract.hpp"
#include "quire/plan.hpp"
#include "text/formatted.h"

namespace quire::cli {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

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

std::vector<std::string> vllm_archs() { return {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"}; }

}  // namespace quire::cli
