// SPDX-License-Identifier: Apache-2.0
// Writes beside the target and renames, so that a full disk leaves no half page.
#include "html.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "quire/report.hpp"
#include "text/formatted.h"

namespace quire::cli {

Status write_html(const std::string& path, const Json& json) {
  const Result<std::string> page = render_html(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!page.ok()) return page.status();
  const std::string temporary = path + ".part";
  std::ofstream file(temporary, std::ios::binary);
  file << page.value();
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const Status status(Code::io_error, formatted("{}: cannot be written: {}", path, std::strerror(errno)));
    std::remove(temporary.c_str());
    return status;
  }
  return {};
}

}  // namespace quire::cli
