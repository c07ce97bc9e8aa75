// SPDX-License-Identifier: Apache-2.0
// Choice of a kernel for pretended devices; forcing; and every refusal with its reason.
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "plan/select.h"
#include "quire/executor.hpp"
#include "quire/plan.hpp"
#include "quire/problem.hpp"

namespace quire {
namespace {

using testing::HasSubstr;

Problem parse(const char* line) { return parse_problem_line(line).value().problem; }

const Problem kDecode = parse("q=bf16 heads=32:8 d=128 page=16 reqs=4x1@2047");

TEST(Select, PinnedForPretendDevices) {
  const std::pair<const char*, const char*> expected[] = {
      {"scalar", "cpu_generic"}, {"avx2", "cpu_avx2"},     {"avx512", "cpu_avx512"}, {"avx512bf16", "cpu_avx512bf16"},
      {"amx", "cpu_amx"},        {"neon", "cpu_neon"},     {"sm80", "cuda_mma"},     {"sm90", "cuda_sm90"},
      {"sm86", "cuda_mma"},      {"sm89", "cuda_mma"},     {"sm120", "cuda_mma"},    {"sm100", "cuda_mma"},
      {"gfx90a", "hip_matrix"},  {"gfx942", "hip_matrix"}, {"gfx950", "hip_matrix"}, {"gfx1100", "hip_matrix"},
      {"gfx1201", "hip_matrix"}};
  for (const auto& [device, kernel] : expected)
    EXPECT_EQ(plan(kDecode, find_device(device).value()).value().kernel, kernel) << device;
}

TEST(Select, TensorCoreKernelRefusesWithReasons) {
  const std::pair<const char*, const char*> refused[] = {
      {"q=f32 kv=f32 heads=8:2 d=128 page=16 reqs=1@9", "q is f32, expected f16 or bf16"},
      {"q=f16 kv=bf16 heads=8:2 d=128 page=16 reqs=1@9", "kv is bf16, expected f16 (as q), fp8_e4m3fn or fp8_e5m2"},
      {"q=bf16 kv=fp8_e4m3fnuz heads=8:2 d=128 page=16 reqs=1@9", "kv is fp8_e4m3fnuz, expected bf16 (as q)"},
      {"q=bf16 kv=bf16 heads=8:2 d=80 page=16 reqs=1@9", "d is 80, expected 64, 128 or 256"},
      {"q=fp8_e4m3fn kv=fp8_e4m3fn heads=8:2 d=128 page=20 reqs=1@9", "q is fp8_e4m3fn, expected f16 or bf16"},
      {"q=bf16 kv=fp8_e5m2 heads=8:2 d=256 page=8 layout=packed reqs=1@9", "d is 256, expected 64 or 128"}};
  for (const auto& [line, reason] : refused) {
    const Plan p = plan(parse(line), find_device("sm90").value()).value();
    EXPECT_EQ(p.kernel, "cuda_generic") << line;
    ASSERT_FALSE(p.refusals.empty()) << line;
    EXPECT_THAT(p.refusals.back().reason, HasSubstr(reason));
  }
}

TEST(Select, HopperKernelRefusesWithReasons) {
  const std::pair<const char*, const char*> refused[] = {
      {"q=f32 kv=f32 heads=8:2 d=128 page=16 reqs=1@9", "q is f32, expected f16, bf16 or fp8_e4m3fn"},
      {"q=fp8_e4m3fn kv=fp8_e4m3fn out=f32 heads=8:2 d=128 page=16 reqs=1@9", "out is f32, expected f16, bf16 or fp8_e4m3fn"},
      {"q=bf16 kv=fp8_e4m3fnuz heads=8:2 d=128 page=16 reqs=1@9",
       "kv is fp8_e4m3fnuz, expected bf16 (as q), fp8_e4m3fn or fp8_e5m2"},
      {"q=bf16 kv=bf16 heads=8:2 d=192 page=16 reqs=1@9",
       "d is 192 and dv 192, expected 64, 128, 256 or 512 for both, or 192 and 128"},
      {"q=bf16 heads=8:2 d=192 dv=64 page=16 reqs=1@9", "d is 192 and dv 64, expected 64, 128, 256 or 512 for both"},
      {"q=bf16 heads=8:2 d=128 dv=64 page=16 reqs=1@9", "dv is 64, expected 128 (as d)"},
      {"q=bf16 kv=fp8_e4m3fn heads=8:2 d=512 page=16 reqs=1@9", "kv is fp8_e4m3fn, expected f16 or bf16 at d=512"},
      {"q=bf16 heads=8:2 d=512 page=16 layout=packed reqs=1@9", "layout is packed, expected nhd or hnd at d=512"},
      {"q=bf16 heads=8:2 d=192 dv=128 page=24 reqs=1@9", "page is 24, expected a multiple of 16"},
      {"q=bf16 kv=fp8_e5m2 heads=258:2 d=128 page=16 reqs=1@9", "group is 129, expected at most 128"},
      {"q=bf16 kv=fp8_e5m2 heads=258:2 d=256 page=16 reqs=1@9", "group is 129, expected at most 128"},
      {"q=bf16 kv=bf16 heads=258:2 d=128 page=16 reqs=1@9", "group is 129, expected at most 128"},
      {"q=bf16 kv=bf16 heads=8:2 d=128 page=24 layout=packed reqs=1@9", "page is 24, expected a multiple of 16"},
      {"q=bf16 kv=bf16 heads=8:2 d=128 page=20 reqs=1@9", "page is 20, expected a multiple of 8"}};
  for (const auto& [line, reason] : refused) {
    const Plan p = plan(parse(line), find_device("sm90").value()).value();
    EXPECT_NE(p.kernel, "cuda_sm90") << line;
    bool found = false;
    for (const Refusal& r : p.refusals) found |= r.kernel == "cuda_sm90" && r.reason.find(reason) != std::string::npos;
    EXPECT_TRUE(found) << line;
  }
  const char* const taken[] = {"q=f16 kv=fp8_e5m2 heads=8:2 d=64 page=64 layout=hnd reqs=1@9 vscale=tensor",
                               "q=bf16 kv=fp8_e4m3fn heads=8:1 d=128 page=8 reqs=1@9/9 kscale=head vscale=head",
                               "q=bf16 kv=bf16 heads=64:2 d=128 page=48 reqs=1@9",
                               "q=bf16 kv=bf16 heads=8:2 d=128 page=16 layout=packed reqs=1@9",
                               "q=f16 kv=fp8_e5m2 heads=8:2 d=256 page=32 layout=packed reqs=1@9",
                               "q=f16 kv=fp8_e4m3fn heads=16:1 d=256 page=24 reqs=2@9",
                               "q=fp8_e4m3fn kv=fp8_e4m3fn heads=32:8 d=128 page=16 qscale=head reqs=1@9",
                               "q=fp8_e4m3fn kv=fp8_e4m3fn out=bf16 heads=8:8 d=256 page=16 layout=packed reqs=200@9",
                               "q=bf16 kv=bf16 out=fp8_e4m3fn heads=8:2 d=64 page=16 reqs=1@9,70@9",
                               "q=bf16 kv=fp8_e5m2 heads=66:2 d=256 page=16 reqs=1@9",
                               "q=bf16 kv=fp8_e4m3fn heads=256:2 d=256 page=16 reqs=3@9",
                               "q=bf16 kv=bf16 heads=8:2 d=128 page=16 kscale=head vscale=tensor reqs=1@9",
                               "q=bf16 kv=bf16 heads=256:2 d=128 page=16 reqs=1@9",
                               "q=f16 heads=128:128 d=192 dv=128 page=16 reqs=1@9,700",
                               "q=bf16 heads=16:2 d=512 page=48 layout=hnd reqs=1@9,700",
                               "q=bf16 out=fp8_e4m3fn heads=256:2 d=512 page=16 causal=1,0 reqs=1@9,700"};
  for (const char* line : taken) EXPECT_EQ(plan(parse(line), find_device("sm90").value())->kernel, "cuda_sm90") << line;
  const Plan on_sm100 = plan(kDecode, find_device("sm100").value()).value();
  EXPECT_EQ(on_sm100.kernel, "cuda_mma");
}

TEST(Select, TensorCoreKernelWritesEightBitOutputs) {
  for (const char* line : {"q=bf16 kv=bf16 out=fp8_e4m3fn heads=8:2 d=256 page=5 reqs=1@9,70@9",
                           "q=f16 kv=fp8_e5m2 out=fp8_e4m3fn heads=8:2 d=128 page=5 reqs=1@9"})
    EXPECT_EQ(plan(parse(line), find_device("sm80").value())->kernel, "cuda_mma") << line;
}

// Where tensors rule out tensor copies, 8-bit queries go to cuda_generic, whose tiles are lower than cuda_mma's.
TEST(DeviceLists, MakeRoomForWhatServesEightBitQueriesInstead) {
  const Device device = find_device("sm90").value();
  const char* const rest = " heads=32:8 d=128 page=16 reqs=512@900";
  const Plan of_16_bits = plan(parse((std::string("q=f16 kv=fp8_e4m3fn") + rest).c_str()), device).value();
  const Plan of_8_bits = plan(parse((std::string("q=fp8_e4m3fn kv=fp8_e4m3fn") + rest).c_str()), device).value();
  const std::int64_t score_rows = 512 * 4;
  EXPECT_EQ(of_8_bits.work().lists.back().tile_rows, of_16_bits.work().lists.back().tile_rows);
  EXPECT_GE(of_8_bits.work().lists.back().max_slices - of_16_bits.work().lists.back().max_slices,
            score_rows / 16 - score_rows / 64);
}

TEST(DeviceLists, BatchInvariantPlansHaveOneListForAllRows) {
  PlanSettings settings;
  const Device device = find_device("sm90").value();
  EXPECT_EQ(plan(parse("q=bf16 heads=32:8 d=128 page=16 reqs=4x1@2047,9@9"), device, settings).value().work().lists.size(), 2u);
  EXPECT_EQ(plan(kDecode, device, settings).value().work().lists.size(), 1u);
  settings.batch_invariant = true;
  const Plan p = plan(kDecode, device, settings).value();
  ASSERT_EQ(p.work().lists.size(), 1u);
  EXPECT_EQ(p.work().lists[0].min_rows, 0);
  EXPECT_GT(p.work().lists[0].split_keys, 0);
}

TEST(Select, MatrixUnitKernelRefusesWithReasons) {
  const std::tuple<const char*, const char*, const char*> refused[] = {
      {"gfx942", "q=f32 kv=f32 heads=8:2 d=128 page=16 reqs=1@9", "q is f32, expected f16 or bf16"},
      {"gfx942", "q=f16 kv=bf16 heads=8:2 d=128 page=16 reqs=1@9", "kv is bf16, expected f16 (as q) or fp8"},
      {"gfx1100", "q=bf16 kv=bf16 heads=8:2 d=80 page=16 reqs=1@9", "d is 80, expected 64, 128 or 256"},
      {"gfx90a", "q=f16 kv=f16 heads=8:2 d=128 page=16 reqs=1@9", "gfx90a takes f16 subnormals for zero in matrix products"}};
  for (const auto& [device, line, reason] : refused) {
    const Plan p = plan(parse(line), find_device(device).value()).value();
    EXPECT_EQ(p.kernel, "hip_generic") << line;
    ASSERT_FALSE(p.refusals.empty()) << line;
    EXPECT_THAT(p.refusals.back().reason, HasSubstr(reason));
  }
  Device other = find_device("gfx942").value();
  other.name = "gfx906";
  EXPECT_THAT(plan(kDecode, other).value().refusals.back().reason, HasSubstr("has no instance for device gfx906"));
}

TEST(Select, MatrixUnitsHaveAListForDecodeRows) {
  const Device device = find_device("gfx942").value();
  const Plan both = plan(parse("q=bf16 heads=32:8 d=128 page=16 reqs=4x1@2047,9@9"), device).value();
  ASSERT_EQ(both.work().lists.size(), 2u);
  EXPECT_EQ(both.work().lists[0].tile_rows, 16);
  EXPECT_EQ(both.work().lists[1].min_rows, 16);
  EXPECT_EQ(both.work().lists[1].tile_rows, 64);
}

TEST(Select, ForcingAKernelWorksForEveryRow) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.backend != Backend::cpu) continue;
    const Device device = find_device((kernel.cpu_features & kNeon) != 0 ? "neon" : "amx").value();
    EXPECT_EQ(plan(kDecode, device, {.kernel = std::string(kernel.name)}).value().kernel, kernel.name);
  }
}

TEST(Select, ForcingWhatTheDeviceLacksNamesTheCondition) {
  const Result<Plan> result = plan(kDecode, find_device("scalar").value(), {.kernel = "cpu_avx512"});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("cpu_avx512: needs AVX-512 F/BW/VL/DQ, which device scalar lacks"));
}

TEST(Select, ForcingAnUnknownKernelSaysSo) {
  const Result<Plan> result = plan(kDecode, find_device("avx2").value(), {.kernel = "cpu_avx1024"});
  EXPECT_THAT(result.status().message(), HasSubstr("there is no kernel of that name"));
}

TEST(Select, PassedOverRowsAreInThePlan) {
  const Plan p = plan(kDecode, find_device("scalar").value()).value();
  std::vector<std::string> passed_over, preferred;
  for (const Refusal& refusal : p.refusals)
    if (passed_over.empty() || passed_over.back() != refusal.kernel) passed_over.push_back(refusal.kernel);
  for (const Kernel& kernel : kernels())
    if (kernel.backend == Backend::cpu && kernel.name != "cpu_generic") preferred.emplace_back(kernel.name);
  EXPECT_EQ(passed_over, preferred);
  EXPECT_GT(p.refusals.size(), preferred.size()) << "a row that lacks two things has two refusals";
}

TEST(Select, Bf16ScoresTakeWhatBf16PairsHoldExactly) {
  const Device device = find_device("avx512bf16").value();
  const std::pair<const char*, const char*> expected[] = {{"q=bf16 kv=bf16", "cpu_avx512bf16"},
                                                          {"q=bf16 kv=fp8_e4m3fn", "cpu_avx512bf16"},
                                                          {"q=bf16 kv=fp8_e5m2fnuz", "cpu_avx512bf16"},
                                                          {"q=f32 kv=bf16", "cpu_avx512"},
                                                          {"q=bf16 kv=f16", "cpu_avx512"}};
  for (const auto& [types, kernel] : expected)
    EXPECT_EQ(plan(parse((std::string(types) + " heads=4:2 d=32 page=16 reqs=3@9").c_str()), device).value().kernel, kernel)
        << types;
  const Result<Plan> forced = plan(parse("q=f32 kv=f32 heads=4:2 d=32 page=16 reqs=3@9"), device, {.kernel = "cpu_avx512bf16"});
  EXPECT_THAT(forced.status().message(), HasSubstr("cpu_avx512bf16: q is f32, expected bf16"));
  EXPECT_THAT(forced.status().message(), HasSubstr("cpu_avx512bf16: kv is f32, expected bf16 or fp8"));
}

TEST(Select, Bf16PairsAtHalfRateAreAskedForByName) {
  Device slow = find_device("avx512bf16").value();
  slow.cpu_features &= ~static_cast<std::uint32_t>(kFastBf16Dot);
  const Plan chosen = plan(kDecode, slow).value();
  EXPECT_EQ(chosen.kernel, "cpu_avx512");
  ASSERT_FALSE(chosen.refusals.empty());
  EXPECT_EQ(chosen.refusals.back().kernel, "cpu_avx512bf16");
  EXPECT_THAT(chosen.refusals.back().reason, HasSubstr("half rate"));
  EXPECT_EQ(plan(kDecode, slow, {.kernel = "cpu_avx512bf16"}).value().kernel, "cpu_avx512bf16");
  EXPECT_EQ(plan(kDecode, find_device("avx512bf16").value()).value().kernel, "cpu_avx512bf16");
}

/// One plan line per (device, problem): tests/plan/goldens/plans.txt; QUIRE_UPDATE_GOLDENS=1 rewrites it.
TEST(Select, PlanLinesMatchTheGoldens) {
  const char* const problems[] = {
      "q=bf16 heads=32:8 d=128 page=16 reqs=4x1@2047",
      "q=bf16 heads=9:3 d=128 page=16 reqs=1x1@131071",
      "q=f16 kv=fp8_e4m3fn heads=64:1 d=24 page=32 reqs=1x512@2048 window=16",
      "q=f32 heads=9:3 d=64 page=8 layout=hnd reqs=433,79x1@1226 cap=30 alibi=1 sinks=1",
      "q=bf16 heads=8:8 d=256 page=544 layout=packed reqs=0@5,17@100",
  };
  std::ostringstream lines;
  for (const char* device : {"scalar", "avx2", "avx512", "avx512bf16", "neon"})
    for (const char* problem : problems) {
      Device d = find_device(device).value();
      d.num_threads = 8;
      lines << problem << "\n  " << to_string(plan(parse(problem), d).value()) << "\n";
    }
  const std::string path = std::string(QUIRE_SOURCE_DIR) + "/tests/plan/goldens/plans.txt";
  if (std::getenv("QUIRE_UPDATE_GOLDENS") != nullptr) std::ofstream(path) << lines.str();
  std::ostringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(lines.str(), golden.str()) << "QUIRE_UPDATE_GOLDENS=1 rewrites " << path;
}

TEST(Select, NumbersOfThreadsAreBounded) {
  const Problem problem = parse("q=bf16 heads=8:2 d=64 page=16 reqs=4x70@2000");
  Device many = host_device();
  many.num_threads = INT32_MAX;
  for (const int num_threads : {-1, kMaxThreads + 1, INT32_MAX}) {
    const Result<Plan> planned = plan(problem, host_device(), {.num_threads = num_threads});
    ASSERT_FALSE(planned.ok());
    EXPECT_EQ(planned.status().message(), "plan: num_threads " + std::to_string(num_threads) + " outside [0, 4096]");
  }
  EXPECT_FALSE(plan(problem, many).ok());
  EXPECT_EQ(plan(problem, many, {.num_threads = 2}).status().message(), "plan: device.num_threads 2147483647 outside [1, 4096]");
  EXPECT_TRUE(plan(problem, host_device(), {.num_threads = kMaxThreads}).ok());
}

/// Masks go to rows that say they take every valid problem; a key_begin alone changes nothing for anybody.
TEST(Select, TunedGpuKernelsRefuseMasksWithReasons) {
  const std::pair<const char*, const char*> masks[] = {{"causal=0 window=20", "causal is 0, expected 1"},
                                                       {"causal=0 alibi=1", "causal is 0, expected 1"},
                                                       {"causal=0 wright=3", "causal is 0, expected 1"},
                                                       {"causal=1x1,1x0", "causal is given by request, expected absent"},
                                                       {"qbegin=1x40,1x70", "q_begin is given, expected absent"}};
  const std::pair<const char*, const char*> rows[] = {{"sm90", "cuda_sm90"}, {"sm80", "cuda_mma"}, {"gfx942", "hip_matrix"}};
  for (const auto& [mask, reason] : masks)
    for (const auto& [device, kernel] : rows) {
      const char* const types = kernel == std::string_view("cuda_sm90") ? "q=bf16 kv=fp8_e4m3fn" : "q=bf16";
      const Problem p = parse((std::string(types) + " heads=8:2 d=128 page=16 reqs=1@40,9@20 " + mask).c_str());
      const Result<Plan> refused = plan(p, find_device(device).value(), {.kernel = kernel});
      ASSERT_FALSE(refused.ok()) << kernel << " " << mask;
      EXPECT_THAT(refused.status().message(), HasSubstr(reason)) << kernel;
      const Result<Plan> served = plan(p, find_device(device).value());
      ASSERT_TRUE(served.ok()) << served.status().message();
      EXPECT_THAT(served->kernel, testing::EndsWith("generic")) << mask;
    }
  const Problem shard = parse("q=bf16 heads=8:2 d=128 page=16 kbegin=64 reqs=1@40,9@20");
  for (const auto& [device, kernel] : rows) EXPECT_EQ(plan(shard, find_device(device).value())->kernel, kernel);
}

/// cuda_sm90 takes masks of every kind over 16-bit caches of rows. Prefill serves all rows; plans that may not round weights have
/// cuda_generic's tiles.
TEST(Select, Sm90TakesMasksOverSixteenBitRows) {
  const Device sm90 = find_device("sm90").value();
  for (const char* mask : {"causal=0 window=20", "causal=0 alibi=1", "causal=0 wright=3", "causal=1x1,1x0", "qbegin=1x40,1x70",
                           "chunk=8", "spans=0:3-9", "window=8 prefix=2", "tree=1x0,1x9"}) {
    const std::string rest = std::string(" page=16 reqs=1@40,9@20 ") + mask;
    for (const char* kinds : {"q=bf16 heads=8:2 d=128", "q=f16 heads=8:2 d=192 dv=128", "q=bf16 heads=8:2 d=512"}) {
      const Problem p = parse((kinds + rest).c_str());
      const Plan made = plan(p, sm90).value();
      EXPECT_EQ(made.kernel, "cuda_sm90") << mask;
      ASSERT_EQ(made.work().lists.size(), 1U) << mask;
      EXPECT_EQ(made.work().lists[0].role, plan_detail::Role::prefill) << mask;
      const Plan exact = plan(p, sm90, {.exact_weights = true}).value();
      EXPECT_EQ(exact.work().lists[0].kernel, "cuda_generic") << mask;
      const Plan generic = plan(p, sm90, {.kernel = "cuda_generic"}).value();
      EXPECT_EQ(exact.work().lists[0].num_blocks, generic.work().lists[0].num_blocks) << mask;
      EXPECT_EQ(exact.work().lists[0].target_items, generic.work().lists[0].target_items) << mask;
      const plan_detail::DeviceList instead = made.kernel.row().gpu->instead(made, made.work().lists[0]);
      EXPECT_EQ(instead.kernel, "cuda_generic") << mask;
      EXPECT_EQ(instead.num_blocks, generic.work().lists[0].num_blocks) << mask;
    }
    for (const char* kinds : {"q=bf16 kv=fp8_e4m3fn heads=8:2 d=128", "q=bf16 heads=8:2 d=128 layout=packed"})
      EXPECT_EQ(plan(parse((kinds + rest).c_str()), sm90)->kernel, "cuda_generic") << mask;
  }
}

/// Where every row sees every key, prefill of cuda_sm90 serves all rows; plans that may not round weights have cuda_generic's
/// tiles.
TEST(Select, Sm90TakesRequestsWhoseRowsSeeAllKeys) {
  const Device sm90 = find_device("sm90").value();
  const Problem p = parse("q=bf16 heads=32:8 d=128 page=16 reqs=256:8192,3:64,7:0 causal=0 lse=1");
  const Plan made = plan(p, sm90).value();
  EXPECT_EQ(made.kernel, "cuda_sm90");
  ASSERT_EQ(made.work().lists.size(), 1U);
  EXPECT_EQ(made.work().lists[0].role, plan_detail::Role::prefill);
  EXPECT_EQ(made.work().lists[0].min_rows, 0);
  for (const PlanSettings& settings : {PlanSettings{.batch_invariant = true}, PlanSettings{.exact_weights = true}}) {
    const Plan exact = plan(p, sm90, settings).value();
    ASSERT_EQ(exact.work().lists.size(), 1U);
    EXPECT_EQ(exact.work().lists[0].kernel, "cuda_generic");
    EXPECT_FALSE(rounds_weights(exact, 256));
  }
  const plan_detail::DeviceList instead = made.kernel.row().gpu->instead(made, made.work().lists[0]);
  EXPECT_EQ(instead.kernel, "cuda_generic") << "where addresses do not suit tensor copies";
  const Problem packed = parse("q=bf16 kv=fp8_e4m3fn heads=8:2 d=256 page=16 layout=packed reqs=9:64 causal=0");
  EXPECT_EQ(plan(packed, sm90).value().kernel, "cuda_generic") << "no register is left there";
}

/// A V of its own head_dim goes to rows that take every valid problem.
TEST(Select, TunedKernelsRefuseUnequalHeadDimsWithAReason) {
  const Problem p = parse("q=bf16 heads=16:1 d=128 dv=64 page=16 reqs=1@40,9@20");
  const std::pair<const char*, const char*> rows[] = {
      {"sm90", "cuda_sm90"}, {"sm80", "cuda_mma"}, {"gfx942", "hip_matrix"}, {"amx", "cpu_amx"}};
  for (const auto& [device, kernel] : rows) {
    const Result<Plan> refused = plan(p, find_device(device).value(), {.kernel = kernel});
    ASSERT_FALSE(refused.ok()) << kernel;
    EXPECT_THAT(refused.status().message(), HasSubstr("dv is 64, expected 128 (as d)")) << kernel;
    ASSERT_TRUE(plan(p, find_device(device).value()).ok()) << device;
  }
  EXPECT_EQ(plan(p, find_device("sm90").value())->kernel, "cuda_generic");
  EXPECT_EQ(plan(p, find_device("gfx942").value())->kernel, "hip_generic");
}

/// V has rows of its own length wherever bytes are counted.
TEST(Select, BytesAndOperationsCountTheDimsOfV) {
  const Plan equal = plan(parse("q=f32 heads=4:2 d=64 page=16 reqs=1@99"), find_device("avx512").value()).value();
  const Plan wide = plan(parse("q=f32 heads=4:2 d=64 dv=192 page=16 reqs=1@99"), find_device("avx512").value()).value();
  EXPECT_EQ(equal.kv_bytes, 100 * 2 * (64 + 64) * 4);
  EXPECT_EQ(wide.kv_bytes, 100 * 2 * (64 + 192) * 4);
  EXPECT_EQ(wide.flops, 2.0 * (64 + 192) * 4 * 100);
  EXPECT_GT(workspace_bytes(wide), workspace_bytes(equal));
}

/// Keys that no row sees are no work, and rows that see none are written all the same.
TEST(Select, RowsWithoutKeysAreItemsOfTheirOwn) {
  const Problem p = parse("q=bf16 heads=8:2 d=64 page=16 causal=0 reqs=5:0,1:0,40:0");
  const Plan made = plan(p, find_device("avx512").value()).value();
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < made.num_items(); ++i) {
    const plan_detail::WorkItem item = plan_detail::item_of(made, i);
    EXPECT_EQ(item.key_begin, item.key_end);
    EXPECT_EQ(item.partial, -1);
    rows += item.row_end - item.row_begin;
  }
  EXPECT_EQ(rows, 46 * 2);
  EXPECT_EQ(made.kv_bytes, 0);
  EXPECT_EQ(made.flops, 0);
}

}  // namespace
}  // namespace quire
