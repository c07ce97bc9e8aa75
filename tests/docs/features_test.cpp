// SPDX-License-Identifier: Apache-2.0
// docs/reference/features.md says which kernel serves which feature, why others do not, and which test shows it. The tables are
// written from what the rows of the kernel table say of a problem line with that feature.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "quire/plan.hpp"
#include "support/golden.h"

namespace quire::test {
namespace {

constexpr const char* kBegin = "QUIRE_UPDATE_GOLDENS=1 rewrites it -->\n";
constexpr const char* kEnd = "<!-- /features -->\n";

struct Feature {
  const char* name;
  const char* line;   ///< a problem with this feature and nothing else that is unusual
  const char* shown;  ///< file of a test, or of hazards, and a word in it: "tests/x_test.cpp Name"
};
#define QUIRE_ROWS " reqs=4x1@2047,64@960"
#define QUIRE_HAZARD "src/verify/hazards.cpp "
constexpr Feature kFeatures[] = {
    {"f16 or bf16, head_dim 64, 128, 256", "q=bf16 heads=32:8 d=128 page=16" QUIRE_ROWS, QUIRE_HAZARD "WideHeadsManyKeys"},
    {"f32", "q=f32 heads=32:8 d=128 page=16" QUIRE_ROWS, QUIRE_HAZARD "SplitKv"},
    {"any other head_dim", "q=bf16 heads=32:8 d=80 page=16" QUIRE_ROWS, QUIRE_HAZARD "OddHeadDim"},
    {"head_dim 512", "q=bf16 heads=16:2 d=512 page=16" QUIRE_ROWS, QUIRE_HAZARD "OddHeadDim"},
    {"head_dim 256, fp8 cache", "q=bf16 kv=fp8_e4m3fn heads=16:2 d=256 page=16" QUIRE_ROWS, QUIRE_HAZARD "WideHeadsManyKeys"},
    {"fp8_e4m3fn, fp8_e5m2 caches", "q=bf16 kv=fp8_e5m2 heads=32:8 d=128 page=16 kscale=head vscale=head" QUIRE_ROWS,
     QUIRE_HAZARD "Fp8Extremes"},
    {"fp8 caches of AMD (fnuz)", "q=f16 kv=fp8_e4m3fnuz heads=32:8 d=128 page=16" QUIRE_ROWS, QUIRE_HAZARD "Fp8Extremes"},
    {"scale for each token, fp8 cache", "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 kscale=token vscale=token" QUIRE_ROWS,
     "src/verify/cache_forms.cpp TokenScales"},
    {"scale for each token, int8 cache", "q=bf16 kv=i8 heads=32:8 d=128 page=16 kscale=token vscale=token" QUIRE_ROWS,
     "src/verify/cache_forms.cpp TokenScales"},
    {"K and V of unlike types", "q=bf16 kv=fp8_e4m3fn/bf16 heads=32:8 d=128 page=16" QUIRE_ROWS,
     "src/verify/cache_forms.cpp UnlikeTypes"},
    {"nvfp4 and mxfp4 caches", "q=bf16 kv=nvfp4 heads=32:8 d=128 page=16" QUIRE_ROWS, "src/verify/cache_forms.cpp FourBits"},
    {"int8 cache with other scales", "q=bf16 kv=i8 heads=32:8 d=128 page=16 kscale=head vscale=tensor" QUIRE_ROWS,
     "src/verify/cache_forms.cpp IntegerExtremes"},
    {"fp8 output", "q=bf16 out=fp8_e4m3fn heads=32:8 d=128 page=16" QUIRE_ROWS, "src/verify/row_types.cpp EightBitRows"},
    {"fp8 query and output", "q=fp8_e4m3fn kv=fp8_e4m3fn out=fp8_e4m3fn heads=32:8 d=128 page=16 qscale=head" QUIRE_ROWS,
     "src/verify/row_types.cpp EightBitRows"},
    {"f32 output of a 16-bit query", "q=bf16 out=f32 heads=32:8 d=128 page=16" QUIRE_ROWS,
     "tests/kernels/masks_test.cpp MergeToTheWhole"},
    {"pages of 1, 5, ... tokens", "q=bf16 heads=32:8 d=128 page=5" QUIRE_ROWS, QUIRE_HAZARD "OddPage"},
    {"vLLM's packed layout", "q=bf16 heads=32:8 d=128 page=16 layout=packed" QUIRE_ROWS,
     "tests/simt/matrix_packed_test.cpp Packed"},
    {"multi-query attention, 64 heads on one", "q=bf16 heads=64:1 d=128 page=16" QUIRE_ROWS, QUIRE_HAZARD "OddGroup"},
    {"sliding window", "q=bf16 heads=32:8 d=128 page=16 window=512" QUIRE_ROWS, QUIRE_HAZARD "OutOfWindowNaN"},
    {"soft cap, ALiBi, sinks", "q=bf16 heads=32:8 d=128 page=16 cap=30 alibi=1 sinks=1" QUIRE_ROWS,
     QUIRE_HAZARD "EverythingAtOnce"},
    {"new keys beside the cache", "q=bf16 heads=32:8 d=128 page=16 reqs=4x1@2047/2047,64@960/960",
     QUIRE_HAZARD "CachedLenBetween"},
    {"padding rows", "q=bf16 heads=32:8 d=128 page=16 pad=9:zero" QUIRE_ROWS, QUIRE_HAZARD "PaddedRows"},
    {"not causal, every key seen", "q=bf16 heads=32:8 d=128 page=16 causal=0 reqs=64@960", QUIRE_HAZARD "NonCausal"},
    {"causal by request", "q=bf16 heads=32:8 d=128 page=16 causal=1,0 reqs=16@400,90@20", QUIRE_HAZARD "CausalByRequest"},
    {"keys independent of rows (cross attention)", "q=bf16 heads=32:8 d=128 page=16 causal=0 reqs=64:700,9:3",
     QUIRE_HAZARD "NonCausal"},
    {"requests without keys", "q=bf16 heads=32:8 d=128 page=16 causal=0 reqs=5:0,64@960", QUIRE_HAZARD "NoKeys"},
    {"not causal, window on both sides", "q=bf16 heads=32:8 d=128 page=16 causal=0 window=64 wright=64 reqs=64@960",
     QUIRE_HAZARD "WindowBothSides"},
    {"positions of rows and keys as data, stripes of a context",
     "q=bf16 heads=32:8 d=128 page=16 reqs=20:2048 kbegin=2048 qbegin=4076", QUIRE_HAZARD "ContextShard"},
    {"chunked local attention", "q=bf16 heads=32:8 d=128 page=16 chunk=512" QUIRE_ROWS, QUIRE_HAZARD "Chunks"},
    {"streaming sinks: first keys always visible", "q=bf16 heads=32:8 d=128 page=16 window=512 prefix=4" QUIRE_ROWS,
     QUIRE_HAZARD "VisiblePrefix"},
    {"R-SWA: prompt visible behind a window", "q=bf16 heads=32:8 d=128 page=16 window=512 prefix=900,900,64 reqs=2x1@2047,64@960",
     QUIRE_HAZARD "VisiblePrefix"},
    {"bidirectional spans (images)", "q=bf16 heads=32:8 d=128 page=16 spans=4:0-128,4:970-1000" QUIRE_ROWS, QUIRE_HAZARD "Spans"},
    {"prefix LM", "q=bf16 heads=32:8 d=128 page=16 spans=0:0-300 reqs=400", QUIRE_HAZARD "Spans"},
    {"tree masks of draft tokens", "q=bf16 heads=32:8 d=128 page=16 tree=64 reqs=4x64@960", QUIRE_HAZARD "Trees"},
    {"V of another head_dim: MLA's prefill (192, 128)", "q=bf16 heads=32:8 d=192 dv=128 page=16" QUIRE_ROWS,
     QUIRE_HAZARD "OwnHeadDimOfV"},
    {"absorbed MLA (576, 512)", "q=bf16 heads=128:1 d=576 dv=512 page=64 latent=1" QUIRE_ROWS, QUIRE_HAZARD "VInRowsOfK"},
    {"FlashMLA's fp8 rows of 656 bytes", "q=bf16 kv=fp8_ds_mla heads=128:1 d=576 dv=512 page=64 latent=1" QUIRE_ROWS,
     "src/verify/cache_forms.cpp LatentRows"},
    {"lists of pages (as block tables)", "q=bf16 heads=32:8 d=128 page=16 reqs=68x1@511",
     "tests/sparse/attend_test.cpp TunedKernelsServeListsOnGpus"},
    {"lists of slots (as pages of one token)", "q=bf16 heads=8:1 d=128 page=1 reqs=68x1@511",
     "tests/sparse/attend_test.cpp TunedKernelsServeListsOnGpus"},
    {"lists of slots, MLA", "q=bf16 heads=128:1 d=576 dv=512 page=1 latent=1 reqs=68x1@2047",
     "tests/sparse/attend_test.cpp TunedKernelsServeListsOnGpus"},
    {"a level of shared prefixes (cascade)", "q=bf16 heads=32:8 d=128 page=16 causal=0 lse=1 reqs=64:2048",
     "tests/cascade/attend_test.cpp EqualsFp64"},
};
#undef QUIRE_ROWS
#undef QUIRE_HAZARD

struct Column {
  const char* kernel;
  const char* device;
  const char* fallback;  ///< the kernel of the same backend that takes every valid problem
};
constexpr Column kColumns[] = {
    {"cpu_avx512", "avx512", "cpu_generic"},   {"cpu_amx", "amx", "cpu_generic"},        {"cuda_sm90", "sm90", "cuda_generic"},
    {"cuda_sm90_mla", "sm90", "cuda_generic"}, {"cuda_mma", "sm90", "cuda_generic"},     {"cuda_generic", "sm90", "cuda_generic"},
    {"hip_matrix", "gfx942", "hip_generic"},   {"hip_generic", "gfx942", "hip_generic"},
};

bool takes(const char* kernel, const char* device, const Problem& problem) {
  PlanSettings settings;
  settings.kernel = kernel;
  return plan(problem, find_device(device).value(), settings).ok();
}

/// What becomes of the problem where the column's kernel would serve it.
std::string_view outcome(const Column& c, const Problem& problem) {
  if (takes(c.kernel, c.device, problem)) return "served";
  return takes(c.fallback, c.device, problem) ? "falls back" : "refused";
}

/// The conditions that a kernel says are not met.
std::string reasons(const Column& c, const Problem& problem) {
  std::string text;
  for (const Refusal& refusal : explain(problem, find_device(c.device).value()).refusals)
    if (refusal.kernel == c.kernel) text += (text.empty() ? "" : "; ") + refusal.reason;
  return text;
}

/// A name for readers: that of the hazard, or of the test and its file.
std::string shown_by(const Feature& f) {
  const std::string text = f.shown;
  const std::size_t blank = text.find(' ');
  const std::string file = text.substr(0, blank), word = text.substr(blank + 1);
  return file.starts_with("src/verify/") ? fmt::format("hazard `{}`", word) : fmt::format("`{}`", word);
}

Problem problem_of(const Feature& f) {
  const Result<ProblemLine> line = parse_problem_line(f.line);
  EXPECT_TRUE(line.ok()) << f.name << ": " << line.status().message();
  return line.ok() ? line->problem : Problem{};
}

std::string outcomes() {
  std::string text = "\n| feature |", rule = "|---|";
  for (const Column& c : kColumns) text += fmt::format(" `{}` |", c.kernel), rule += "---|";
  text += " shown by |\n" + rule + "---|\n";
  for (const Feature& f : kFeatures) {
    text += fmt::format("| {} |", f.name);
    for (const Column& c : kColumns) text += fmt::format(" {} |", outcome(c, problem_of(f)));
    text += fmt::format(" {} |\n", shown_by(f));
  }
  return text;
}

/// Kernels that say the same stand together.
std::string refusals() {
  std::string text = "\n| feature and its problem line | who refuses, and why |\n|---|---|\n";
  for (const Feature& f : kFeatures) {
    std::vector<std::pair<std::string, std::string>> by_reason;  // reasons, kernels
    for (const Column& c : kColumns) {
      if (takes(c.kernel, c.device, problem_of(f))) continue;
      const std::string why = reasons(c, problem_of(f));
      EXPECT_FALSE(why.empty()) << c.kernel << " refuses " << f.line << " without a reason";
      const auto same = std::find_if(by_reason.begin(), by_reason.end(), [&](const auto& r) { return r.first == why; });
      if (same == by_reason.end())
        by_reason.emplace_back(why, fmt::format("`{}`", c.kernel));
      else
        same->second += fmt::format(", `{}`", c.kernel);
    }
    text += fmt::format("| {}<br>`{}` |", f.name, f.line);
    for (std::size_t i = 0; i < by_reason.size(); ++i)
      text += fmt::format("{}{}: {}", i == 0 ? " " : "<br>", by_reason[i].second, by_reason[i].first);
    text += by_reason.empty() ? " nobody |\n" : " |\n";
  }
  return text;
}

std::string table() {
  return outcomes() +
         "\n## What the kernels say\n\nOf each feature the problem line that was asked about, and the conditions that a kernel "
         "gives where it refuses:\n" +
         refusals() + "\n";
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

/// Promise 1 of docs/design.md: a generic kernel of every backend takes every valid problem.
TEST(FeaturesPage, GenericKernelsTakeEveryFeature) {
  for (const Feature& f : kFeatures)
    for (const Column& c : kColumns) EXPECT_TRUE(takes(c.fallback, c.device, problem_of(f))) << c.fallback << ": " << f.name;
}

TEST(FeaturesPage, TheTestsThatItNamesAreThere) {
  for (const Feature& f : kFeatures) {
    const std::string text = f.shown;
    const std::size_t blank = text.find(' ');
    const std::string file = read_text(std::filesystem::path(QUIRE_SOURCE_DIR) / text.substr(0, blank));
    EXPECT_NE(file.find(text.substr(blank + 1)), std::string::npos) << f.shown;
  }
}

}  // namespace
}  // namespace quire::test
