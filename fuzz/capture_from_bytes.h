// SPDX-License-Identifier: Apache-2.0
// The fuzzer's bytes as a capture.
#pragma once

#include <cstdint>
#include <string>

namespace quire::fuzz {

/// Bytes of a capture file: either what follows the first byte or, where that is 1, the same as JSON and data for which the
/// right length prefix is made. `size` is not 0.
inline std::string capture_of(const std::uint8_t* data, std::size_t size) {
  std::string file(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] != 1) return file;
  const std::size_t header = file.find('\n') == std::string::npos ? file.size() : file.find('\n') + 1;
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(static_cast<std::uint64_t>(header) >> (8 * i) & 0xFF);
  return prefix + file;
}

}  // namespace quire::fuzz
