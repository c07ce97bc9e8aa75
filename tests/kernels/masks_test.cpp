// SPDX-License-Identifier: Apache-2.0
// Promises of masks, on every CPU kernel of this machine: shards of a context merge to the whole, an encoder is a dense softmax,
// rows without keys are exactly 0 and -inf, and a mask that says what already holds changes no bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/host_kernels.h"
#include "kernels/invariance.h"
#include "kernels/judge.h"

namespace quire::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class Masks : public testing::TestWithParam<std::string> {
 protected:
  ProblemLine line(const std::string& text) const {
    Result<ProblemLine> parsed = parse_problem_line(text);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return as_taken_by(GetParam(), parsed.value());
  }
  /// The case of a line with its output and lse.
  Case attended(const ProblemLine& of) const {
    Result<Case> c = make_case(of);
    EXPECT_TRUE(c.ok()) << c.status().message();
    std::int64_t rows = 0;
    const Status s = kernel_under_test(GetParam())(c.value(), 2, rows);
    EXPECT_TRUE(s.ok()) << s.message();
    return std::move(c).value();
  }
  Case attended(const std::string& text) const { return attended(line(text)); }
};

/// Context [0, 200) and 20 rows from 180 on, cut in three: in the middle of a page, of the window and of the rows.
constexpr const char* kWhole = "heads=4:2 d=32 page=8 lse=1 reqs=20@180 seed=5";
constexpr const char* kShards[] = {"heads=4:2 d=32 page=8 lse=1 reqs=20:90 kbegin=0 qbegin=180 seed=5",
                                   "heads=4:2 d=32 page=8 lse=1 reqs=20:95 kbegin=90 qbegin=180 seed=5",
                                   "heads=4:2 d=32 page=8 lse=1 reqs=20:15 kbegin=185 qbegin=180 seed=5"};

TEST_P(Masks, ShardsOfAContextMergeToTheWhole) {
  if (line(std::string("q=f32 ") + kWhole).problem.q_dtype != DType::f32)
    GTEST_SKIP() << "partial results in 16 bits are rounded twice, the tolerance of the whole pays for one";
  for (const std::string options :
       {"", " alibi=1", " window=60", " causal=0", " causal=0 window=30 wright=4 alibi=1", " cap=5"}) {
    SCOPED_TRACE(options);
    const std::string types = "q=f32 kv=f32 ";
    const Case whole = attended(types + kWhole + options);
    Case sum = attended(types + kShards[0] + options);
    for (std::size_t i = 1; i < std::size(kShards); ++i) {
      const Case next = attended(types + kShards[i] + options);
      const Status merged =
          merge(sum.batch.output, sum.batch.lse, next.batch.output, next.batch.lse, sum.batch.output, sum.batch.lse);
      ASSERT_TRUE(merged.ok()) << merged.message();
    }
    const Result<Reference> expected = reference(whole.batch, whole.cache, whole.options);
    ASSERT_TRUE(expected.ok());
    const Comparison judged = compare(sum.batch.output, sum.batch.lse, expected.value());
    EXPECT_TRUE(judged.ok) << judged.text;
  }
}

/// The line of one encoder request, recomputed by the words of a textbook: softmax(Q K^T / sqrt(d)) V over all keys.
TEST_P(Masks, AnEncoderIsADenseSoftmax) {
  const Case c = attended("q=f32 kv=f32 heads=2 d=16 page=64 causal=0 lse=1 reqs=40 seed=3");
  const Tensor &q = c.batch.query, &k = c.cache.k, &v = c.cache.v;
  const std::int64_t page = semantics::load_index(c.batch.block_table.data, c.batch.block_table.dtype, 0);
  const auto key = [&](const Tensor& t, std::int64_t j, std::int64_t h, std::int64_t d) {
    return static_cast<double>(
        semantics::load(t.data, t.dtype, page * t.stride[0] + j * t.stride[1] + h * t.stride[2] + d * t.stride[3]));
  };
  for (std::int64_t i = 0; i < 40; ++i)
    for (std::int64_t h = 0; h < 2; ++h) {
      std::vector<double> weights;
      double sum = 0;
      for (std::int64_t j = 0; j < 40; ++j) {
        double dot = 0;
        for (std::int64_t d = 0; d < 16; ++d)
          dot += static_cast<double>(semantics::load(q.data, q.dtype, (i * 2 + h) * 16 + d)) * key(k, j, h, d);
        weights.push_back(std::exp(dot / 4));
        sum += weights.back();
      }
      for (std::int64_t d = 0; d < 16; ++d) {
        double out = 0, largest = 0;
        for (std::int64_t j = 0; j < 40; ++j) {
          out += weights[static_cast<std::size_t>(j)] / sum * key(v, j, h, d);
          largest = std::max(largest, std::fabs(key(v, j, h, d)));
        }
        const double got = semantics::load(c.batch.output.data, c.batch.output.dtype, (i * 2 + h) * 16 + d);
        // Scores below 60 with f32 roundoff 2^-24 each: weights are off by less than 2^-16, and so is a mean of V.
        const double allowed = c.batch.output.dtype == DType::f32 ? largest * 0x1p-15 : largest * 0x1p-7;
        ASSERT_NEAR(got, out, allowed) << GetParam() << " row " << i << " head " << h << " dim " << d;
      }
    }
}

TEST_P(Masks, RowsWithoutKeysAreExactlyZero) {
  for (const char* text :
       {"q=f32 heads=4:2 d=24 page=8 causal=0 lse=1 reqs=5:0,1:0,70:0",
        "q=bf16 heads=4:2 d=16 page=8 lse=1 reqs=5:0,3:8,9:8 kbegin=1x0,1x16,1x64 qbegin=1x7,1x2,1x20 window=4"}) {
    const Case c = attended(text);
    const Tensor& out = c.batch.output;
    for (std::int64_t i = 0; i < out.num_elements(); ++i) {
      const float value = semantics::load(out.data, out.dtype, i);
      ASSERT_EQ(semantics::float_to_bits(value), 0u) << text << " element " << i << ": " << value;
    }
    for (std::int64_t i = 0; i < c.batch.lse.num_elements(); ++i)
      ASSERT_EQ(static_cast<const float*>(c.batch.lse.data)[i], -kInf) << text << " row and head " << i;
  }
}

TEST_P(Masks, RowsWithoutKeysHaveTheSinkAlone) {
  const Case c = attended("q=f32 heads=4:2 d=16 page=8 causal=0 sinks=1 lse=1 reqs=3:0");
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i)
    ASSERT_EQ(semantics::load(c.batch.output.data, c.batch.output.dtype, i), 0.0f);
  for (std::int64_t row = 0; row < 3; ++row)
    for (std::int64_t h = 0; h < 4; ++h)
      ASSERT_EQ(static_cast<const float*>(c.batch.lse.data)[row * 4 + h], static_cast<const float*>(c.options.sinks.data)[h]);
}

void expect_same_bits(const Case& a, const Case& b) {
  EXPECT_EQ(bits_of(a.batch.output), bits_of(b.batch.output));
  EXPECT_EQ(bits_of(a.batch.lse), bits_of(b.batch.lse));
}

/// Where masks say what holds without them, they change no bit.
TEST_P(Masks, SaidTwiceChangesNoBit) {
  const std::string rest = "q=f32 heads=6:2 d=32 page=8 lse=1 alibi=1 window=40 reqs=20@70,1@100,3@9 seed=11";
  const Case plain = attended(rest);
  expect_same_bits(plain, attended(rest + " causal=3x1"));
  expect_same_bits(plain, attended(rest + " qbegin=1x70,1x100,1x9"));
  expect_same_bits(plain, attended(rest + " causal=0 wright=0"));
}

/// Distances matter and positions do not: all of a batch moved along the sequence gives the same bits.
TEST_P(Masks, PositionsMoveTogether) {
  Case c = attended("q=f32 heads=6:2 d=32 page=8 lse=1 alibi=1 window=30 reqs=20:64,3:9 kbegin=1x16,1x0 qbegin=1x70,1x5 seed=2");
  const std::vector<std::uint32_t> out = bits_of(c.batch.output), lse = bits_of(c.batch.lse);
  for (const std::int32_t by : {1, 1000, 2000000000}) {
    for (std::int64_t r = 0; r < 2; ++r) {
      static_cast<std::int32_t*>(c.batch.q_begin.data)[r] += by;
      static_cast<std::int32_t*>(c.batch.key_begin.data)[r] += by;
    }
    std::int64_t rows = 0;
    const Status s = kernel_under_test(GetParam())(c, 2, rows);
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(bits_of(c.batch.output), out) << "moved by " << by;
    EXPECT_EQ(bits_of(c.batch.lse), lse) << "moved by " << by;
    for (std::int64_t r = 0; r < 2; ++r) {
      static_cast<std::int32_t*>(c.batch.q_begin.data)[r] -= by;
      static_cast<std::int32_t*>(c.batch.key_begin.data)[r] -= by;
    }
  }
}

TEST_P(Masks, BatchInvariantPlansKeepTheirBitsInChunks) {
  for (const char* text : {"q=bf16 heads=4:2 d=32 page=16 causal=0 lse=1 reqs=90@40 seed=1",
                           "q=bf16 heads=4:2 d=32 page=16 causal=0 window=50 wright=7 lse=1 reqs=70:200 seed=2",
                           "q=bf16 heads=4:2 d=32 page=16 lse=1 reqs=70:200 kbegin=64 qbegin=230 seed=3"}) {
    Result<Case> c = make_case(line(text));
    ASSERT_TRUE(c.ok());
    for (const std::string& finding : judge_chunked(c.value(), kernel_under_test(GetParam(), /*batch_invariant=*/true)))
      ADD_FAILURE() << text << ": " << finding;
  }
}

/// A plan is of one batch: other masks are no batch of the plan.
TEST_P(Masks, APlanOfOtherMasksIsRefused) {
  Result<Case> c = make_case(line("q=bf16 heads=4:2 d=32 page=16 reqs=9@40,3@5 causal=1x1,1x0 qbegin=1x40,1x5"));
  ASSERT_TRUE(c.ok());
  c->batch.slot_mapping = {};  // slot_mapping agrees with one q_begin alone
  const Result<Plan> planned = plan(c->batch, c->cache, c->options, {.kernel = GetParam()});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  std::int64_t rows = 0;
  ASSERT_TRUE(attend_planned(planned.value(), c.value(), 1, rows).ok());
  static_cast<std::uint8_t*>(c->batch.causal.data)[1] = 1;
  Status s = attend_planned(planned.value(), c.value(), 1, rows);
  EXPECT_EQ(s.code(), Code::invalid_argument);
  EXPECT_NE(s.message().find("request 1 has causal 1"), std::string::npos) << s.message();
  static_cast<std::uint8_t*>(c->batch.causal.data)[1] = 0;
  static_cast<std::int32_t*>(c->batch.q_begin.data)[0] = 41;
  s = attend_planned(planned.value(), c.value(), 1, rows);
  EXPECT_NE(s.message().find("q_begin 41"), std::string::npos) << s.message();
}

INSTANTIATE_TEST_SUITE_P(, Masks, testing::ValuesIn(host_kernels()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::test
