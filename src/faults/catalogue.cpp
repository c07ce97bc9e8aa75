// SPDX-License-Identifier: Apache-2.0
// The catalogue: every family once, in the order in which data flows through a kernel.

#include "faults/families.h"

namespace quire {
namespace fault {

const std::vector<Fault>& catalogue() {
  static const std::vector<Fault> list = [] {
    std::vector<Fault> all;
    add_index_width(all);
    add_rows(all);
    add_starts(all);
    add_mask(all);
    add_window(all);
    add_tokens(all);
    add_contents(all);
    add_pages(all);
    add_stale_page(all);
    add_layout(all);
    add_heads(all);
    add_scales(all);
    add_formats(all);
    add_scores(all);
    add_alibi(all);
    add_softmax(all);
    add_sinks(all);
    add_split(all);
    return all;
  }();
  return list;
}

const Fault* find(std::string_view id) {
  for (const Fault& fault : catalogue())
    if (fault.info.id == id) return &fault;
  return nullptr;
}

}  // namespace fault

const std::vector<FaultInfo>& faults() {
  static const std::vector<FaultInfo> list = [] {
    std::vector<FaultInfo> all;
    for (const fault::Fault& fault : fault::catalogue()) all.push_back(fault.info);
    return all;
  }();
  return list;
}

}  // namespace quire
