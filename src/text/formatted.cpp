// SPDX-License-Identifier: Apache-2.0
// The one place of the library where fmt's formatter is instantiated (see formatted.h).
#include "text/formatted.h"

namespace quire {

std::string formatted_from(fmt::string_view pattern, fmt::format_args values) { return fmt::vformat(pattern, values); }

}  // namespace quire
