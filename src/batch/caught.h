// SPDX-License-Identifier: Apache-2.0
// Makes a status of an exception. A public call throws nothing but Interrupted, if its InterruptScope ends.
#pragma once

#include <string_view>

#include "quire/status.hpp"

namespace quire::batch {

/// The failure of a call whose exception is being handled (in a catch block): out_of_memory for std::bad_alloc, and for
/// std::length_error, which is a size that no memory has; internal_error, in the exception's words, for any other. Interrupted is
/// thrown again, because the caller asked for it.
Status caught(std::string_view call);

}  // namespace quire::batch
