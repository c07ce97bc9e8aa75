// SPDX-License-Identifier: Apache-2.0
// The page that every report is, in two pieces: the data goes between them. Made from src/report/html/page by cmake/embed_page.cmake.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace quire::report {

/// The page of a document that is known to be a report. The same values give the same bytes, whatever the order of their keys.
std::string page_of(const nlohmann::ordered_json& document);

std::string_view page_before_data() noexcept;
std::string_view page_after_data() noexcept;

}  // namespace quire::report
