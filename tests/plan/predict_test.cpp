// SPDX-License-Identifier: Apache-2.0
// predict(): what it counts, what it refuses, and that more work is never less time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "plan/device_work.h"
#include "quire/plan.hpp"
#include "quire/predict.hpp"

namespace quire {
namespace {

using ::testing::HasSubstr;

Plan plan_of(const std::string& line, const char* device = "sm90", const PlanSettings& settings = {}) {
  const Result<ProblemLine> parsed = parse_problem_line(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  Result<Plan> planned = plan(parsed->problem, find_device(device).value(), settings);
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  return std::move(planned).value();
}

const std::string kShape = "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=";

double seconds_of(const std::string& reqs) { return predict(plan_of(kShape + reqs)).seconds; }

TEST(Predict, EqualSharesOfDecodeTiles) {
  // 60 requests x 8 heads are 480 segments of 128 tiles; a cut that does not fall between two of them makes an item more.
  const Plan planned = plan_of(kShape + "60x1@8191");
  const Prediction p = predict(planned);
  ASSERT_EQ(p.lists.size(), 1u) << p.why_not;
  const std::int64_t all = 480 * 128, blocks = planned.work().lists[0].num_blocks, share = (all + blocks - 1) / blocks;
  std::int64_t cuts = 0;
  std::set<std::int64_t> cut_segments;
  for (std::int64_t at = share; at < all; at += share)
    if (at % 128 != 0) ++cuts, cut_segments.insert(at / 128);
  EXPECT_EQ(p.lists[0].served_by, "sm90_decode");
  EXPECT_EQ(p.lists[0].units, blocks);
  EXPECT_EQ(p.lists[0].busiest_tiles, share);
  EXPECT_EQ(p.lists[0].items, 480 + cuts);
  EXPECT_EQ(p.lists[0].merges, static_cast<std::int64_t>(cut_segments.size()));
  EXPECT_GT(cuts, 100);
  EXPECT_DOUBLE_EQ(p.lists[0].read_bytes, 2.0 * 8 * 128 * 2 * 60 * 8192);
}

// Where all segments are of a length, shares grow by up to a part in 34 to be whole numbers of them, or of their parts.
TEST(Predict, SharesOfWholeSegments) {
  const auto of = [](const char* reqs) { return predict(plan_of(kShape + reqs)).lists.at(0); };
  const ListPrediction two = of("64x1@8191");  // 512 segments of 128 tiles on 264 blocks: 249 become 256
  EXPECT_EQ(two.busiest_tiles, 256);
  EXPECT_EQ(two.items, 512);
  EXPECT_EQ(two.merges, 0);
  const ListPrediction parts = of("1x1@131071");  // 8 segments of 2048 tiles: 63 become 64, of which a segment has 32
  EXPECT_EQ(parts.busiest_tiles, 64);
  EXPECT_EQ(parts.items, 8 * 32);
  const ListPrediction other = of("63x1@8191,1x1@8127");  // one segment of each head is shorter
  EXPECT_EQ(other.busiest_tiles, 249);
  EXPECT_GT(other.merges, 100);
}

// Where blocks have several segments, a piece takes a place beside its tiles: who has many short requests has fewer tiles.
TEST(Predict, PiecesOfDecodeCountAsTiles) {
  const Plan planned = plan_of(kShape + "256x1@10,64x1@8191");
  const Prediction p = predict(planned);
  ASSERT_EQ(p.lists.size(), 1u) << p.why_not;
  const std::int64_t places = 256 * 8 * 2 + 64 * 8 * 129, blocks = planned.work().lists[0].num_blocks,
                     share = (places - 1) / blocks + 1;
  EXPECT_LE(p.lists[0].busiest_tiles + p.lists[0].busiest_items, share + 1)
      << "a share may cut a segment that the one before began";
  EXPECT_GE(p.lists[0].busiest_tiles + p.lists[0].busiest_items, share);
}

// Two slices of 64 rows: twice the tiles, and K and V counted once.
TEST(Predict, SlicesOfScoreRows) {
  const auto with_rows = [](const char* heads) {
    const Plan p = plan(parse_problem_line(std::string("q=bf16 kv=fp8_e4m3fn d=128 page=16 reqs=8x1@8191 ") + heads)->problem,
                        find_device("sm90").value(), {.exact_weights = true})
                       .value();
    plan_detail::ListWork work;
    EXPECT_TRUE(plan_detail::count_work(p, p.work().lists.at(0), {}, work));
    EXPECT_EQ(p.work().lists[0].role, plan_detail::Role::decode_wide);
    return work;
  };
  const plan_detail::ListWork one = with_rows("heads=64:1"), two = with_rows("heads=128:1");
  EXPECT_EQ(one.busiest_tiles, (8 * 128 - 1) / 132 + 1);
  EXPECT_EQ(two.busiest_tiles, (16 * 128 - 1) / 132 + 1);
  EXPECT_EQ(one.read_bytes, two.read_bytes);
}

// A cluster's blocks have nothing of other requests: seven of eight have little to do here.
TEST(Predict, BlocksOfAClusterShareOneSegment) {
  const ListPrediction ragged = predict(plan_of(kShape + "1@2047,7x1@60")).lists.at(0);
  EXPECT_EQ(ragged.served_by, "sm90_cluster");
  EXPECT_EQ(ragged.units, 128);
  EXPECT_EQ(ragged.busiest_tiles, 16) << "2048 keys on 2 blocks";
  EXPECT_EQ(ragged.items, 8 * 8 * 2);
  EXPECT_EQ(ragged.merges, 8 * 8);
  const ListPrediction alone = predict(plan_of(kShape + "16x1@1023")).lists.at(0);
  EXPECT_EQ(alone.served_by, "sm90_cluster");
  EXPECT_EQ(alone.merges, 0) << "a block has a segment of its own";
  EXPECT_EQ(alone.busiest_tiles, 16);
}

// batch_invariant: cut every 2048 keys, 32 tiles, and dealt out whole.
TEST(Predict, PartsOfFixedSize) {
  const Plan p =
      plan(parse_problem_line(kShape + "3x1@5000")->problem, find_device("sm90").value(), {.batch_invariant = true}).value();
  plan_detail::ListWork work;
  ASSERT_TRUE(plan_detail::count_work(p, p.work().lists.at(0), {}, work));
  EXPECT_EQ(work.items, 3 * 8 * 3) << "5001 keys are 79 tiles";
  EXPECT_EQ(work.merges, 3 * 8);
  EXPECT_EQ(work.busiest_tiles, 32) << "72 parts on 132 blocks";
  EXPECT_EQ(work.busiest_items, 1);
}

TEST(Predict, TilesOfCausalPrefill) {
  // 64 tokens a tile: 64 tiles, of which tile i meets ceil((i + 1) / 2) tiles of 128 keys; 8 heads; 66 pairs.
  const Prediction p = predict(plan_of(kShape + "4096"));
  ASSERT_EQ(p.lists.size(), 2u) << p.why_not;
  EXPECT_EQ(p.lists[0].items, 0);
  EXPECT_EQ(p.lists[1].served_by, "sm90_prefill");
  EXPECT_EQ(p.lists[1].items, 64 * 8);
  EXPECT_GE(p.lists[1].busiest_tiles, 1056 * 8 / 66);
  EXPECT_LE(p.lists[1].busiest_tiles, 1056 * 8 / 66 + 8);
  EXPECT_GT(p.lists[1].tile_seconds, p.lists[1].read_seconds);
}

TEST(Predict, ASumOfParts) {
  for (const char* reqs : {"1x1@1023", "64x1@8191,2048@6144", "4096"}) {
    const Prediction p = predict(plan_of(kShape + reqs));
    double sum = p.call_seconds;
    for (const ListPrediction& list : p.lists) {
      sum += list.seconds;
      EXPECT_GT(list.seconds, list.items > 0 ? std::max(list.read_seconds, list.tile_seconds) + list.item_seconds : 0.0);
    }
    EXPECT_DOUBLE_EQ(p.seconds, sum - p.saved_seconds) << reqs;
    EXPECT_GT(p.seconds, 0) << reqs;
  }
}

TEST(Predict, DecodeBesidePrefillTakesLessThanOneAfterTheOther) {
  const Prediction both = predict(plan_of(kShape + "64x1@8191,2048@6144"));
  EXPECT_GT(both.saved_seconds, 0.1 * both.lists[0].seconds);
  EXPECT_LT(both.saved_seconds, both.lists[0].seconds);
  EXPECT_GT(both.seconds, both.lists[1].seconds);
  EXPECT_EQ(predict(plan_of(kShape + "64x1@8191")).saved_seconds, 0);
  EXPECT_EQ(predict(plan_of(kShape + "2048@6144")).saved_seconds, 0);
  const Plan after = plan_of(kShape + "64x1@8191,2048@6144", "sm90", {.kernel = "cuda_mma"});
  EXPECT_EQ(predict(after).saved_seconds, 0) << "cuda_mma's lists run one after the other";
}

TEST(Predict, MoreWorkTakesLonger) {
  EXPECT_LT(seconds_of("1x1@1023"), seconds_of("1x1@8191"));
  EXPECT_LT(seconds_of("1x1@8191"), seconds_of("64x1@8191"));
  EXPECT_LT(seconds_of("2048"), seconds_of("4096"));
  EXPECT_LT(seconds_of("64x1@8191"), seconds_of("64x1@8191,2048@6144"));
  EXPECT_LT(predict(plan_of("q=bf16 heads=32:8 d=128 page=16 window=1024 reqs=64x1@8191")).seconds, seconds_of("64x1@8191"));
}

TEST(Predict, BoundByReadingNearTheCeiling) {
  const double floor = 2.0 * 8 * 128 * 2 * 64 * 32768 / 4.6e12;
  EXPECT_GT(seconds_of("64x1@32767"), floor);
  EXPECT_LT(seconds_of("64x1@32767"), 1.25 * floor);
}

TEST(Predict, EveryCudaRowOfHopper) {
  for (const char* device : {"h100", "h200"})
    for (const char* kernel : {"cuda_sm90", "cuda_mma", "cuda_generic"})
      for (const char* kv : {"bf16", "fp8_e4m3fn"}) {
        const std::string line = std::string("q=bf16 kv=") + kv + " heads=32:8 d=128 page=16 reqs=4x1@900";
        const Prediction p = predict(plan_of(line, device, {.kernel = kernel}));
        EXPECT_GT(p.seconds, 0) << device << ' ' << kernel << ' ' << kv << ": " << p.why_not;
      }
}

// bench/results/h100-attend.json and h200-attend.json. Decode waits for memory, of which an H200 reads 1.46 times as much;
// prefill does not.
TEST(Predict, AnH100ReadsLessThanAnH200) {
  struct {
    std::string reqs;
    double h100_us, h200_us;
  } const measured[] = {{"64x1@8191", 713.49, 483.48}, {"256x1@1023", 370.42, 254.38}, {"4096", 232.47, 232.17}};
  for (const auto& line : measured) {
    const Prediction h100 = predict(plan_of(kShape + line.reqs, "h100")), h200 = predict(plan_of(kShape + line.reqs, "h200"));
    EXPECT_EQ(h100.device, "H100");
    EXPECT_EQ(h200.device, "H200");
    EXPECT_NEAR(h100.seconds * 1e6, line.h100_us, 0.1 * line.h100_us) << line.reqs;
    EXPECT_NEAR(h200.seconds * 1e6, line.h200_us, 0.1 * line.h200_us) << line.reqs;
  }
}

struct Measured {
  const char* line;
  double us;
  const char* kernel = "";
};

/// Furthest that a prediction for an H100 is off, as a share of the measured time.
double worst_error(std::span<const Measured> lines) {
  double worst = 0;
  for (const Measured& measured : lines) {
    const Prediction p = predict(plan_of(measured.line, "h100", {.kernel = measured.kernel}));
    EXPECT_GT(p.seconds, 0) << measured.line << ": " << p.why_not;
    worst = std::max(worst, std::abs(p.seconds * 1e6 / measured.us - 1));
  }
  return worst;
}

// bench/results/h100-cluster-codes.json, after.
TEST(Predict, ShortDecodeCallsByClusters) {
  constexpr Measured kLines[] = {{"q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=1x1@1023", 6.09},
                                 {"q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=1x1@8191", 13.31},
                                 {"q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=8x1@1023", 13.79},
                                 {"q=bf16 kv=fp8_e5m2 heads=32:8 d=128 page=16 reqs=16x1@1023", 21.74},
                                 {"q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=1x1@1023", 6.53},
                                 {"q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=1x1@8191", 16.85},
                                 {"q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=8x1@1023", 17.30},
                                 {"q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=16x1@1023", 27.95}};
  EXPECT_LT(worst_error(kLines), 0.05);
  const Measured of_codes[] = {{"q=fp8_e4m3fn kv=fp8_e4m3fn out=bf16 heads=32:8 d=128 page=16 reqs=8x1@1023", 14.63}};
  EXPECT_LT(worst_error(of_codes), 0.1) << "a query of codes is converted, too, which has no cost of its own";
}

// bench/results/h100-mla-decode.json, and h100-sparse.json for pages of one token, of which each is copied alone.
TEST(Predict, LatentRows) {
  constexpr Measured kLines[] = {
      {"q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=64x1@8191", 255.78},
      {"q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=1x1@8191", 34.28},
      {"q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=128x1@2047", 163.42},
      {"q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=64x2@8191", 465.13},
      {"q=bf16 heads=128:1 d=576 dv=512 latent=1 page=1 reqs=64x1@2047", 202.0},
      {"q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=64x1@8191", 18084.75, "cuda_generic"},
      {"q=bf16 heads=128:1 d=576 dv=512 latent=1 page=1 reqs=64x1@2047", 4595.4, "cuda_generic"},
  };
  EXPECT_LT(worst_error(kLines), 0.1);
  const Prediction h200 = predict(plan_of(kLines[0].line, "h200"));
  EXPECT_THAT(h200.why_not, HasSubstr("sm90_mla was not measured at head_dim 576 (V: 512) with bf16 caches"));
}

// bench/results/h100-mma-prefill.json, and h100-packed-mma.json for decode rows.
TEST(Predict, CudaMma) {
  constexpr Measured kLines[] = {
      {"q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=nhd reqs=16384", 7724.78, "cuda_mma"},
      {"q=bf16 kv=bf16 heads=32:8 d=64 page=16 layout=nhd reqs=2048@8192", 699.77, "cuda_mma"},
      {"q=bf16 kv=bf16 heads=16:2 d=256 page=16 layout=nhd reqs=4096", 727.88, "cuda_mma"},
      {"q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 layout=nhd reqs=4x2048@8192", 6628.73, "cuda_mma"},
      {"q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=packed reqs=4x2048@8192", 5622.72, "cuda_mma"},
      {"q=bf16 kv=bf16 heads=32:1 d=128 page=16 layout=nhd reqs=64x1@8191", 151.95, "cuda_mma"},
      {"q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=nhd reqs=16x16@8176", 260.74, "cuda_mma"},
      {"q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 layout=packed reqs=64x1@8191", 723.62, "cuda_mma"},
  };
  EXPECT_LT(worst_error(kLines), 0.1);
  const Plan codes =
      plan_of("q=bf16 kv=fp8_e4m3fn heads=32:1 d=128 page=16 layout=packed reqs=64x1@8191", "h100", {.kernel = "cuda_mma"});
  EXPECT_THAT(predict(codes).why_not,
              HasSubstr("mma_tall was not measured at head_dim 128 with fp8_e4m3fn caches of the packed"));
  EXPECT_THAT(predict(plan_of(kLines[0].line, "h200", {.kernel = "cuda_mma"})).why_not,
              HasSubstr("mma_prefill was not measured at head_dim 128 with bf16 caches"));
}

// bench/results/h100-wide-and-masks.json, "wide": decode rows and prompts, by prefill alone. At 512 both blocks of a pair have
// the same rows.
TEST(Predict, WideHeadDims) {
  constexpr Measured kLines[] = {
      {"q=bf16 heads=128:128 d=192 dv=128 page=16 reqs=4096", 1310.79},
      {"q=bf16 heads=16:16 d=192 dv=128 page=16 reqs=2048@8192", 278.62},
      {"q=bf16 heads=64:4 d=192 dv=128 page=16 reqs=64x1@8191", 480.53},
      {"q=bf16 heads=64:4 d=192 dv=128 page=16 reqs=1x1@8191", 34.35},
      {"q=bf16 heads=16:2 d=512 page=16 reqs=4096", 787.2},
      {"q=bf16 heads=32:4 d=512 page=16 reqs=8192", 6377.38},
      {"q=bf16 heads=16:2 d=512 page=16 reqs=64x1@8191", 853.6},
      {"q=bf16 heads=16:2 d=512 page=16 reqs=1x1@8191", 49.13},
      {"q=bf16 heads=16:2 d=512 page=16 reqs=16x1024", 911.38},
  };
  EXPECT_LT(worst_error(kLines), 0.13);
  const Prediction p = predict(plan_of(kLines[5].line, "h100"));
  EXPECT_EQ(p.lists.at(0).tile_rows, 128);
  constexpr Measured kGeneric[] = {{"q=bf16 heads=16:2 d=512 page=16 reqs=4096", 30175.42, "cuda_generic"},
                                   {"q=bf16 heads=16:2 d=512 page=16 reqs=64x1@8191", 3673.79, "cuda_generic"}};
  EXPECT_LT(worst_error(kGeneric), 0.05);
  EXPECT_THAT(predict(plan_of(kGeneric[0].line, "h200", {.kernel = "cuda_generic"})).why_not,
              HasSubstr("generic was not measured at head_dim 512"));
}

// Times: bench/results/h100-wide-and-masks.json, "caches". 8 requests of 1k take two thirds of the time of one of 8k. The model
// gives both one time: parts that are merged have no cost of their own.
TEST(Predict, FourBitsAndScalesOfTokens) {
  const std::string shape = " heads=32:8 d=128 page=16 reqs=";
  struct {
    std::string kv;
    double one, short_ones, many, of_4k, prompts;
  } const measured[] = {{"kv=nvfp4", 86.04, 60.38, 282.6, 523.93, 403.22},
                        {"kv=mxfp4", 85.34, 59.72, 281.39, 522.38, 402.87},
                        {"kv=fp8_e4m3fn/nvfp4", 87.84, 61.67, 292.69, 546.91, 407.92},
                        {"kscale=token vscale=token kv=i8", 92.51, 66.25, 306.68, 566.26, 409.54}};
  for (const auto& times : measured) {
    const auto ratio = [&](const char* reqs, double us) {
      const Prediction p = predict(plan_of("q=bf16 " + times.kv + shape + reqs, "h100"));
      EXPECT_EQ(p.lists.at(0).served_by, "generic") << p.why_not;
      return p.seconds * 1e6 / us;
    };
    EXPECT_NEAR(ratio("1x1@8191", times.one), 1, 0.1) << times.kv;
    EXPECT_NEAR(ratio("64x1@1023", times.many), 1, 0.1) << times.kv;
    EXPECT_NEAR(ratio("32x1@4095", times.of_4k), 1, 0.15) << times.kv;
    EXPECT_NEAR(ratio("4x64@1024", times.prompts), 1, 0.18) << times.kv;
    EXPECT_NEAR(ratio("8x1@1023", times.short_ones), 1, 0.42) << times.kv;
  }
}

// Times: bench/results/h100-wide-and-masks.json, "masks". Costs of causal prompts predict them.
TEST(Predict, ShapedMasks) {
  constexpr Measured kLines[] = {
      {"q=bf16 heads=32:8 d=128 page=16 reqs=4x1@2047,1x64@960 spans=4:0-128,4:970-1000", 54.46},
      {"q=bf16 heads=32:8 d=128 page=16 reqs=1x8192 spans=0:1000-2000", 979.26},
      {"q=bf16 heads=32:8 d=128 page=16 reqs=1x16384 window=1024 prefix=4", 701.77},
      {"q=bf16 heads=32:8 d=128 page=16 reqs=64x1@16383 window=1024 prefix=4", 173.16},
      {"q=bf16 heads=32:8 d=128 page=16 reqs=1x16384 chunk=8192", 1877.31},
      {"q=bf16 heads=32:8 d=128 page=16 reqs=64x1@16383 chunk=8192", 785.8},
      {"q=bf16 heads=32:8 d=128 page=16 reqs=1x4096,1x4096 causal=1x1,1x0", 718.87},
      {"q=bf16 heads=32:8 d=128 page=16 reqs=1x8192 window=1024 causal=0 wright=1024", 507.95},
  };
  EXPECT_LT(worst_error(kLines), 0.15);
}

// A row has 128 tiles of keys, and 119 of them lie between the prefix and the window.
TEST(Predict, TilesInAGapAreNotCounted) {
  const Prediction p = predict(plan_of("q=bf16 heads=32:8 d=128 page=16 reqs=64x1@16383 window=1024 prefix=4", "h100"));
  ASSERT_EQ(p.lists.size(), 1u) << p.why_not;
  EXPECT_DOUBLE_EQ(p.lists[0].read_bytes, 2.0 * 8 * 128 * 2 * 64 * (1024 + 4));
  EXPECT_GE(p.lists[0].busiest_tiles, 64 * 8 * 9 / 66);
  EXPECT_LE(p.lists[0].busiest_tiles, 64 * 8 * 9 / 66 + 9);
}

// Lines of docs/reference/features.md that no timed line stands for.
TEST(Predict, SaysWhatWasNotMeasured) {
  const std::pair<const char*, const char*> lines[] = {
      {"q=f32 heads=32:8 d=128 page=16 reqs=4x1@2047,64@960", "no kernel was measured with f32 queries"},
      {"q=bf16 kv=nvfp4 heads=32:8 d=64 page=16 reqs=4x1@2047,64@960",
       "generic was not measured at head_dim 64 with nvfp4 caches"},
      {"q=bf16 kv=i8 heads=32:8 d=64 page=16 kscale=token vscale=token reqs=4x1@2047,64@960",
       "generic was not measured at head_dim 64 with i8 caches and a scale for each token"},
      {"q=bf16 kv=i8 heads=32:8 d=128 page=16 kscale=head vscale=head reqs=4x1@2047",
       "no kernel was measured with i8 caches without scales of tokens"},
      {"q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 kscale=token reqs=4x1@2047",
       "with fp8_e4m3fn caches and a scale for each token of K or V alone"},
      {"q=bf16 kv=nvfp4/fp8_e4m3fn heads=32:8 d=128 page=16 reqs=4x1@2047", "with nvfp4/fp8_e4m3fn caches"},
      {"q=bf16 kv=fp8_e4m3fn/bf16 heads=32:8 d=128 page=16 reqs=4x1@2047,64@960", "with fp8_e4m3fn/bf16 caches"},
      {"q=f16 kv=fp8_e4m3fnuz heads=32:8 d=128 page=16 reqs=4x1@2047,64@960", "with fp8_e4m3fnuz caches"},
      {"q=bf16 kv=fp8_ds_mla heads=128:1 d=576 dv=512 page=64 latent=1 reqs=4x1@2047,64@960", "with fp8_ds_mla caches"},
      {"q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 chunk=512 reqs=4x1@2047,64@960",
       "no costs of generic hold at head_dim 128 with fp8_e4m3fn caches under a chunk"},
      {"q=bf16 heads=32:8 d=64 page=16 window=512 prefix=4 reqs=4x1@2047,64@960",
       "no costs of sm90_prefill hold at head_dim 64 with bf16 caches under a prefix"},
      {"q=bf16 heads=16:2 d=256 page=16 spans=0:0-300 reqs=400", "at head_dim 256 with bf16 caches under spans"},
      {"q=bf16 heads=32:8 d=128 page=16 tree=64 reqs=4x64@960", "under a tree_mask"},
      {"q=bf16 heads=32:8 d=128 page=16 chunk=512 spans=0:0-300 reqs=400", "under a chunk and spans"},
      {"q=bf16 heads=32:8 d=192 dv=64 page=16 reqs=4x1@2047,64@960", "generic was not measured at head_dim 192 (V: 64)"},
      {"q=bf16 heads=8:1 d=128 page=1 reqs=68x1@511",
       "mma_short was not measured at head_dim 128 with bf16 caches in pages of 1"},
      {"q=bf16 heads=17:17 d=80 page=16 layout=packed reqs=68x1@511", "with bf16 caches of the packed layout"},
  };
  for (const auto& [line, reason] : lines) {
    const Prediction p = predict(plan_of(line, "h100"));
    EXPECT_THAT(p.why_not, HasSubstr(reason)) << line;
    EXPECT_EQ(p.seconds, 0) << line;
  }
}

TEST(Predict, NamesOptionsWhoseCostIsLeftOut) {
  const auto left_out = [](const char* options) {
    return predict(plan_of(options + std::string(" ") + kShape + "4x1@900")).left_out;
  };
  EXPECT_EQ(left_out(""), "");
  EXPECT_EQ(left_out("window=64 sinks=1"), "");
  EXPECT_EQ(left_out("cap=30"), "cap");
  EXPECT_EQ(left_out("cap=30 alibi=1"), "cap, alibi");
}

TEST(Predict, SaysWhyNot) {
  const std::string line = kShape + "4x1@900";
  EXPECT_THAT(predict(plan_of(line, "sm80")).why_not, HasSubstr("nothing was measured on sm80"));
  EXPECT_THAT(predict(plan_of(line, "gfx942")).why_not, HasSubstr("nothing was measured on gfx942"));
  EXPECT_THAT(predict(plan_of(line, "h20")).why_not, HasSubstr("nothing was measured on NVIDIA H20"));
  EXPECT_THAT(predict(plan_of(line, "gh200")).why_not, HasSubstr("nothing was measured on NVIDIA GH200"));
  Plan pcie = plan_of(line);
  pcie.device.product = "NVIDIA H100 PCIe";
  EXPECT_THAT(predict(pcie).why_not, HasSubstr("NVIDIA H100 PCIe"));
  Plan unread = plan_of(line);
  unread.assumptions = {"query_len <= 4 (num_tokens)"};
  EXPECT_THAT(predict(unread).why_not, HasSubstr("lengths"));
  EXPECT_THAT(predict(plan_of(kShape + "1x60000000@0")).why_not, HasSubstr("more tiles"));
  for (const char* unmeasured :
       {"q=bf16 kv=bf16 heads=32:2 d=256 page=16 reqs=8x1@8191", "q=f16 kv=fp8_e4m3fn heads=32:2 d=256 page=16 reqs=8x1@8191"}) {
    const Prediction none = predict(plan_of(unmeasured));
    EXPECT_THAT(none.why_not, HasSubstr("was not measured at head_dim")) << unmeasured;
    EXPECT_EQ(none.seconds, 0) << unmeasured;
  }
  for (const char* device : {"sm80", "gfx942"}) EXPECT_EQ(predict(plan_of(line, device)).seconds, 0);
}

}  // namespace
}  // namespace quire
