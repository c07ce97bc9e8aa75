// SPDX-License-Identifier: Apache-2.0
// cuda_sm90_mla: what it takes and refuses, and its list. The kernel itself runs on a Hopper GPU alone (bench/gpu/attend_cuda,
// quire verify --backend cuda_sm90_mla): the stand-ins of tests/simt have no wgmma.
#include <gtest/gtest.h>

#include <string>

#include "plan/device_lists.h"
#include "quire/attention.hpp"
#include "quire/plan.hpp"
#include "quire/problem.hpp"

namespace quire {
namespace {

using plan_detail::DeviceList;

Plan planned(const std::string& line, const char* device = "sm90", const PlanSettings& settings = {}) {
  return plan(parse_problem_line(line).value().problem, find_device(device).value(), settings).value();
}

TEST(Mla, LatentRowsOnHopperHaveAKernel) {
  for (const char* line :
       {"q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=64x1@8191",
        "q=f16 heads=16:1 d=576 dv=512 latent=1 page=8 layout=hnd lse=1 sinks=1 reqs=1@9,0@5",
        "q=bf16 heads=64:1 d=576 dv=512 page=64 window=100 scale=0.07 reqs=4@700,200@9",
        "q=bf16 heads=20:1 d=576 dv=512 latent=1 page=48 pad=5:zero reqs=1@700",
        "q=bf16 heads=128:1 d=576 dv=512 latent=1 page=1 reqs=64x1@2047", "q=f16 heads=8:1 d=576 dv=512 page=20 reqs=1@9"})
    EXPECT_EQ(planned(line).kernel, "cuda_sm90_mla") << line;
  EXPECT_EQ(planned("q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=1@9", "sm100").kernel, "cuda_generic");
}

TEST(Mla, RefusesWithReasons) {
  const std::pair<const char*, const char*> refused[] = {
      {"q=f32 heads=8:1 d=576 dv=512 page=64 reqs=1@9", "q is f32, expected f16 or bf16"},
      {"q=bf16 kv=f16 heads=8:1 d=576 dv=512 page=64 reqs=1@9", "kv is f16, expected bf16 (as q)"},
      {"q=bf16 kv=fp8_e4m3fn heads=8:1 d=576 dv=512 page=64 reqs=1@9", "kv is fp8_e4m3fn, expected bf16 (as q)"},
      {"q=bf16 out=fp8_e4m3fn heads=8:1 d=576 dv=512 page=64 reqs=1@9", "out is fp8_e4m3fn, expected bf16 (as q)"},
      {"q=bf16 heads=8:1 d=192 dv=64 page=64 reqs=1@9", "d is 192 and dv 64, expected 576 and 512"},
      {"q=bf16 heads=8:1 d=576 page=64 reqs=1@9", "d is 576 and dv 576, expected 576 and 512"},
      {"q=bf16 heads=8:2 d=576 dv=512 page=64 reqs=1@9", "kv heads are 2, expected 1"},
      {"q=bf16 heads=8:1 d=576 dv=512 page=64 layout=packed reqs=1@9", "layout is packed, expected nhd or hnd"},
      {"q=bf16 heads=8:1 d=576 dv=512 page=64 cap=30 reqs=1@9", "cap is given, expected absent"},
      {"q=bf16 heads=8:1 d=576 dv=512 page=64 alibi=1 reqs=1@9", "alibi is 1, expected 0"},
      {"q=bf16 heads=8:1 d=576 dv=512 page=64 vscale=tensor reqs=1@9", "kscale or vscale is given, expected absent"},
      {"q=bf16 heads=8:1 d=576 dv=512 page=64 reqs=1@9/9", "some keys are not cached, expected all"},
      {"q=bf16 heads=8:1 d=576 dv=512 page=64 causal=0 reqs=1@9", "causal is 0, expected 1"}};
  for (const auto& [line, reason] : refused) {
    const Plan p = planned(line);
    EXPECT_NE(p.kernel, "cuda_sm90_mla") << line;
    bool found = false;
    for (const Refusal& r : p.refusals) found |= r.kernel == "cuda_sm90_mla" && r.reason == reason;
    EXPECT_TRUE(found) << line << ": " << reason;
  }
}

// One list of all rows, whose weights are rounded unless the plan says that they may not be.
TEST(Mla, RoundsWeightsUnlessToldNotTo) {
  const std::string line = "q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=3x1@8191,300@9";
  const Plan p = planned(line);
  ASSERT_EQ(p.work().lists.size(), 1u);
  const DeviceList& list = p.work().lists[0];
  EXPECT_EQ(list.kernel, "cuda_sm90_mla");
  EXPECT_EQ(list.tile_rows, 64);
  EXPECT_EQ(list.num_blocks, p.num_threads) << "a block fills an SM";
  EXPECT_TRUE(rounds_weights(p, 1));
  EXPECT_TRUE(rounds_weights(p, 300));
  EXPECT_GE(list.max_slices, 303 * 128 / 16) << "cuda_generic's tiles of 16 rows may stand in";
  for (const PlanSettings& settings : {PlanSettings{.exact_weights = true}, PlanSettings{.batch_invariant = true}}) {
    const Plan exact = planned(line, "sm90", settings);
    EXPECT_EQ(exact.kernel, "cuda_sm90_mla");
    EXPECT_FALSE(rounds_weights(exact, 1));
    for (const DeviceList& other : exact.work().lists) EXPECT_EQ(other.kernel, "cuda_generic");
  }
}

}  // namespace
}  // namespace quire
