// SPDX-License-Identifier: Apache-2.0
// A kernel that is fast and wrong does not pass `quire bench`.
#include "quire/tools/bench.hpp"
#include "quire/tools/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "injection/injected.h"

namespace quire::test {
namespace {

TEST(Bench, FailsOnAKernelThatIsWrong) {
  BenchOptions options;
  options.seconds = 0.01;
  options.threads = {1};
  for (const Injected& injected : kInjected) {
    constexpr std::string_view kChosen[] = {"window_one_short", "scales_swapped", "last_split_dropped",
                                            "decode_rows_not_written"};
    if (std::ranges::find(kChosen, injected.id) == std::end(kChosen)) continue;
    const std::vector<BenchInput> inputs = {{.name = {}, .line = injected.line, .capture = {}}};
    const Result<BenchReport> right = bench(inputs, options);
    ASSERT_TRUE(right.ok()) << right.status().message();
    EXPECT_TRUE(right->ok) << to_string(right.value());
    const Plant plant(injected);
    const Result<BenchReport> wrong = bench(inputs, options);
    ASSERT_TRUE(wrong.ok()) << wrong.status().message();
    EXPECT_FALSE(wrong->ok) << injected.id << "\n" << to_string(wrong.value());
    EXPECT_EQ(wrong->cases[0].results[0].status, BenchStatus::wrong) << injected.id;
  }
}

}  // namespace
}  // namespace quire::test
