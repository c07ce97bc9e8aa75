// SPDX-License-Identifier: Apache-2.0
// Two calls at the same time: which plans are set to it, and how SMs are divided.
#include <gtest/gtest.h>

#include "plan/beside.h"
#include "plan/work.h"
#include "quire/tools/capture.hpp"

namespace quire {
namespace {

using plan_detail::is_beside;
using plan_detail::set_beside;

Plan planned(const std::string& line, const PlanSettings& settings = {}) {
  return plan(parse_problem_line(line)->problem, find_device("h100").value(), settings).value();
}

const std::string kHeads = "q=bf16 heads=32:8 d=128 page=16 ";
const std::string kShared = kHeads + "causal=0 lse=1 reqs=256:8192", kOwn = kHeads + "lse=1 reqs=256x1@511";

std::int64_t units_of(Plan longer, const Plan& shorter) {
  const Plan before = longer;
  const bool set = set_beside(longer, shorter);
  EXPECT_EQ(set, is_beside(longer));
  const std::int64_t units = longer.work().lists[0].given_units;
  EXPECT_EQ(set, units > 0);
  plan_detail::Work work = longer.work();
  work.lists[0].given_units = 0;
  longer.set_work(work);
  EXPECT_EQ(longer, before) << "nothing else may change";
  return units;
}

TEST(Beside, EachCallGetsSmsByItsShareOfTheWork) {
  // 8 heads x 4 tiles of 256 score rows x 64 tiles of 128 keys, each the work of 10 tiles of decode, beside 8 x 256 x 8 of those.
  const double of_shared = 8 * 4 * 64 * 10 + 6400, of_own = 8 * 256 * 8;
  EXPECT_NEAR(static_cast<double>(units_of(planned(kShared), planned(kOwn))), of_shared / (of_shared + of_own) * 132, 2);
  const std::int64_t more = units_of(planned(kHeads + "causal=0 lse=1 reqs=256:32768"), planned(kOwn));
  EXPECT_GT(more, units_of(planned(kShared), planned(kOwn)));
  EXPECT_EQ(more % 2, 0) << "blocks of prefill are pairs";
  EXPECT_LE(more, 130);
}

TEST(Beside, OwnKeysGetNoMoreSmsThanKeepMemoryBusy) {
  EXPECT_EQ(units_of(planned(kShared), planned(kHeads + "lse=1 reqs=256x1@8191")), 132 - 64);
}

TEST(Beside, OnlyWhereBothAreLongAndLeaveSomethingToEachOther) {
  EXPECT_EQ(units_of(planned(kHeads + "causal=0 lse=1 reqs=256:512"), planned(kOwn)), 0) << "few products";
  EXPECT_EQ(units_of(planned(kShared), planned(kHeads + "lse=1 reqs=256x1@15")), 0) << "few own keys";
  EXPECT_EQ(units_of(planned(kShared), planned(kHeads + "lse=1 reqs=256x33@511")), 0) << "own rows are prefill's, too";
  EXPECT_EQ(units_of(planned(kOwn), planned(kOwn)), 0);
  EXPECT_EQ(units_of(planned(kShared, {.kernel = "cuda_generic"}), planned(kOwn, {.kernel = "cuda_generic"})), 0);
  EXPECT_EQ(units_of(planned(kShared, {.batch_invariant = true}), planned(kOwn, {.batch_invariant = true})), 0);
  const std::string codes = "kv=fp8_e4m3fn ";
  EXPECT_EQ(units_of(planned(codes + kShared), planned(codes + kOwn)), 0) << "decode of 8 bits converts all the time";
}

}  // namespace
}  // namespace quire
