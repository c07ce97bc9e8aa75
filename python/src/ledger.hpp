// SPDX-License-Identifier: Apache-2.0
// The slot ledger as Python holds it; shared by check, append and the page pool.
#pragma once

#include "quire/contract.hpp"

namespace quire_python {

struct PyLedger {
  PyLedger(std::int64_t num_pages, std::int64_t page_size, bool digests);
  quire::SlotLedger ledger;
};

}  // namespace quire_python
