// SPDX-License-Identifier: Apache-2.0
// Golden files: expected text kept in the source tree. QUIRE_UPDATE_GOLDENS=1 rewrites them instead of comparing.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace quire::test {

inline bool updating_goldens() {
  const char* value = std::getenv("QUIRE_UPDATE_GOLDENS");
  return value != nullptr && std::string(value) == "1";
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// `relative` is a path below the source root, e.g. "tests/plan/goldens/decode.txt".
inline void expect_golden(const std::string& relative, const std::string& actual) {
  const std::filesystem::path path = std::filesystem::path(QUIRE_SOURCE_DIR) / relative;
  if (updating_goldens()) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << actual;
    return;
  }
  ASSERT_TRUE(std::filesystem::exists(path)) << relative << " is missing; QUIRE_UPDATE_GOLDENS=1 writes it";
  EXPECT_EQ(read_text(path), actual) << relative << " differs; QUIRE_UPDATE_GOLDENS=1 rewrites it";
}

}  // namespace quire::test
