// SPDX-License-Identifier: Apache-2.0
// Floors of problems that can be worked by hand, and the copies that keep K and V cold.
#include "bench/driver.h"

#include <gtest/gtest.h>

#include "bench/ceilings/measure.h"
#include "bench/memory.h"
#include "quire/plan.hpp"

namespace quire::bench_detail {
namespace {

Problem problem(const std::string& line) {
  const Result<ProblemLine> parsed = parse_problem_line(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? parsed->problem : Problem{};
}

TEST(FloorOf, ADecodeRowIsBoundByReading) {
  // 100 keys x 2 heads x 8 dims x 2 bytes x K and V = 6400 bytes; 4 x 8 x 4 x 100 = 12800 FLOPs.
  const Problem p = problem("q=bf16 kv=bf16 heads=4:2 d=8 page=16 reqs=1@99");
  EXPECT_EQ(kv_bytes_of(p), 6400);
  const Floor f = floor_of(p, /*read_gbs=*/1, /*compute_gflops=*/10);
  EXPECT_DOUBLE_EQ(f.memory_seconds, 6400e-9);
  EXPECT_EQ(f.compute_seconds, 0);
  EXPECT_DOUBLE_EQ(floor_of(p, 10, 1).compute_seconds, 12800e-9) << "on a machine that reads faster than it computes";
}

TEST(FloorOf, APrefillIsBoundByComputing) {
  // Rows see 3, 4, 5 keys: 12 pairs x 4 x 8 dims x 4 heads = 1536 FLOPs; 5 keys x 64 bytes = 320 bytes.
  const Floor f = floor_of(problem("q=bf16 kv=bf16 heads=4:2 d=8 page=16 reqs=3@2"), 1, 1);
  EXPECT_DOUBLE_EQ(f.seconds, 1536e-9);
  EXPECT_EQ(f.memory_seconds, 0);
}

TEST(FloorOf, AMixedBatchIsTheSumOfItsRequests) {
  const Floor f = floor_of(problem("q=bf16 kv=bf16 heads=4:2 d=8 page=16 reqs=3@2,1@99,0@7"), 1, 3);
  EXPECT_DOUBLE_EQ(f.memory_seconds, 6400e-9);
  EXPECT_DOUBLE_EQ(f.compute_seconds, 512e-9);
  EXPECT_DOUBLE_EQ(f.seconds, 6912e-9);
}

TEST(FloorOf, AWindowHidesBytesAndPairs) {
  const Problem p = problem("q=bf16 kv=bf16 heads=4:2 d=8 page=16 window=10 reqs=2@99");
  EXPECT_EQ(kv_bytes_of(p), 11 * 64) << "keys 90 .. 100";
  EXPECT_DOUBLE_EQ(floor_of(p, 0, 1).seconds, 20 * 4 * 8 * 4 * 1e-9);
}

TEST(FloorOf, NewRowsAreReadInTheTypeOfTheQuery) {
  const Problem p = problem("q=bf16 kv=fp8_e4m3fn heads=4:2 d=8 page=16 reqs=4@10/12");
  EXPECT_EQ(kv_bytes_of(p), 2 * 2 * 8 * (12 * 1 + 2 * 2));
}

// 100 keys each. A row is worked from the format: codes, scales of its blocks, scale of its token.
TEST(KvBytesOf, CountsEachByteOfARowOnce) {
  const auto bytes = [](const std::string& line) { return kv_bytes_of(problem("q=bf16 page=64 reqs=1@99 " + line)); };
  const std::string mla = "heads=128:1 d=576 dv=512 ";
  EXPECT_EQ(bytes(mla + "kv=fp8_ds_mla latent=1"), 100 * (512 * 1 + 4 * 4 + 64 * 2));
  EXPECT_EQ(bytes(mla + "kv=bf16 latent=1"), 100 * 576 * 2) << "V is dims of K";
  EXPECT_EQ(bytes(mla + "kv=bf16"), 100 * (576 * 2 + 512 * 2)) << "V is a tensor of its own";
  EXPECT_EQ(bytes("heads=4:2 d=64 kv=nvfp4"), 100 * 2 * 2 * (64 / 2 + 64 / 16));
  EXPECT_EQ(bytes("heads=4:2 d=64 kv=mxfp4"), 100 * 2 * 2 * (64 / 2 + 64 / 32));
  EXPECT_EQ(bytes("heads=4:2 d=64 dv=32 kv=mxfp4 latent=1"), 100 * 2 * (64 / 2 + 64 / 32)) << "and V's scales are K's";
  EXPECT_EQ(bytes("heads=4:2 d=8 kv=i8 kscale=token vscale=token"), 100 * 2 * 2 * (8 + 4));
  EXPECT_EQ(bytes("heads=4:2 d=32 kv=fp8_e4m3fn/nvfp4 kscale=token"), 100 * 2 * ((32 + 4) + (32 / 2 + 32 / 16)));
  EXPECT_EQ(bytes("heads=4:2 d=8 kv=i8 kscale=head vscale=tensor"), 100 * 2 * 2 * 8) << "read once for all tokens";
}

TEST(KvBytesOf, IsThePlansWhereTheCacheHoldsEverything) {
  for (const char* line : {"q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=512@1536,3x1@700",
                           "q=f16 kv=fp8_e5m2 heads=9:3 d=64 page=16 window=100 reqs=7@1000,1@30,0@5",
                           "q=bf16 kv=fp8_ds_mla heads=16:1 d=576 dv=512 latent=1 page=64 reqs=3@700,1@30",
                           "q=bf16 kv=i8/mxfp4 kscale=token vscale=head heads=4:2 d=64 page=16 reqs=1@700"}) {
    const Result<Plan> planned = plan(problem(line), host_device());
    ASSERT_TRUE(planned.ok());
    EXPECT_EQ(kv_bytes_of(problem(line)), planned->kv_bytes) << line;
    EXPECT_DOUBLE_EQ(floor_of(problem(line), 0, 1e-9).seconds, planned->flops) << line;
  }
}

TEST(ComputeCeiling, IsTheFastestExactInstruction) {
  const Ceilings zen4{.fma_gflops = 117, .bf16_dot_gflops = 234};
  const Ceilings emerald{.fma_gflops = 185, .bf16_dot_gflops = 93, .amx_gflops = 2500};
  const auto name = [](const Ceilings& c, const char* types) {
    return compute_ceiling(problem(std::string(types) + " heads=1 d=1 page=1 reqs=1"), c).name;
  };
  EXPECT_EQ(name(zen4, "q=bf16 kv=bf16"), "bf16 dot");
  EXPECT_EQ(name(zen4, "q=bf16 kv=fp8_e4m3fn"), "bf16 dot");
  EXPECT_EQ(name(zen4, "q=bf16 kv=f16"), "f32 FMA");
  EXPECT_EQ(name(zen4, "q=f32 kv=bf16"), "f32 FMA");
  EXPECT_EQ(name(emerald, "q=bf16 kv=bf16"), "bf16 AMX");
  EXPECT_EQ(name({.fma_gflops = 185, .bf16_dot_gflops = 93}, "q=bf16 kv=bf16"), "f32 FMA");
}

TEST(CopiesFor, OnlyCasesFromMemoryRotate) {
  constexpr std::int64_t kMiB = 1 << 20;
  EXPECT_EQ(copies_for(6 * kMiB, 32 * kMiB, 256 * kMiB), 1);
  EXPECT_EQ(copies_for(64 * kMiB, 32 * kMiB, 256 * kMiB), 4);
  EXPECT_EQ(copies_for(64 * kMiB, 300 * kMiB, 600 * kMiB), 10);
  EXPECT_EQ(copies_for(6 * kMiB, 8 * kMiB, 256 * kMiB), 43) << "more than half of a small cache";
  EXPECT_EQ(copies_for(1024 * kMiB, 32 * kMiB, 256 * kMiB), 2);
  EXPECT_EQ(copies_for(0, 0, 256 * kMiB), 1);
}

TEST(Rungs, AreNearTheCases) {
  constexpr std::int64_t kMiB = 1 << 20;
  const auto rungs = rungs_for({6 * kMiB, 5 * kMiB, 640 * kMiB, 100}, 256 * kMiB);
  EXPECT_EQ(rungs, (std::vector<std::int64_t>{64 << 10, 4 * kMiB, 8 * kMiB, 256 * kMiB}));
  Ceilings c;
  for (const std::int64_t bytes : rungs) c.reads.push_back({.bytes = bytes});
  EXPECT_EQ(rung_of(c, 6 * kMiB).bytes, 8 * kMiB);
  EXPECT_EQ(rung_of(c, 5 * kMiB).bytes, 4 * kMiB);
  EXPECT_EQ(rung_of(c, 640 * kMiB).bytes, 256 * kMiB);
  EXPECT_EQ(rung_of(c, 0).bytes, 64 << 10);
}

}  // namespace
}  // namespace quire::bench_detail
