// SPDX-License-Identifier: Apache-2.0
// When a launch runs, of the launches that serve the lists of a call.
#pragma once

#include <cstdint>

namespace quire::cuda {

/// sm90/launch_order.h has the protocol. Kernels that know no other turn than `alone` need not be told.
enum class Turn : std::int32_t {
  alone,     ///< after whatever is before it
  first,     ///< of the long list, on its SMs; lets the next start
  beside,    ///< of the short list, on the others; lets the next start
  last,      ///< of the long list again, on those that become free
  leading,   ///< of the short list, alone; lets the next start when it ends
  trailing,  ///< of the long list, which may be empty, behind `leading`
};

}  // namespace quire::cuda
