// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Reaction of a kernel that finds a call broken: no later kernel of the call writes a row.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"

namespace quire::gpu {

/// Breaks the call: no row is written afterwards. The host finds the ticket without waiting, for example at its next call.
QUIRE_DEVICE void break_call(const AttendArgs& a, unsigned long long ticket) {
  atomic_set(&a.outcome->broken, 1);
  atomic_set(&a.outcome->permit, kRefused);
  if (a.ticket_word != nullptr) store_for_host(a.ticket_word, ticket);
}
QUIRE_DEVICE void break_call(const AttendArgs& a) { break_call(a, a.ticket); }

/// Whether no row may be written: the call is broken, or the workspace was not prepared for this call.
QUIRE_DEVICE bool is_refused(const AttendArgs& a) {
#if defined(__HIP__)
  return hip::atomic_get(&a.outcome->permit) != a.permit;
#else
  return *static_cast<const volatile unsigned long long*>(&a.outcome->permit) != a.permit;
#endif
}

/// Whether a broken rule was found, also by an attend kernel, which refuses no call.
QUIRE_DEVICE bool is_broken(const AttendArgs& a) {
#if defined(__HIP__)
  return hip::atomic_get(&a.outcome->broken) != 0;
#else
  return *static_cast<const volatile std::int32_t*>(&a.outcome->broken) != 0;
#endif
}

}  // namespace quire::gpu
