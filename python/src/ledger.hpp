// SPDX-License-Identifier: Apache-2.0
// The slot ledger as Python holds it; shared by check, append and the page pool.
#pragma once

#include "arguments.hpp"
#include "quire/contract.hpp"

namespace quire_python {

struct PyLedger {
  explicit PyLedger(const Arguments& given);
  quire::SlotLedger ledger;
};

}  // namespace quire_python
