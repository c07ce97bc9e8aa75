// SPDX-License-Identifier: Apache-2.0
// roofline_of(): bytes over bandwidth, operations over rate, and no floor without measured ceilings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "quire/plan.hpp"
#include "quire/roofline.hpp"

namespace quire {
namespace {

using ::testing::HasSubstr;

const std::string kShape = "q=bf16 heads=32:8 d=128 page=16 reqs=";

Plan plan_of(const std::string& line, const char* device) {
  return plan(parse_problem_line(line).value().problem, find_device(device).value()).value();
}

TEST(Roofline, DecodeIsBoundByMemory) {
  const Roofline floor = roofline_of(plan_of(kShape + "64x1@8191", "h200"));
  EXPECT_EQ(floor.device, "H200");
  EXPECT_EQ(floor.bytes, 2LL * 64 * 8192 * 8 * 128 * 2);
  EXPECT_DOUBLE_EQ(floor.flops, 4.0 * 64 * 8192 * 32 * 128);
  EXPECT_EQ(floor.binds(), "memory");
  EXPECT_DOUBLE_EQ(floor.seconds(), static_cast<double>(floor.bytes) / 4.62e12);
  EXPECT_LT(floor.compute_seconds(), floor.seconds());
  const Roofline h100 = roofline_of(plan_of(kShape + "64x1@8191", "h100"));
  EXPECT_EQ(h100.device, "H100");
  EXPECT_GT(h100.seconds(), 1.4 * floor.seconds()) << "an H100 reads slower";
}

TEST(Roofline, APromptIsBoundByCompute) {
  const Roofline floor = roofline_of(plan_of(kShape + "16384", "h200"));
  EXPECT_EQ(floor.binds(), "compute");
  EXPECT_DOUBLE_EQ(floor.seconds(), 4.0 * 32 * 128 * (16384.0 * 16385 / 2) / 797e12);
  EXPECT_LT(floor.read_seconds(), floor.seconds());
}

// Decode rows and a prompt in one call overlap: the floor is no sum of the two.
TEST(Roofline, IsTheLongerOfTotals) {
  const Roofline both = roofline_of(plan_of(kShape + "64x1@8191,2048@6144", "h200"));
  EXPECT_DOUBLE_EQ(both.seconds(), std::max(both.read_seconds(), both.compute_seconds()));
}

TEST(Roofline, TheArchitectureStandsForTheFasterProduct) {
  EXPECT_EQ(roofline_of(plan_of(kShape + "1x1@99", "sm90")).device, "H200");
}

TEST(Roofline, SaysWhyThereIsNone) {
  for (const auto& [device, reason] : {std::pair{"sm80", "the ceilings of sm80 were not measured"},
                                       {"gfx942", "the ceilings of gfx942 were not measured"},
                                       {"avx512", "the ceilings of avx512 were not measured"},
                                       {"h20", "the ceilings of NVIDIA H20 were not measured"},
                                       {"gh200", "the ceilings of NVIDIA GH200 were not measured"}}) {
    const Roofline floor = roofline_of(plan_of(kShape + "4x1@900", device));
    EXPECT_EQ(floor.why_not, reason);
    EXPECT_FALSE(floor.known());
    EXPECT_EQ(floor.seconds(), 0);
  }
  Plan unread = plan_of(kShape + "4x1@900", "h100");
  unread.assumptions = {"query_len <= 4 (num_tokens)"};
  EXPECT_THAT(roofline_of(unread).why_not, HasSubstr("lengths"));
  EXPECT_EQ(roofline_of(unread).seconds(), 0);
}

}  // namespace
}  // namespace quire
