// SPDX-License-Identifier: Apache-2.0
// Hazards that need data of their own, and the promises about bits: alone or in a batch, whole or in chunks.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/hazard_cases.h"
#include "kernels/host_kernels.h"
#include "kernels/invariance.h"

namespace quire::test {
namespace {

class SpecialKernels : public testing::TestWithParam<std::string> {
 protected:
  Attend attend_ = kernel_under_test(GetParam());
  Attend invariant_ = kernel_under_test(GetParam(), /*batch_invariant=*/true);

  static ProblemLine line_of(const std::string& combination, const std::string& shape) {
    return as_taken_by(GetParam(), hazard_line(combination, shape, 1));
  }
};

// Not for fp8: stores saturate, so no infinity can be appended.
TEST_P(SpecialKernels, NoVisibleKeyOnlyMinusInfiniteScores) {
  for (const std::string types : {"q=f32 kv=f32 layout=nhd", "q=bf16 kv=bf16 layout=packed", "q=f16 kv=f16 layout=hnd"})
    for (const std::string sinks : {"0", "1"}) {
      const ProblemLine line = line_of(types, "heads=4:2 d=16 page=8 lse=1 reqs=3@20,1@9 sinks=" + sinks);
      const std::vector<std::string> findings = judge(line, attend_, Special::minus_infinite_scores);
      EXPECT_TRUE(findings.empty()) << "K_0 = -inf for request 0 of\n" << report(line, findings, GetParam());
    }
}

TEST_P(SpecialKernels, Fp8Extremes) {
  for (const std::string kv : {"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"})
    for (const std::string layout : {"nhd", "hnd", "packed"})
      for (const std::string rest :
           {"q=f32 kscale=tensor vscale=tensor", "q=bf16 kscale=head vscale=head", "q=f16 kscale=head vscale=tensor"}) {
        const ProblemLine line =
            line_of(rest + " kv=" + kv + " layout=" + layout, "heads=4:2 d=32 page=8 lse=1 reqs=5@100,1@300");
        const std::vector<std::string> findings = judge(line, attend_, Special::every_fp8_code);
        EXPECT_TRUE(findings.empty()) << "every finite code in\n" << report(line, findings, GetParam());
      }
}

TEST_P(SpecialKernels, StalePagesLeftOfWindow) {
  for (const ProblemLine& taken : stale_page_lines()) {
    const ProblemLine line = as_taken_by(GetParam(), taken);
    const std::vector<std::string> findings = judge(line, attend_, Special::stale_pages);
    EXPECT_TRUE(findings.empty()) << "stale table entries in\n" << report(line, findings, GetParam());
  }
}

TEST_P(SpecialKernels, HugeOffsets) {
  for (const std::string types : {"q=f32 kv=fp8_e4m3fn layout=nhd kscale=tensor vscale=tensor",
                                  "q=f32 kv=fp8_e5m2 layout=packed kscale=tensor vscale=tensor",
                                  "q=bf16 kv=bf16 layout=hnd index=i64", "q=f16 kv=f16 layout=nhd"}) {
    const ProblemLine line = line_of(types, "heads=4:2 d=32 page=16 lse=1 reqs=3@40,1@70");
    const std::vector<std::string> findings = judge(line, attend_, Special::huge_offsets);
    EXPECT_TRUE(findings.empty()) << "pages moved beyond 2^32 elements\n" << report(line, findings, GetParam());
  }
}

TEST_P(SpecialKernels, ARequestHasTheSameBitsAloneAndInABatch) {
  for (const std::string& combination : type_combinations())
    for (const char* shape : kInvarianceShapes) {
      const ProblemLine line = line_of(combination, shape);
      for (const Attend& attend : {attend_, invariant_}) {
        const std::vector<std::string> findings = judge_alone(made(line), attend);
        EXPECT_TRUE(findings.empty()) << report(line, findings, GetParam());
      }
    }
}

TEST_P(SpecialKernels, ChunkingDoesNotChangeBits) {
  for (const std::string& combination : type_combinations())
    for (const char* shape : kInvarianceShapes) {
      const ProblemLine line = line_of(combination, shape);
      const std::vector<std::string> findings = judge_chunked(made(line), invariant_);
      EXPECT_TRUE(findings.empty()) << report(line, findings, GetParam());
    }
}

TEST_P(SpecialKernels, ChunksOf512DoNotChangeBits) {
  for (const char* shape : kLongPromptShapes) {
    const ProblemLine line = line_of("", shape);
    const std::vector<std::string> findings = judge_chunked(made(line), invariant_);
    EXPECT_TRUE(findings.empty()) << report(line, findings, GetParam());
  }
}

// The cache and the new rows are two places for one value: where the border lies must not show (16-bit caches of the query's
// type).
TEST_P(SpecialKernels, CachedLenDoesNotChangeBits) {
  for (const std::string types : {"q=f32 kv=f32 layout=nhd", "q=f16 kv=f16 layout=hnd", "q=bf16 kv=bf16 layout=packed"}) {
    std::map<std::int64_t, std::vector<std::uint32_t>> seen;
    for (const std::int64_t cached : {30, 35, 39}) {
      const ProblemLine line = line_of(types, "heads=4:2 d=16 page=8 lse=1 reqs=9@30/" + std::to_string(cached));
      const Case c = made(line);
      std::int64_t rows = 0;
      ASSERT_TRUE(attend_(c, 2, rows).ok());
      seen[cached] = bits_of(c.batch.output);
    }
    EXPECT_TRUE(seen[30] == seen[35] && seen[35] == seen[39]) << types;
  }
}

TEST_P(SpecialKernels, NaNInAVisibleKeyOrValueReachesItsRowsAndNoOthers) {
  const ProblemLine line = line_of("q=f32 kv=f32 layout=nhd", "heads=4:2 d=16 page=8 lse=1 reqs=70@20,1@20");
  for (const bool in_key : {true, false}) {
    const Case c = made(line);
    // Position 50 of request 0, KV head 1, dim 3: rows 30 and later of heads 2 and 3.
    const std::int64_t page = semantics::index_row(c.batch.block_table, 0)[50 / 8];
    const Tensor& cache = in_key ? c.cache.k : c.cache.v;
    semantics::store(cache.data, cache.dtype, ((page * 8 + 50 % 8) * 2 + 1) * 16 + 3, std::nanf(""));
    const std::vector<std::string> findings = judge(c, attend_);
    EXPECT_TRUE(findings.empty()) << "NaN in a " << (in_key ? "key" : "value") << " of\n" << report(line, findings, GetParam());
  }
}

// A value that is not finite is added after the others of its tile, whether rows are few or many.
TEST_P(SpecialKernels, ChunkingDoesNotChangeBitsWhereAValueIsNotFinite) {
  for (const std::string types : {"q=f32 kv=bf16 layout=nhd", "q=bf16 kv=bf16 layout=hnd", "q=f16 kv=f16 layout=nhd"}) {
    const ProblemLine line = line_of(types, "heads=4:2 d=96 page=8 lse=1 reqs=70@20");
    const Case c = made(line);
    // Position 50, KV head 1, dim 3: the other dims of later rows stay finite.
    const std::int64_t page = semantics::index_row(c.batch.block_table, 0)[50 / 8];
    const Tensor& v = c.cache.v;
    const std::int64_t slot = c.cache.layout == CacheLayout::nhd ? (page * 8 + 50 % 8) * 2 + 1 : (page * 2 + 1) * 8 + 50 % 8;
    semantics::store(v.data, v.dtype, slot * 96 + 3, INFINITY);
    const std::vector<std::string> findings = judge_chunked(c, invariant_);
    EXPECT_TRUE(findings.empty()) << report(line, findings, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(, SpecialKernels, testing::ValuesIn(host_kernels()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::test
