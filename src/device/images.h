// SPDX-License-Identifier: Apache-2.0
// Test whether a build has code for a CUDA device, by the architectures that the build was compiled for.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

namespace quire::device {

/// Whether one of the CMake architectures, separated by spaces, gives code for compute capability `sm` (10 * major + minor):
///   90a      sm 90 alone; "f" is read alike, although it covers more
///   80-real  machine code: the same major version, from this minor version on
///   80       machine code, and PTX that the driver compiles for every later device
/// Devices of capability 9.0 need 90a: the kernels of cuda_sm90 are empty in code for other architectures.
inline bool has_image(std::string_view architectures, int sm) {
  std::size_t begin = 0;
  while (begin < architectures.size()) {
    const std::size_t end = std::min(architectures.find(' ', begin), architectures.size());
    const std::string word(architectures.substr(begin, end - begin));
    begin = end + 1;
    char* rest = nullptr;
    const long built = std::strtol(word.c_str(), &rest, 10);
    const std::string_view suffix = rest;
    const bool exact = suffix.starts_with("a") || suffix.starts_with("f");
    const bool real = suffix == "-real";
    if (exact ? built == sm : sm != 90 && built <= sm && (!real || built / 10 == sm / 10)) return true;
  }
  return false;
}

}  // namespace quire::device
