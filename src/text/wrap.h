// SPDX-License-Identifier: Apache-2.0
// Text in lines of a given width, broken between words and never inside one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// Lines of at most `columns` characters; a longer word has a line of its own. 0 columns: one line.
std::vector<std::string> lines_of(std::string_view text, std::size_t columns);

/// Every line of a report wrapped to `columns`; what follows the first line of a wrapped one is indented by `indent` spaces.
std::string wrapped(std::string_view report, std::size_t columns, std::size_t indent);

}  // namespace quire
