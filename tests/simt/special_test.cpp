// SPDX-License-Identifier: Apache-2.0
// The portable attention kernel on the stand-in: hazards whose data no line describes, and the promises about bits.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "backend/gpu/decode.h"
#include "kernels/hazard_cases.h"
#include "kernels/invariance.h"
#include "simt/on_device.h"

namespace quire::test {
namespace {

ProblemLine line_of(const std::string& types, const std::string& shape) { return hazard_line(types, shape, 1); }

const simt::Device kInvariant{.wave = 64, .split_keys = 128};

TEST(SimtSpecial, NoVisibleKeyOnlyMinusInfiniteScores) {
  for (const std::string types : {"q=f32 kv=f32 layout=nhd", "q=bf16 kv=bf16 layout=packed"})
    for (const std::string sinks : {"0", "1"}) {
      const ProblemLine line = line_of(types, "heads=4:2 d=16 page=8 lse=1 reqs=3@20,1@9 sinks=" + sinks);
      const std::vector<std::string> findings = judge(line, on_device({.wave = 64}), Special::minus_infinite_scores);
      EXPECT_TRUE(findings.empty()) << report(line, findings);
    }
}

TEST(SimtSpecial, EveryFp8Code) {
  int turn = 0;
  for (const std::string kv : {"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"})
    for (const std::string layout : {"nhd", "hnd", "packed"}) {
      const std::string rest = turn % 2 == 0 ? "q=f32 kscale=tensor vscale=tensor" : "q=bf16 kscale=head vscale=head";
      const ProblemLine line = line_of(rest + " kv=" + kv + " layout=" + layout, "heads=4:2 d=32 page=8 lse=1 reqs=5@100,1@300");
      const simt::Device device{.wave = turn++ % 3 == 0 ? 64 : 32, .target_items = 30};
      const std::vector<std::string> findings = judge(line, on_device(device), Special::every_fp8_code);
      EXPECT_TRUE(findings.empty()) << report(line, findings);
    }
}

TEST(SimtSpecial, QueriesAndOutputsOfEightBits) {
  for (const std::string types :
       {"q=bf16 kv=bf16 layout=nhd out=fp8_e4m3fn", "q=f32 kv=fp8_e5m2 layout=hnd kscale=head vscale=head out=fp8_e4m3fn",
        "q=fp8_e4m3fn kv=fp8_e4m3fn layout=packed qscale=head kscale=tensor out=bf16",
        "q=fp8_e4m3fn kv=fp8_e4m3fn layout=nhd qscale=tensor vscale=head out=f32",
        "q=fp8_e4m3fn kv=fp8_e4m3fn layout=hnd qscale=head out=fp8_e4m3fn"})
    for (const std::string shape : {"heads=4:2 d=32 reqs=5@100,1@300 pad=2:zero", "heads=2:1 d=144 reqs=40@9,1@150 window=60"}) {
      const ProblemLine line = line_of(types, shape + " page=8 lse=1");
      const std::vector<std::string> findings = judge(line, on_device({.wave = 64, .target_items = 12}));
      EXPECT_TRUE(findings.empty()) << report(line, findings);
    }
}

// Several blocks of dims and several tiles of keys at once, which no hazard of the shared list asks for.
TEST(SimtSpecial, ManyDimsAndManyKeys) {
  for (const std::string types :
       {"q=f32 kv=f32 layout=nhd", "q=bf16 kv=bf16 layout=hnd", "q=f16 kv=fp8_e5m2 layout=packed vscale=head"})
    for (const std::string dims : {"144", "304"}) {
      const ProblemLine line = line_of(types, "heads=2:1 page=16 lse=1 reqs=5@150,1@100 d=" + dims);
      const std::vector<std::string> findings = judge(line, on_device({.wave = 64, .target_items = 6}));
      EXPECT_TRUE(findings.empty()) << report(line, findings);
    }
}

TEST(SimtSpecial, StalePagesLeftOfWindow) {
  int turn = 0;
  for (const ProblemLine& line : stale_page_lines()) {
    const simt::Device device{.wave = turn++ % 2 == 0 ? 64 : 32, .target_items = 8};
    const std::vector<std::string> findings = judge(line, on_device(device), Special::stale_pages);
    EXPECT_TRUE(findings.empty()) << "stale table entries in\n" << report(line, findings);
  }
}

TEST(SimtSpecial, HugeOffsets) {
  const ProblemLine line = line_of("q=f32 kv=fp8_e4m3fn layout=nhd kscale=tensor", "heads=4:2 d=32 page=16 lse=1 reqs=3@40,1@70");
  const std::vector<std::string> findings = judge(line, on_device({}), Special::huge_offsets);
  EXPECT_TRUE(findings.empty()) << report(line, findings);
}

constexpr const char* kShapes[] = {"heads=4:2 d=16 page=16 lse=1 reqs=40@300,1@500,7@3,25@0",
                                   "heads=6:2 d=24 page=5 window=40 alibi=1 sinks=1 cap=9 lse=1 reqs=30@133,1@90,17@120"};
constexpr const char* kTypes[] = {"q=f32 kv=f32 layout=nhd", "q=bf16 kv=bf16 layout=hnd",
                                  "q=f16 kv=fp8_e4m3fn layout=packed kscale=head"};

TEST(SimtSpecial, ARequestHasTheSameBitsAloneAndInABatch) {
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    const ProblemLine line = line_of(kTypes[i], kShapes[i % 2]);
    const std::vector<std::string> findings = judge_alone(made(line), on_device(kInvariant));
    EXPECT_TRUE(findings.empty()) << report(line, findings);
  }
}

TEST(SimtSpecial, ChunkingDoesNotChangeBits) {
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    const ProblemLine line = line_of(kTypes[i], kShapes[i % 2]);
    const std::vector<std::string> findings = judge_chunked(made(line), on_device(kInvariant));
    EXPECT_TRUE(findings.empty()) << report(line, findings);
  }
}

// Shows that fixed parts are needed: parts chosen by the present load do change bits, so the test above can fail.
TEST(SimtSpecial, ChosenPartsDoChangeBits) {
  const ProblemLine line = line_of(kTypes[0], "heads=2:1 d=16 page=16 lse=1 reqs=3@2000,1@9000");
  EXPECT_FALSE(judge_alone(made(line), on_device({.target_items = 8})).empty());
}

TEST(SimtSpecial, CachedLenDoesNotChangeBits) {
  for (const std::string types : {"q=f32 kv=f32 layout=nhd", "q=f16 kv=f16 layout=hnd", "q=bf16 kv=bf16 layout=packed"}) {
    std::map<std::int64_t, std::vector<std::uint32_t>> seen;
    for (const std::int64_t cached : {30, 35, 39}) {
      const Case c = made(line_of(types, "heads=4:2 d=16 page=8 lse=1 reqs=9@30/" + std::to_string(cached)));
      std::int64_t rows = 0;
      ASSERT_TRUE(on_device({})(c, 2, rows).ok());
      seen[cached] = bits_of(c.batch.output);
    }
    EXPECT_TRUE(seen[30] == seen[35] && seen[35] == seen[39]) << types;
  }
}

TEST(SimtSpecial, NaNInAVisibleKeyOrValueReachesItsRowsAndNoOthers) {
  const ProblemLine line = line_of("q=f32 kv=f32 layout=nhd", "heads=4:2 d=16 page=8 lse=1 reqs=70@20,1@20");
  for (const bool in_key : {true, false}) {
    const Case c = made(line);
    // Position 50 of request 0, KV head 1, dim 3: rows 30 and later of heads 2 and 3.
    const std::int64_t page = semantics::index_row(c.batch.block_table, 0)[50 / 8];
    const Tensor& cache = in_key ? c.cache.k : c.cache.v;
    semantics::store(cache.data, cache.dtype, ((page * 8 + 50 % 8) * 2 + 1) * 16 + 3, std::nanf(""));
    const std::vector<std::string> findings = judge(c, on_device({.split_keys = 64}));
    EXPECT_TRUE(findings.empty()) << "NaN in a " << (in_key ? "key" : "value") << " of\n" << report(line, findings);
  }
}

/// Sixteen bytes at a time against the definition: NaN for NaN, otherwise the same bits.
template <DType kType>
void expect_decoded() {
  constexpr int size = gpu::kItemSize<kType>, count = 16 / size;
  for (std::uint32_t first = 0; first < (size == 1 ? 256u : 65536u); first += count) {
    gpu::Bytes16 bytes{};
    for (std::uint32_t i = 0; i < count; ++i) bytes.word[i * size / 4] |= (first + i) << (i * size % 4 * 8);
    for (int i = 0; i < count; ++i) {
      const float expected = semantics::load(&bytes, kType, i), decoded = gpu::decode<kType>(bytes, i);
      EXPECT_TRUE((std::isnan(expected) && std::isnan(decoded)) ||
                  semantics::float_to_bits(expected) == semantics::float_to_bits(decoded))
          << name(kType) << " code " << first + static_cast<std::uint32_t>(i);
    }
  }
}

TEST(SimtSpecial, EveryCodeDecodesAsDefined) {
  expect_decoded<DType::f16>();
  expect_decoded<DType::bf16>();
  expect_decoded<DType::fp8_e4m3fn>();
  expect_decoded<DType::fp8_e4m3fnuz>();
  expect_decoded<DType::fp8_e5m2>();
  expect_decoded<DType::fp8_e5m2fnuz>();
}

}  // namespace
}  // namespace quire::test
