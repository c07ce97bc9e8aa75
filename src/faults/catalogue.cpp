// SPDX-License-Identifier: Apache-2.0
// The catalogue: every family once, in the order in which data flows through a kernel.

#include "faults/families.h"

namespace quire {
namespace faults_detail {

/// Faults of a family whose conditions are those of causal rows at the end of their keys: with other masks, a mutant has to show.
void add_causal(std::vector<Fault>& all, void (*add)(std::vector<Fault>&)) {
  const std::size_t first = all.size();
  add(all);
  for (std::size_t i = first; i < all.size(); ++i)
    all[i].suspects = [of_causal = all[i].suspects](const Clues& e) {
      Suspects found = of_causal(e);
      if (!e.facts.has_masks || !e.wrong.empty() || found.list.empty()) return found;
      std::erase_if(found.list, [&](const Suspect& s) { return !shows(e.facts, s.plant); });
      return std::move(found).or_why_not("no output changes");
    };
}

const std::vector<Fault>& catalogue() {
  static const std::vector<Fault> list = [] {
    std::vector<Fault> all;
    add_causal(all, add_index_width);
    add_causal(all, add_rows);
    add_causal(all, add_starts);
    add_causal(all, add_mask);
    add_causal(all, add_window);
    add_causal(all, add_tokens);
    add_causal(all, add_contents);
    add_causal(all, add_pages);
    add_causal(all, add_stale_page);
    add_layout(all);
    add_heads(all);
    add_scales(all);
    add_latent_rows(all);
    add_formats(all);
    add_blocks(all);
    add_scores(all);
    add_alibi(all);
    add_causal(all, add_softmax);
    add_sinks(all);
    add_causal(all, add_split);
    add_positions(all);  // faults of masks, which no family above changes
    add_shapes(all);
    add_head_dims(all);
    return all;
  }();
  return list;
}

const Fault* find(std::string_view id) {
  for (const Fault& fault : catalogue())
    if (fault.info.id == id) return &fault;
  return nullptr;
}

}  // namespace faults_detail

const std::vector<FaultInfo>& faults() {
  static const std::vector<FaultInfo> list = [] {
    std::vector<FaultInfo> all;
    for (const faults_detail::Fault& fault : faults_detail::catalogue()) all.push_back(fault.info);
    return all;
  }();
  return list;
}

}  // namespace quire
