// SPDX-License-Identifier: Apache-2.0
// Stage: attend. What a kernel does that finds a call broken.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"

namespace quire::gpu {

/// No row of the call is written after this. The host finds the ticket without waiting: at the next call, say.
QUIRE_DEVICE void break_call(const AttendArgs& a) {
  atomic_set(&a.outcome->broken, 1);
  if (a.ticket_word != nullptr) store_for_host(a.ticket_word, a.ticket);
}

}  // namespace quire::gpu
