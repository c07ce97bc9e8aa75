// SPDX-License-Identifier: Apache-2.0
// Exceptions as statuses: what a public call does with one, since no call throws but by an InterruptScope.
#pragma once

#include <string_view>

#include "quire/status.hpp"

namespace quire::batch {

/// The failure of a call whose exception is being handled (in a catch block): out_of_memory for std::bad_alloc, and for
/// std::length_error, which is a size that no memory has; internal_error, in the exception's words, for any other. Interrupted is
/// no failure, and goes on to the caller, who asked for it.
Status caught(std::string_view call);

}  // namespace quire::batch
