// SPDX-License-Identifier: Apache-2.0
// The matrix kernels on the stand-in: random problems, hazards whose data no line describes, and the promises about bits.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "kernels/hazard_cases.h"
#include "kernels/invariance.h"
#include "simt/matrix_device.h"

namespace quire::test {
namespace {

const simt::MatrixGpu* const kGpus[] = {&simt::kGfx942, &simt::kGfx1100, &simt::kGfx1201};

ProblemLine line_of(const std::string& types, const std::string& shape) { return hazard_line(types, shape, 1); }

std::string random_shape(std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<const char*> words) {
    return std::string(words.begin()[random() % words.size()]);
  };
  std::string shape = "lse=1 heads=" + one_of({"4:2", "8:1", "16:1", "3:3", "10:2", "17:1"}) +
                      " d=" + one_of({"64", "128", "128", "256"}) + " page=" + one_of({"16", "32", "16", "48", "5", "256"}) +
                      one_of({"", " window=33", " window=100"}) + one_of({"", " alibi=1"}) + one_of({"", " cap=5"}) +
                      one_of({"", " sinks=1"}) + " reqs=";
  for (std::size_t i = 0, count = 1 + random() % 3; i < count; ++i) {
    const std::size_t query_len = one_of({"1", "2", "40"}) == "40" ? 1 + random() % 90 : 1 + random() % 4;
    shape += (i > 0 ? "," : "") + std::to_string(query_len) + "@" + std::to_string(random() % 250);
  }
  return shape;
}

TEST(SimtMatrixSpecial, RandomProblems) {
  std::mt19937 random(11);
  const char* const types[] = {"q=f16 kv=f16 layout=nhd", "q=bf16 kv=bf16 layout=hnd",
                               "q=bf16 kv=fp8_e4m3fn layout=nhd kscale=head", "q=f16 kv=fp8_e5m2 layout=hnd vscale=tensor"};
  for (unsigned i = 0; i < 18; ++i) {
    const ProblemLine line = hazard_line(types[random() % std::size(types)], random_shape(random), i + 1);
    const simt::Device device{.target_items = random() % 2 == 0 ? 0 : 12};
    const std::vector<std::string> findings = judge(line, on_matrix_device(*kGpus[i % 3], device));
    EXPECT_TRUE(findings.empty()) << kGpus[i % 3]->name << "\n" << report(line, findings);
  }
}

/// The table changes after the validation, as it may between prepare() and a layer.
TEST(SimtMatrixSpecial, AWildEntryBehindTheValidationIsNotFollowedAndIsHeard) {
  for (const simt::MatrixGpu* gpu : kGpus)
    for (const char* shape : {"heads=4:2 d=64 page=16 index=i64 reqs=1@40", "heads=4:2 d=64 page=16 index=i64 reqs=40@40"})
      for (const std::int64_t wild : {std::int64_t{-1}, std::int64_t{1} << 33, std::int64_t{2147480000}}) {
        const Case c = made(line_of("q=bf16 kv=bf16 layout=nhd", shape));
        const Tensor& table = c.batch.block_table;
        std::vector<std::int64_t> changed(static_cast<const std::int64_t*>(table.data),
                                          static_cast<const std::int64_t*>(table.data) + table.num_elements());
        changed[1] = wild;
        simt::Device device;
        device.tamper = [&](gpu::GenericArgs& a) { a.block_table.data = changed.data(); };
        std::int64_t rows = 0;
        EXPECT_EQ(simt::attend_matrix(*gpu, device, c, rows).code(), Code::contract_violation) << gpu->name << " " << shape;
      }
}

TEST(SimtMatrixSpecial, NoVisibleKeyOnlyMinusInfiniteScores) {
  for (const simt::MatrixGpu* gpu : kGpus)
    for (const std::string sinks : {"0", "1"}) {
      const ProblemLine line = line_of("q=bf16 kv=bf16 layout=nhd", "heads=4:2 d=64 page=16 lse=1 reqs=3@20,1@9 sinks=" + sinks);
      const std::vector<std::string> findings = judge(line, on_matrix_device(*gpu, {}), Special::minus_infinite_scores);
      EXPECT_TRUE(findings.empty()) << gpu->name << "\n" << report(line, findings);
    }
}

TEST(SimtMatrixSpecial, EveryFp8Code) {
  std::size_t turn = 0;
  for (const std::string kv : {"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"})
    for (const std::string q : {"q=f16 kscale=tensor vscale=tensor layout=nhd", "q=bf16 kscale=head vscale=head layout=packed"}) {
      const simt::MatrixGpu* gpu = kGpus[turn++ % 3];
      const ProblemLine line = line_of(q + " kv=" + kv, "heads=4:2 d=64 page=16 lse=1 reqs=20@100,1@300");
      const std::vector<std::string> findings =
          judge(line, on_matrix_device(*gpu, {.target_items = 12}), Special::every_fp8_code);
      EXPECT_TRUE(findings.empty()) << gpu->name << "\n" << report(line, findings);
    }
}

TEST(SimtMatrixSpecial, HugeOffsets) {
  const ProblemLine line =
      line_of("q=bf16 kv=fp8_e4m3fn layout=nhd kscale=tensor", "heads=4:2 d=64 page=16 lse=1 reqs=20@40,1@70");
  for (const simt::MatrixGpu* gpu : kGpus) {
    const std::vector<std::string> findings = judge(line, on_matrix_device(*gpu, {}), Special::huge_offsets);
    EXPECT_TRUE(findings.empty()) << gpu->name << "\n" << report(line, findings);
  }
}

// 0 x NaN: rows that do not see the key share its tile and its product with rows that do.
TEST(SimtMatrixSpecial, NaNInAVisibleKeyOrValueReachesItsRowsAndNoOthers) {
  for (const simt::MatrixGpu* gpu : kGpus)
    for (const char* heads : {"8:4 reqs=3@48,70@20", "16:4 reqs=70@20,1@20"}) {  // the short list and the tall one
      const ProblemLine line = line_of("q=f16 kv=f16 layout=nhd", std::string("d=64 page=16 lse=1 heads=") + heads);
      for (const float value : {std::nanf(""), INFINITY})
        for (const bool in_key : {true, false}) {
          if (in_key && value == INFINITY) continue;  // a score of infinity: exp(inf - inf)
          const Case c = made(line);
          const std::int64_t page = semantics::index_row(c.batch.block_table, 0)[49 / 16];
          const Tensor& cache = in_key ? c.cache.k : c.cache.v;
          semantics::store(cache.data, cache.dtype, ((page * 16 + 49 % 16) * 4 + 1) * 64 + 3, value);
          const std::vector<std::string> findings = judge(c, on_matrix_device(*gpu, {}));
          EXPECT_TRUE(findings.empty()) << gpu->name << ", " << value << " in a " << (in_key ? "key" : "value") << " of\n"
                                        << report(line, findings);
        }
    }
}

TEST(SimtMatrixSpecial, BitsDoNotDependOnTheBatchOrOnChunks) {
  const simt::Device invariant{.split_keys = 128};
  const char* const shape = "heads=4:2 d=64 page=16 window=150 sinks=1 lse=1 reqs=40@230,1@170,7@3,25@0";
  std::size_t turn = 0;
  for (const std::string types :
       {"q=f16 kv=f16 layout=nhd", "q=bf16 kv=bf16 layout=hnd", "q=bf16 kv=fp8_e4m3fn layout=nhd kscale=head"}) {
    const Attend attend = on_matrix_device(*kGpus[turn++ % 3], invariant);
    const ProblemLine line = line_of(types, shape);
    for (const auto& findings : {judge_alone(made(line), attend), judge_chunked(made(line), attend)})
      EXPECT_TRUE(findings.empty()) << report(line, findings);
  }
}

TEST(SimtMatrixSpecial, CachedLenDoesNotChangeBits) {
  for (const simt::MatrixGpu* gpu : kGpus)
    for (const std::string heads : {"4:2", "16:1"}) {
      std::map<std::int64_t, std::vector<std::uint32_t>> seen;
      for (const std::int64_t cached : {70, 75, 79}) {
        const Case c = made(
            line_of("q=bf16 kv=bf16 layout=nhd", "d=64 page=16 lse=1 reqs=9@70/" + std::to_string(cached) + " heads=" + heads));
        std::int64_t rows = 0;
        ASSERT_TRUE(on_matrix_device(*gpu, {})(c, 2, rows).ok());
        seen[cached] = bits_of(c.batch.output);
      }
      EXPECT_TRUE(seen[70] == seen[75] && seen[75] == seen[79]) << gpu->name << " " << heads;
    }
}

}  // namespace
}  // namespace quire::test
