// SPDX-License-Identifier: Apache-2.0
// docs/kernels/index.md lists the kernels of this build; the list is written from the kernel table.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "quire/plan.hpp"
#include "support/golden.h"

namespace quire::test {
namespace {

constexpr const char* kBegin = "QUIRE_UPDATE_GOLDENS=1 rewrites it -->\n";
constexpr const char* kEnd = "<!-- /kernels -->\n";

std::string needs(const Kernel& kernel) {
  std::string text;
  const auto add = [&](std::uint32_t feature, const char* name) {
    if ((kernel.cpu_features & feature) != 0) text += (text.empty() ? "" : ", ") + std::string(name);
  };
  add(kAvx2, "AVX2 + FMA + F16C");
  add(kAvx512, "AVX-512 F, BW, VL, DQ");
  add(kAvx512Bf16, "AVX512-BF16, AVX512-VBMI");
  add(kAmxBf16, "AMX-BF16, AVX512-VBMI");
  add(kNeon, "NEON");
  return text.empty() ? "-" : text;
}

std::string table() {
  std::string text = "\n| kernel, in order of preference | backend | needs | takes | how |\n|---|---|---|---|---|\n";
  for (const Kernel& kernel : kernels())
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", kernel.name, name(kernel.backend), needs(kernel), kernel.takes,
                        kernel.description);
  return text + "\n";
}

/// Puts `text` between the markers; returns what was there.
std::string swap(std::string& page, const std::string& text) {
  const std::size_t marker = page.find(kBegin);
  const std::size_t end = page.find(kEnd);
  if (marker == std::string::npos || end == std::string::npos) return "the markers are gone";
  const std::size_t begin = marker + std::string(kBegin).size();
  std::string old = page.substr(begin, end - begin);
  page.replace(begin, end - begin, text);
  return old;
}

TEST(KernelsPage, ListsTheKernels) {
  const std::filesystem::path path = std::filesystem::path(QUIRE_SOURCE_DIR) / "docs/kernels/index.md";
  std::string page = read_text(path);
  const std::string documented = swap(page, table());
  if (updating_goldens()) {
    std::ofstream(path, std::ios::binary) << page;
    return;
  }
  EXPECT_EQ(documented, table()) << "QUIRE_UPDATE_GOLDENS=1 rewrites the page";
}

TEST(KernelsPage, AChangedListIsNoticed) {
  std::string page = read_text(std::filesystem::path(QUIRE_SOURCE_DIR) / "docs/kernels/index.md");
  swap(page, table());
  page.replace(page.find("| `cpu_generic` |"), 17, "| `cpu_special` |");
  EXPECT_NE(swap(page, table()), table());
}

}  // namespace
}  // namespace quire::test
