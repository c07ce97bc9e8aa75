// SPDX-License-Identifier: Apache-2.0
// When a launch runs, of the launches that serve the lists of a call.
#pragma once

#include <cstdint>

namespace quire::cuda {

/// sm90/launch_order.h has the protocol. Kernels that know no other turn than `alone` need not be told.
enum class Turn : std::int32_t {
  alone,     ///< the launch has no other beside it
  first,     ///< prefill on its SMs; when every block has started, `beside` may start
  beside,    ///< decode on the SMs that `first` does not use; lets `last` start
  last,      ///< prefill on the SMs that decode gives up
  leading,   ///< decode, before prefill; its blocks let `trailing` start when they end
  trailing,  ///< prefill after `leading`; its list may be empty
};

}  // namespace quire::cuda
