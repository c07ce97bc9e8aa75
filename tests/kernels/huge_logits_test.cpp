// SPDX-License-Identifier: Apache-2.0
// Logits of up to 1e19, on every CPU kernel of this machine: where one key is ahead of all others, a row is that key's V. The
// tolerance of numerics.md grows with logits and says nothing here, so that rows of zeros would pass for right.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "kernels/host_kernels.h"
#include "kernels/judge.h"
#include "numerics/tolerance.h"
#include "support/small_case.h"
#include "text/formatted.h"

namespace quire::test {
namespace {

constexpr double kAhead = 1e-4;  ///< largest weight of all other keys of a judged row, at kClearScale
/// At this scale a key's lead of kAhead is 0.018, twice what f32 may be off by in a dot product of 128 dims of these rows, by
/// score_error(). At larger scales both grow alike.
constexpr const char* kClearScale = "500";

class HugeLogits : public testing::TestWithParam<std::string> {};

/// A row and head where one key has all the weight: sum p |V| is |sum p V|.
bool has_one_key(const Reference& r, std::int64_t first) {
  double sizes = 0, out = 0;
  for (std::int64_t i = first; i < first + r.v_head_dim; ++i) {
    sizes += r.abs_pv[static_cast<std::size_t>(i)];
    out += std::fabs(r.out[static_cast<std::size_t>(i)]);
  }
  return sizes - out <= kAhead * sizes;
}

/// Calls wrong(token, head, dim) for each wrong element of such rows of `clear`, which has the same data and kClearScale; returns
/// how many rows there are.
template <typename Wrong>
std::int64_t judge_clear_rows(const Tensor& out, const Reference& r, const Reference& clear, Wrong&& wrong) {
  const numerics::OutputType type = numerics::output_type(out.dtype);
  std::int64_t rows = 0;
  for (std::int64_t token = 0; token < r.num_tokens; ++token)
    for (std::int64_t head = 0; head < r.num_q_heads; ++head) {
      const std::int64_t first = (token * r.num_q_heads + head) * r.v_head_dim;
      if (!has_one_key(clear, first)) continue;
      ++rows;
      for (std::int64_t dim = 0; dim < r.v_head_dim; ++dim) {
        const double expected = r.out[static_cast<std::size_t>(first + dim)];
        const double most = (1.5 * type.roundoff + kAhead) * std::fabs(expected) + kAhead;
        if (!(std::fabs(at(out, {token, head, dim}) - expected) <= most)) wrong(token, head, dim);
      }
    }
  return rows;
}

/// A line as the kernel takes it, with data and reference.
verify_detail::Prepared asked(const std::string& kernel, const std::string& line, const char* scale) {
  return prepared(made(as_taken_by(kernel, parse_problem_line(formatted("{} scale={}", line, scale)).value())));
}

void expect_right(const std::string& kernel, const std::string& line, const Reference& clear, const char* scale) {
  const verify_detail::Prepared p = asked(kernel, line, scale);
  std::int64_t written = 0, wrong = 0;
  ASSERT_TRUE(kernel_under_test(kernel)(p.c, 2, written).ok()) << line;
  const std::int64_t rows = judge_clear_rows(p.c.batch.output, p.expected, clear, [&](auto token, auto head, auto dim) {
    if (wrong++ == 0) ADD_FAILURE() << line << " scale=" << scale << " token " << token << " head " << head << " dim " << dim;
  });
  EXPECT_EQ(wrong, 0) << line << " scale=" << scale;
  EXPECT_GT(rows, clear.num_tokens * clear.num_q_heads * 9 / 10) << line;
}

TEST_P(HugeLogits, ARowIsTheVOfTheKeyThatIsAhead) {
  for (const char* types : {"q=f32", "q=bf16", "q=f16 kv=f16", "q=bf16 kv=fp8_e4m3fn kscale=head vscale=tensor",
                            "q=f16 kv=i8 kscale=token vscale=token"})
    for (const char* layout : {"nhd", "packed"})
      for (const char* shape : {"heads=4:2 d=64 page=16 reqs=5@60,1@90,70@20", "heads=16:2 d=128 page=16 reqs=1@300,3@9,40@5"}) {
        const std::string line = formatted("{} layout={} {} seed=1", types, layout, shape);
        if (!takes(GetParam(), as_taken_by(GetParam(), parse_problem_line(line).value()).problem)) continue;
        const verify_detail::Prepared clear = asked(GetParam(), line, kClearScale);
        for (const char* scale : {"1e6", "3e7", "1e9", "1e18"}) expect_right(GetParam(), line, clear.expected, scale);
      }
}

/// What weights relative to a maximum that is off by half a unit give: nothing, the sum of nothing, or a neighbour's row.
TEST(HugeLogitsJudge, NoticesZerosNaNAndOtherRows) {
  const std::string line = "q=f32 heads=4:2 d=64 page=16 reqs=70@20 seed=1";
  const verify_detail::Prepared p = asked("cpu_generic", line, "1e9"), clear = asked("cpu_generic", line, kClearScale);
  const Tensor& out = p.c.batch.output;
  const auto wrong_rows = [&](const auto& value) {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < 70 * 4 * 64; ++i) set(out, {i / 256, i / 64 % 4, i % 64}, value(i / 256, i / 64 % 4, i % 64));
    const std::int64_t rows =
        judge_clear_rows(out, p.expected, clear.expected, [&](auto, auto, auto dim) { wrong += dim == 0 ? 1 : 0; });
    return std::pair{wrong, rows};
  };
  const auto expected = [&](std::int64_t token, std::int64_t head, std::int64_t dim) {
    return p.expected.out[static_cast<std::size_t>((token * 4 + head) * 64 + dim)];
  };
  const auto [none, rows] = wrong_rows(expected);
  EXPECT_EQ(none, 0);
  EXPECT_EQ(wrong_rows([](auto, auto, auto) { return 0.0; }).first, rows);
  EXPECT_EQ(wrong_rows([](auto, auto, auto) { return NAN; }).first, rows);
  EXPECT_GT(wrong_rows([&](auto token, auto head, auto dim) { return expected((token + 1) % 70, head, dim); }).first, rows / 2);
}

INSTANTIATE_TEST_SUITE_P(, HugeLogits, testing::ValuesIn(host_kernels()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::test
