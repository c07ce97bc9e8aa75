// SPDX-License-Identifier: Apache-2.0
// Size and alignment of memory that a caller gives to a call.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "quire/status.hpp"
#include "quire/workspace.hpp"
#include "text/formatted.h"

namespace quire::device {

/// Memory of at least `bytes`, aligned as a Workspace is. `what` names the argument.
inline Status room_fits(std::string_view what, std::span<const std::byte> memory, std::size_t bytes) {
  if (memory.size() >= bytes && reinterpret_cast<std::uintptr_t>(memory.data()) % Workspace::kAlignment == 0) return {};
  return {Code::invalid_argument,
          formatted("{}: {} bytes at {}, expected at least {} bytes, {}-byte aligned", what, memory.size(),
                    static_cast<const void*>(memory.data()), bytes, Workspace::kAlignment)};
}

}  // namespace quire::device
