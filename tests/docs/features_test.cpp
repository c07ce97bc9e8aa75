// SPDX-License-Identifier: Apache-2.0
// docs/reference/features.md says which kernel takes which feature; the table is written from what the rows of the kernel table
// take of a problem line with that feature.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "quire/plan.hpp"
#include "support/golden.h"

namespace quire::test {
namespace {

constexpr const char* kBegin = "QUIRE_UPDATE_GOLDENS=1 rewrites it -->\n";
constexpr const char* kEnd = "<!-- /features -->\n";

struct Feature {
  const char* name;
  const char* line;  ///< a problem with this feature and nothing else that is unusual
};
#define QUIRE_ROWS " reqs=4x1@2047,64@960"
constexpr Feature kFeatures[] = {
    {"f16 or bf16, head_dim 64, 128, 256", "q=bf16 heads=32:8 d=128 page=16" QUIRE_ROWS},
    {"f32", "q=f32 heads=32:8 d=128 page=16" QUIRE_ROWS},
    {"any other head_dim", "q=bf16 heads=32:8 d=80 page=16" QUIRE_ROWS},
    {"head_dim 512", "q=bf16 heads=16:2 d=512 page=16" QUIRE_ROWS},
    {"head_dim 256, fp8 cache", "q=bf16 kv=fp8_e4m3fn heads=16:2 d=256 page=16" QUIRE_ROWS},
    {"fp8_e4m3fn, fp8_e5m2 caches", "q=bf16 kv=fp8_e5m2 heads=32:8 d=128 page=16 kscale=head vscale=head" QUIRE_ROWS},
    {"fp8 caches of AMD (fnuz)", "q=f16 kv=fp8_e4m3fnuz heads=32:8 d=128 page=16" QUIRE_ROWS},
    {"scale for each token, fp8 cache", "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 kscale=token vscale=token" QUIRE_ROWS},
    {"scale for each token, int8 cache", "q=bf16 kv=i8 heads=32:8 d=128 page=16 kscale=token vscale=token" QUIRE_ROWS},
    {"K and V of unlike types", "q=bf16 kv=fp8_e4m3fn/bf16 heads=32:8 d=128 page=16" QUIRE_ROWS},
    {"nvfp4 and mxfp4 caches", "q=bf16 kv=nvfp4 heads=32:8 d=128 page=16" QUIRE_ROWS},
    {"int8 cache with other scales", "q=bf16 kv=i8 heads=32:8 d=128 page=16 kscale=head vscale=tensor" QUIRE_ROWS},
    {"fp8 query and output", "q=fp8_e4m3fn kv=fp8_e4m3fn out=fp8_e4m3fn heads=32:8 d=128 page=16 qscale=head" QUIRE_ROWS},
    {"f32 output of a 16-bit query", "q=bf16 out=f32 heads=32:8 d=128 page=16" QUIRE_ROWS},
    {"pages of 1, 5, ... tokens", "q=bf16 heads=32:8 d=128 page=5" QUIRE_ROWS},
    {"vLLM's packed layout", "q=bf16 heads=32:8 d=128 page=16 layout=packed" QUIRE_ROWS},
    {"multi-query attention, 64 heads on one", "q=bf16 heads=64:1 d=128 page=16" QUIRE_ROWS},
    {"sliding window", "q=bf16 heads=32:8 d=128 page=16 window=512" QUIRE_ROWS},
    {"soft cap, ALiBi, sinks", "q=bf16 heads=32:8 d=128 page=16 cap=30 alibi=1 sinks=1" QUIRE_ROWS},
    {"new keys beside the cache", "q=bf16 heads=32:8 d=128 page=16 reqs=4x1@2047/2047,64@960/960"},
    {"padding rows", "q=bf16 heads=32:8 d=128 page=16 pad=9:zero" QUIRE_ROWS},
    {"not causal, every key seen", "q=bf16 heads=32:8 d=128 page=16 causal=0 reqs=64@960"},
    {"causal by request", "q=bf16 heads=32:8 d=128 page=16 causal=1,0 reqs=16@400,90@20"},
    {"not causal, window on both sides", "q=bf16 heads=32:8 d=128 page=16 causal=0 window=64 wright=64 reqs=64@960"},
    {"positions of rows and keys as data", "q=bf16 heads=32:8 d=128 page=16 reqs=20:2048 kbegin=2048 qbegin=4076"},
    {"chunked local attention", "q=bf16 heads=32:8 d=128 page=16 chunk=512" QUIRE_ROWS},
    {"always visible first keys, prompt visible behind a window",
     "q=bf16 heads=32:8 d=128 page=16 window=512 prefix=4" QUIRE_ROWS},
    {"bidirectional spans, prefix LM", "q=bf16 heads=32:8 d=128 page=16 spans=4:0-128,4:970-1000" QUIRE_ROWS},
    {"tree masks of draft tokens", "q=bf16 heads=32:8 d=128 page=16 tree=64 reqs=4x64@960"},
    {"V of another head_dim (192, 128)", "q=bf16 heads=32:8 d=192 dv=128 page=16" QUIRE_ROWS},
    {"absorbed MLA (576, 512)", "q=bf16 heads=128:1 d=576 dv=512 page=64 latent=1" QUIRE_ROWS},
};
#undef QUIRE_ROWS

struct Column {
  const char* kernel;
  const char* device;
};
constexpr Column kColumns[] = {{"cpu_avx512", "avx512"},  {"cpu_amx", "amx"},       {"cuda_sm90", "sm90"},
                               {"cuda_sm90_mla", "sm90"}, {"cuda_mma", "sm90"},     {"cuda_generic", "sm90"},
                               {"hip_matrix", "gfx942"},  {"hip_generic", "gfx942"}};

bool takes(const Column& column, const Problem& problem) {
  PlanSettings settings;
  settings.kernel = column.kernel;
  return plan(problem, find_device(column.device).value(), settings).ok();
}

std::string table() {
  std::string text = "\n| feature |", rule = "|---|";
  for (const Column& c : kColumns) text += fmt::format(" `{}` |", c.kernel), rule += "---|";
  text += "\n" + rule + "\n";
  for (const Feature& f : kFeatures) {
    const Result<ProblemLine> line = parse_problem_line(f.line);
    EXPECT_TRUE(line.ok()) << f.name << ": " << line.status().message();
    if (!line.ok()) continue;
    text += fmt::format("| {} |", f.name);
    for (const Column& c : kColumns) text += takes(c, line->problem) ? " yes |" : " |";
    text += "\n";
  }
  return text + "\n";
}

/// Puts `text` between the markers; returns what was there.
std::string swap(std::string& page, const std::string& text) {
  const std::size_t marker = page.find(kBegin), end = page.find(kEnd);
  if (marker == std::string::npos || end == std::string::npos) return "the markers are gone";
  const std::size_t begin = marker + std::string(kBegin).size();
  std::string old = page.substr(begin, end - begin);
  page.replace(begin, end - begin, text);
  return old;
}

TEST(FeaturesPage, SaysWhatEachKernelTakes) {
  const std::filesystem::path path = std::filesystem::path(QUIRE_SOURCE_DIR) / "docs/reference/features.md";
  std::string page = read_text(path);
  const std::string documented = swap(page, table());
  if (updating_goldens()) {
    std::ofstream(path, std::ios::binary) << page;
    return;
  }
  EXPECT_EQ(documented, table()) << "QUIRE_UPDATE_GOLDENS=1 rewrites the page";
}

/// Promise 1 of docs/design.md: a generic kernel of every backend takes every valid problem; those of GPUs, all but caches of 4
/// bits.
TEST(FeaturesPage, GenericKernelsTakeEveryFeature) {
  for (const Feature& f : kFeatures)
    for (const Column& c : {Column{"cpu_avx512", "avx512"}, Column{"cuda_generic", "sm90"}, Column{"hip_generic", "gfx942"}}) {
      const Problem problem = parse_problem_line(f.line)->problem;
      EXPECT_EQ(takes(c, problem), c.kernel == std::string_view("cpu_avx512") || !problem.has_block_scales())
          << c.kernel << ": " << f.name;
    }
}

}  // namespace
}  // namespace quire::test
