// SPDX-License-Identifier: Apache-2.0
// A kernel that is fast and wrong does not pass `quire bench`.
#include "quire/bench.hpp"
#include "quire/report.hpp"

#include <gtest/gtest.h>

#include "injection/plant.h"

namespace quire::test {
namespace {

TEST(Bench, FailsOnAKernelThatIsWrong) {
  BenchOptions options;
  options.seconds = 0.01;
  options.threads = {1};
  for (const Injected& injected : kInjected) {
    if (injected.fault != cpu::Planted::window_one_short && injected.fault != cpu::Planted::scales_swapped &&
        injected.fault != cpu::Planted::last_split_dropped && injected.fault != cpu::Planted::decode_rows_not_written)
      continue;
    const std::vector<BenchInput> inputs = {{.name = {}, .line = injected.line, .capture = {}}};
    const Result<BenchReport> right = bench(inputs, options);
    ASSERT_TRUE(right.ok()) << right.status().message();
    EXPECT_TRUE(right->ok) << to_string(right.value());
    const Plant plant(injected.fault);
    const Result<BenchReport> wrong = bench(inputs, options);
    ASSERT_TRUE(wrong.ok()) << wrong.status().message();
    EXPECT_FALSE(wrong->ok) << injected.id << "\n" << to_string(wrong.value());
    EXPECT_EQ(wrong->cases[0].results[0].status, BenchStatus::wrong) << injected.id;
  }
}

}  // namespace
}  // namespace quire::test
