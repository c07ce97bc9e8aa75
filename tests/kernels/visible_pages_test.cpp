// SPDX-License-Identifier: Apache-2.0
// Kernels of this machine on small masks of every kind: entries that no row needs are wild, all that no row sees is NaN.
#include <gtest/gtest.h>

#include "kernels/host_kernels.h"
#include "kernels/judge.h"
#include "support/page_cases.h"
#include "text/formatted.h"

namespace quire::test {
namespace {

class VisiblePages : public testing::TestWithParam<std::string> {};

/// The type of rows of a PageBatch that the kernel takes; DType::none if it takes none of them.
DType type_taken_by(const std::string& kernel) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const std::string line = formatted("q={} kv={} heads=2:1 d=8 page=3 reqs=1@9", name(type), name(type));
    if (takes(kernel, parse_problem_line(line).value().problem)) return type;
  }
  return DType::none;
}

TEST_P(VisiblePages, NothingElseIsRead) {
  const DType type = type_taken_by(GetParam());
  if (type == DType::none) GTEST_SKIP() << GetParam() << " takes no rows of 8 dims";
  std::mt19937_64 random(4);
  int taken = 0;
  for (int i = 0; i < 3000; ++i) {
    const PageCase of = drawn_page_case(random, i % 2 == 0 ? 24 : 300);
    PageBatch batch(of, of.needed_columns() + static_cast<std::int64_t>(random() % 2), random, type);
    if (!takes(GetParam(), problem_of(batch->batch, batch->cache, batch->options))) continue;
    ++taken;
    std::int64_t rows = 0;
    const Status status = kernel_under_test(GetParam(), /*batch_invariant=*/i % 3 == 0)(*batch, 1, rows);
    ASSERT_TRUE(status.ok()) << of.text() << ": " << status.message();
    const Result<Reference> expected = reference(batch->batch, batch->cache, batch->options);
    ASSERT_TRUE(expected.ok()) << of.text() << ": " << expected.status().message();
    const Comparison judged = compare(batch->batch.output, batch->batch.lse, expected.value());
    ASSERT_TRUE(judged.ok) << of.text() << "\n" << judged.text;
  }
  EXPECT_GT(taken, 300) << GetParam();
}

INSTANTIATE_TEST_SUITE_P(, VisiblePages, testing::ValuesIn(host_kernels()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::test
