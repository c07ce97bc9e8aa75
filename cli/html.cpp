// SPDX-License-Identifier: Apache-2.0
// Writes beside the target and renames, so that a full disk leaves no half page.
#include "report.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "report/html/page.h"
#include "text/formatted.h"

namespace quire::cli {

Status write_html(const std::string& path, const Json& json) {
  const std::string temporary = path + ".part";
  std::ofstream file(temporary, std::ios::binary);
  file << report::page_of(json);
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const Status status(Code::io_error, formatted("{}: cannot be written: {}", path, std::strerror(errno)));
    std::remove(temporary.c_str());
    return status;
  }
  return {};
}

}  // namespace quire::cli
