// SPDX-License-Identifier: Apache-2.0
// Fuzzes the report page: no JSON crashes, every error is short, and nothing in the data can end its block or begin a tag.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "quire/tools/report.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto page = quire::render_html({reinterpret_cast<const char*>(data), size});
  if (!page.ok()) {
    if (page.status().code() != quire::Code::parse_error || page.status().message().size() > 1000) std::abort();
    return 0;
  }
  static const std::string kOpening = "id=\"data\">", kClosing = "</script>";
  const std::string_view text = page.value();
  const std::string_view rest = text.substr(text.find(kOpening) + kOpening.size());
  const std::size_t end = rest.find_first_of("<>&");
  if (end == std::string_view::npos || rest.substr(end, kClosing.size()) != kClosing) std::abort();
  // The text after the data is the same for every report.
  static const std::string kTail(rest.substr(end));
  if (rest.substr(end) != kTail) std::abort();
  return 0;
}
