// SPDX-License-Identifier: Apache-2.0
// The page that every report is, in two pieces: the data goes between them. Made from src/report/page by cmake/embed_page.cmake.
#pragma once

#include <string_view>

namespace quire::report {

std::string_view page_before_data() noexcept;
std::string_view page_after_data() noexcept;

}  // namespace quire::report
