// SPDX-License-Identifier: Apache-2.0
// A list that stands in for a list of the plan, because a call's tensors do not suit the planned kernel, takes the same requests
// within the same memory. Asked with what launches are given, for every list and stand-in of Hopper's plans; needs no device.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "backend/gpu/resolve.h"
#include "backend/gpu/tiles.h"
#include "kernels/judge.h"
#include "plan/device_workspace.h"
#include "schedule/shares.h"
#include "text/formatted.h"

namespace quire::test {
namespace {

using plan_detail::DeviceList;
using plan_detail::Role;

/// The list and its stand-ins, in the order in which a launch tries them.
std::vector<DeviceList> chain_of(const Plan& plan, const DeviceList& list) {
  std::vector<DeviceList> chain = {list};
  while (const auto instead = chain.back().kernel.row().gpu->instead) {
    chain.push_back(instead(plan, chain.back()));
    if (chain.size() > 8) break;  // the tests below fail
  }
  return chain;
}

/// Tiles that the device makes of a request of a call whose arguments have been the planned list's. Tiles of several KV heads
/// have the rows of all of them (launch_decode_head_pairs()).
std::int64_t tiles_of(gpu::GenericArgs args, const DeviceList& list, std::int32_t query_len) {
  gpu::set_list(args.work, list, args.num_kv_heads);
  args.num_kv_heads /= static_cast<std::int32_t>(list.heads);
  args.group *= static_cast<std::int32_t>(list.heads);
  if (!plan_detail::body_of(list).deals_itself()) return gpu::tiling_of(args).tiles(query_len);
  if (list.role != Role::decode_wide && list.split_keys == 0)
    return schedule::Iterations<gpu::AttendArgs, false>(args, static_cast<std::int32_t>(list.num_blocks)).slices(query_len);
  return schedule::Iterations<gpu::AttendArgs, true>(args, static_cast<std::int32_t>(list.num_blocks)).slices(query_len);
}

struct Ask {
  std::string line;
  PlanSettings settings;
};

/// Problems that Hopper's kernels serve: every group to 16, heads, head_dims, types and lengths of both lists.
std::vector<Ask> asks() {
  const PlanSettings settings[] = {{}, {.exact_weights = true}, {.batch_invariant = true}};
  const char* const requests[] = {"1x1@33", "4x1@700", "100x1@40", "2x1@20000", "3x2@50", "2x1@90,1x70@5"};
  std::vector<Ask> all;
  for (const int dim : {64, 128, 256})
    for (const int heads : {1, 2, 4, 8})
      for (int group = 1; group <= 16; ++group)
        for (const char* types : {"q=f16 kv=f16", "q=bf16 kv=fp8_e4m3fn"})
          for (std::size_t r = 0; r < std::size(requests); ++r)
            all.push_back({formatted("{} heads={}:{} d={} page=16 reqs={}", types, heads * group, heads, dim, requests[r]),
                           settings[(r + static_cast<std::size_t>(group)) % 3]});
  for (const char* layout : {"packed", "hnd"}) {
    const std::string more = formatted(" layout={} page=16 reqs=4x1@700,1x40@7", layout);
    for (const PlanSettings& s : settings) {
      all.push_back({"q=bf16 kv=bf16 heads=64:8 d=64" + more, s});
      all.push_back({"q=bf16 kv=bf16 heads=40:2 d=128 window=100" + more, s});
    }
  }
  for (const PlanSettings& s : settings) {
    all.push_back({"q=bf16 kv=bf16 heads=16:1 d=576 dv=512 page=64 reqs=4x1@700,1x40@7", s});
    all.push_back({"q=bf16 kv=bf16 heads=8:2 d=128 page=16 chunk=64 reqs=4x1@700,1x40@7", s});
  }
  return all;
}

std::string text_of(const Ask& ask, const DeviceList& list) {
  return formatted("{} invariant={} exact={}: {} in tiles of {} rows of {} heads", ask.line, ask.settings.batch_invariant ? 1 : 0,
                   ask.settings.exact_weights ? 1 : 0, plan_detail::body_of(list).name, list.tile_rows, list.heads);
}

/// For every list of every plan, and everything that may stand in for it.
template <typename Check>
void for_each_stand_in(Check&& check) {
  std::size_t asked = 0;
  for (const Ask& ask : asks()) {
    const Problem problem = parse_problem_line(ask.line).value().problem;
    const Result<Plan> planned = plan(problem, find_device("sm90").value(), ask.settings);
    ASSERT_TRUE(planned.ok()) << ask.line << planned.status().message();
    for (const DeviceList& list : planned.value().work().lists)
      for (const DeviceList& other : chain_of(planned.value(), list)) check(ask, planned.value(), list, other), ++asked;
  }
  EXPECT_GT(asked, 5000u);
}

TEST(StandIns, TakeTheRequestsOfTheirList) {
  for_each_stand_in([](const Ask& ask, const Plan& plan, const DeviceList& list, const DeviceList& other) {
    gpu::GenericArgs args;
    args.num_reqs = static_cast<std::int32_t>(plan.bounds.num_reqs);
    args.num_kv_heads = static_cast<std::int32_t>(plan.problem.num_kv_heads);
    args.group = static_cast<std::int32_t>(plan.problem.group());
    for (std::int32_t query_len = 0; query_len <= plan.bounds.max_query_len; ++query_len) {
      const std::int64_t rows = std::int64_t{query_len} * args.group;
      const bool takes = rows > list.min_rows && (list.heads * rows <= list.max_rows);
      gpu::set_list(args.work, list, args.num_kv_heads);
      const std::int64_t tiles = tiles_of(args, other, query_len);
      EXPECT_EQ(tiles > 0, takes) << text_of(ask, other) << " query_len " << query_len;
      if (other.role == Role::decode || other.role == Role::decode_cluster) {
        EXPECT_LE(tiles * other.heads * rows, other.tile_rows) << text_of(ask, other) << ": one tile has all rows";
      }
    }
  });
}

TEST(StandIns, HaveRoomInTheMemoryOfTheirList) {
  for_each_stand_in([](const Ask& ask, const Plan& plan, const DeviceList& list, const DeviceList& other) {
    EXPECT_LE(other.max_slices, list.max_slices) << text_of(ask, other);
    EXPECT_LE(other.max_merges, list.max_merges) << text_of(ask, other);
    EXPECT_LE(other.max_partials * other.tile_rows, list.max_partials * list.tile_rows) << text_of(ask, other);
    if (!plan_detail::body_of(other).deals_itself() || other.split_keys > 0 || other.role == Role::decode_cluster) return;
    const std::int64_t mergers = other.role == Role::decode_wide ? 2 : 1;
    EXPECT_GE(other.max_partials, schedule::kPartialsOfBlock * other.num_blocks) << text_of(ask, other);
    EXPECT_GE(other.max_merges * plan.problem.num_kv_heads, mergers * other.num_blocks) << text_of(ask, other);
  });
}

}  // namespace
}  // namespace quire::test
