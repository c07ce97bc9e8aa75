// SPDX-License-Identifier: Apache-2.0
// C ABI: what the opaque handles of quire.h are.
#pragma once

#include "quire/contract.hpp"
#include "quire/plan.hpp"
#include "quire/status.hpp"

struct quire_ledger {
  quire::SlotLedger ledger;
  std::int64_t step = 0;
};

struct quire_findings {
  quire::Findings findings;
};

struct quire_plan {
  quire::Plan plan;
};

namespace quire::capi {

/// Gives the caller a handle of what was made.
template <typename Handle, typename Content>
Status hand_out(Result<Content> made, Handle** out) {
  if (!made.ok()) return made.status();
  *out = new Handle{std::move(made).value()};
  return {};
}

}  // namespace quire::capi
