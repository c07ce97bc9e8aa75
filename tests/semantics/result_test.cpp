// SPDX-License-Identifier: Apache-2.0
// value() of a failure must not be silent: the process ends with the failure's own words.
#include <gtest/gtest.h>

#include "quire/quire.hpp"

namespace quire::test {
namespace {

TEST(Result, ValueOfAFailureAbortsWithTheMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Result<Plan> failed = Status(Code::contract_violation, "Q-T03 block_table[5][2]: page 913 outside [0, 512)", "Q-T03");
  const char* words = "value\\(\\) of a failed Result \\(contract_violation\\): Q-T03 block_table\\[5\\]\\[2\\]: page 913";
  EXPECT_DEATH((void)failed.value(), words);
  EXPECT_DEATH((void)failed->kernel, words);
  EXPECT_DEATH((void)Result<int>(failed.status()).value(), words);
}

TEST(Result, ValueOfASuccessIsTheValue) {
  Result<std::string> made = std::string("a value of its own");
  EXPECT_EQ(made.value(), "a value of its own");
  EXPECT_EQ(made->size(), 18u);
  EXPECT_EQ(std::move(made).value(), "a value of its own");
}

TEST(Workspace, IsAlignedAndGrows) {
  Workspace workspace;
  EXPECT_EQ(workspace.size(), 0u);
  for (const std::size_t bytes : {1u, 100u, 64u, 100'000u}) {
    const std::span<std::byte> memory = workspace.at_least(bytes);
    ASSERT_GE(memory.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % Workspace::kAlignment, 0u);
    memory.back() = std::byte{1};
  }
  const std::byte* before = workspace.at_least(100'000).data();
  EXPECT_EQ(workspace.at_least(5).data(), before) << "it never shrinks, so a smaller call keeps the memory";
  EXPECT_EQ(Workspace(4096).size(), 4096u);
}

TEST(Version, MacrosAgree) {
  static_assert(QUIRE_VERSION_NUMBER == 10000 * QUIRE_VERSION_MAJOR + 100 * QUIRE_VERSION_MINOR + QUIRE_VERSION_PATCH);
}

}  // namespace
}  // namespace quire::test
