// SPDX-License-Identifier: Apache-2.0
// Writes the page of a report's JSON to a file, for tools/check_report.py.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "quire/tools/report.hpp"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: render_report REPORT.json PAGE.html\n", stderr);
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const quire::Result<std::string> page = quire::render_html(text.str());
  if (!page.ok()) {
    std::fprintf(stderr, "%s: %s\n", argv[1], page.status().message().c_str());
    return 1;
  }
  std::ofstream out(argv[2], std::ios::binary);
  out << page.value();
  return out.good() ? 0 : 3;
}
