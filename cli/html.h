// SPDX-License-Identifier: Apache-2.0
// --html: the report of a command as one page.
#pragma once

#include <string>

#include "report.h"

namespace quire::cli {

/// Renders the JSON of a report and writes it as a whole or not at all.
Status write_html(const std::string& path, const Json& json);

}  // namespace quire::cli
