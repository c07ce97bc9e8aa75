// SPDX-License-Identifier: Apache-2.0
// merge_many(): against fp64 for any number of parts, to the bit where parts are empty or two, associative within rounding, and
// equal to one softmax over all keys.
#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/compare_merged.h"
#include "kernels/move_cases.h"
#include "quire/attention.hpp"
#include "semantics/dtype.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

constexpr std::int64_t kTokens = 5, kHeads = 3, kDim = 70;  // kDim: more dims than are summed at once
constexpr double kUnit = 0x1p-24;

struct Stack {
  Storage storage;
  Tensor outs, lses, out, lse;
};

/// N(0,1) rows. Part t % (parts + 1) of row t is empty and holds NaN; of row 4 all parts are, if `all_empty`.
void fill(Stack& s, std::int64_t parts, DType dtype, bool gap, bool all_empty, std::uint64_t seed) {
  s.outs = make_tensor(s.storage, dtype, {parts, kTokens, kHeads, kDim}, gap);
  s.lses = make_tensor(s.storage, DType::f32, {parts, kTokens, kHeads}, gap);
  s.out = make_tensor(s.storage, dtype, {kTokens, kHeads, kDim}, gap);
  s.lse = make_tensor(s.storage, DType::f32, {kTokens, kHeads}, gap);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < parts; ++i)
    for (std::int64_t t = 0; t < kTokens; ++t)
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const bool empty = all_empty && (i == t % (parts + 1) || t == 4);
        const float lse = 3.0f * normal(random);
        set(s.lses, {i, t, h}, empty ? -INFINITY : lse);
        for (std::int64_t d = 0; d < kDim; ++d) {
          const float value = normal(random);
          set(s.outs, {i, t, h, d}, empty ? NAN : value);
        }
      }
}

MergedStack expected(const Stack& s, std::int64_t t, std::int64_t h, std::int64_t d) {
  return merged_stack(s.outs, s.lses, {t, h, d}, s.out.dtype);
}

TEST(MergeMany, MatchesFp64ForEveryNumberOfPartsTypeAndStride) {
  for (const std::int64_t parts : {1, 2, 3, 5, 8})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const bool gap : {false, true})
        for (const bool all_empty : {false, true}) {
          Stack s;
          fill(s, parts, dtype, gap, all_empty, 7);
          const Status status = merge_many(s.outs, s.lses, s.out, s.lse);
          ASSERT_TRUE(status.ok()) << status.message();
          for (std::int64_t t = 0; t < kTokens; ++t)
            for (std::int64_t h = 0; h < kHeads; ++h)
              for (std::int64_t d = 0; d < kDim; ++d) {
                const MergedStack e = expected(s, t, h, d);
                if (std::isinf(e.lse))
                  ASSERT_EQ(at(s.lse, {t, h}), -INFINITY);
                else
                  ASSERT_NEAR(at(s.lse, {t, h}), e.lse, e.lse_tolerance);
                ASSERT_NEAR(at(s.out, {t, h, d}), e.value, e.tolerance) << parts << " " << name(dtype) << " " << t;
              }
        }
}

Tensor part_of(const Tensor& stack, std::int64_t i) {
  Tensor part = stack;
  part.rank = stack.rank - 1;
  for (int k = 0; k < part.rank; ++k) part.shape[k] = stack.shape[k + 1], part.stride[k] = stack.stride[k + 1];
  part.data = static_cast<std::byte*>(stack.data) + i * stack.stride[0] * itemsize(stack.dtype);
  return part;
}

TEST(MergeMany, TwoPartsGiveTheBitsOfMerge) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool all_empty : {false, true}) {
      Stack s;
      fill(s, 2, dtype, /*gap=*/false, all_empty, 3);
      Stack two;
      fill(two, 2, dtype, /*gap=*/false, all_empty, 3);
      ASSERT_TRUE(merge_many(s.outs, s.lses, s.out, s.lse).ok());
      ASSERT_TRUE(merge(part_of(s.outs, 0), part_of(s.lses, 0), part_of(s.outs, 1), part_of(s.lses, 1), two.out, two.lse).ok());
      EXPECT_TRUE(same_bytes(s.out, two.out)) << name(dtype);
      EXPECT_TRUE(same_bytes(s.lse, two.lse)) << name(dtype);
    }
}

TEST(MergeMany, EmptyPartsAnywhereChangeNoBit) {
  Stack full;
  fill(full, 3, DType::f32, /*gap=*/false, /*all_empty=*/false, 5);
  ASSERT_TRUE(merge_many(full.outs, full.lses, full.out, full.lse).ok());
  for (const std::vector<int>& places : {std::vector<int>{0, 1, 2}, {1, 3, 4}, {0, 2, 5}, {3, 4, 5}})
    for (const float garbage : {0.0f, NAN, INFINITY}) {
      Stack s;
      fill(s, 6, DType::f32, /*gap=*/false, /*all_empty=*/false, 6);
      for (std::int64_t i = 0, next = 0; i < 6; ++i) {
        const bool holds = next < 3 && places[static_cast<std::size_t>(next)] == i;
        for (std::int64_t t = 0; t < kTokens; ++t)
          for (std::int64_t h = 0; h < kHeads; ++h) {
            set(s.lses, {i, t, h}, holds ? at(full.lses, {next, t, h}) : -INFINITY);
            for (std::int64_t d = 0; d < kDim; ++d)
              set(s.outs, {i, t, h, d}, holds ? at(full.outs, {next, t, h, d}) : static_cast<double>(garbage));
          }
        if (holds) ++next;
      }
      ASSERT_TRUE(merge_many(s.outs, s.lses, s.out, s.lse).ok());
      EXPECT_TRUE(same_bytes(s.out, full.out));
      EXPECT_TRUE(same_bytes(s.lse, full.lse));
    }
}

TEST(MergeMany, IsAssociativeWithinRounding) {
  Stack s;
  fill(s, 4, DType::f32, /*gap=*/false, /*all_empty=*/true, 9);
  ASSERT_TRUE(merge_many(s.outs, s.lses, s.out, s.lse).ok());
  Stack halves;
  fill(halves, 2, DType::f32, /*gap=*/false, /*all_empty=*/false, 1);
  for (std::int64_t i = 0; i < 2; ++i)
    ASSERT_TRUE(merge(part_of(s.outs, 2 * i), part_of(s.lses, 2 * i), part_of(s.outs, 2 * i + 1), part_of(s.lses, 2 * i + 1),
                      part_of(halves.outs, i), part_of(halves.lses, i))
                    .ok());
  ASSERT_TRUE(merge_many(halves.outs, halves.lses, halves.out, halves.lse).ok());
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t h = 0; h < kHeads; ++h)
      for (std::int64_t d = 0; d < kDim; ++d)
        EXPECT_NEAR(at(s.out, {t, h, d}), at(halves.out, {t, h, d}), 3 * expected(s, t, h, d).tolerance);
}

TEST(MergeMany, EqualsOneSoftmaxOverAllKeys) {
  constexpr int kKeys = 301, kParts = 4;
  std::mt19937_64 random(13);
  std::normal_distribution<double> normal;
  std::vector<double> scores, values;
  for (int k = 0; k < kKeys; ++k) scores.push_back(4 * normal(random)), values.push_back(normal(random));
  Storage storage;
  const Tensor outs = make_tensor(storage, DType::f32, {kParts, 1, 1, 1}),
               lses = make_tensor(storage, DType::f32, {kParts, 1, 1});
  const Tensor out = make_tensor(storage, DType::f32, {1, 1, 1}), lse = make_tensor(storage, DType::f32, {1, 1});
  const auto softmax = [&](int first, int step) {  // softmax over keys first, first + step, ...; part 3 has none
    double sum = 0, weighted = 0, magnitude = 0;
    for (int k = first; k < kKeys; k += step) {
      sum += std::exp(scores[static_cast<std::size_t>(k)]);
      weighted += std::exp(scores[static_cast<std::size_t>(k)]) * values[static_cast<std::size_t>(k)];
      magnitude += std::exp(scores[static_cast<std::size_t>(k)]) * std::fabs(values[static_cast<std::size_t>(k)]);
    }
    return std::array{weighted / sum, std::log(sum), magnitude / sum};
  };
  for (std::int64_t i = 0; i < kParts; ++i) {
    const auto [value, log_sum, magnitude] = softmax(static_cast<int>(i), kParts - 1);
    set(outs, {i, 0, 0, 0}, i == kParts - 1 ? NAN : value);
    set(lses, {i, 0, 0}, i == kParts - 1 ? -INFINITY : log_sum);
  }
  ASSERT_TRUE(merge_many(outs, lses, out, lse).ok());
  const auto [value, log_sum, magnitude] = softmax(0, 1);
  EXPECT_NEAR(at(out, {0, 0, 0}), value, 32 * kUnit * (1 + 2 * std::fabs(log_sum)) * magnitude);
  EXPECT_NEAR(at(lse, {0, 0}), log_sum, 16 * kUnit * (1 + 2 * std::fabs(log_sum)));
}

TEST(MergeMany, TheLseIsOptionalAndZerosArePositive) {
  Stack s;
  fill(s, 3, DType::f32, /*gap=*/false, /*all_empty=*/false, 5);
  for (std::int64_t i = 0; i < 3; ++i) set(s.outs, {i, 0, 0, 0}, 0.0);
  ASSERT_TRUE(merge_many(s.outs, s.lses, s.out, Tensor{}).ok());
  EXPECT_EQ(at(s.out, {0, 0, 0}), 0.0);
  EXPECT_FALSE(std::signbit(at(s.out, {0, 0, 0})));
}

}  // namespace
}  // namespace quire::test
