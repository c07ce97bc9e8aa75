// SPDX-License-Identifier: Apache-2.0
// explain_as_vllm(): the predicate condition by condition, the table of typical shapes, and each hazard note.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "quire/plan.hpp"
#include "quire/predict.hpp"
#include "support/golden.h"

namespace quire {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kCustom = "paged_attention_rocm";
constexpr const char* kTriton = "kernel_paged_attention_2d";
constexpr const char* kArchs[] = {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"};

/// bf16, D 128, 32:8 heads, packed pages of 16: every architecture takes its custom kernel.
Problem decode(std::int64_t context = 1023) {
  Problem p;
  p.num_q_heads = 32;
  p.num_kv_heads = 8;
  p.head_dim = 128;
  p.page_size = 16;
  p.layout = CacheLayout::packed;
  p.reqs = {{1, context, context + 1}, {1, context, context + 1}};
  return p;
}

VllmChoice ask(const Problem& p, std::string_view arch) {
  const Result<VllmChoice> choice = explain_as_vllm(p, arch);
  EXPECT_TRUE(choice.ok()) << choice.status().message();
  return choice.ok() ? choice.value() : VllmChoice{};
}

TEST(ExplainAsVllm, PlainDecodeGetsTheCustomKernelEverywhere) {
  for (const char* arch : kArchs) {
    const VllmChoice choice = ask(decode(), arch);
    EXPECT_EQ(choice.decode_kernel, kCustom) << arch;
    EXPECT_THAT(choice.failed, IsEmpty()) << arch;
    EXPECT_EQ(choice.prefill_kernel, "") << arch;
  }
}

// One change at a time: exactly that condition is reported.
struct Mutation {
  const char* name;
  void (*apply)(Problem&);
  const char* gfx942;  // reason, or nullptr if the custom kernel stays
  const char* gfx1100;
};
const Mutation kMutations[] = {
    {"window", [](Problem& p) { p.sliding_window = 4096; }, "sliding_window = 4096 is set", "sliding_window = 4096 is set"},
    {"f32", [](Problem& p) { p.q_dtype = p.kv_dtype = DType::f32; }, "query dtype = f32 is not f16 or bf16",
     "query dtype = f32 is not f16 or bf16"},
    {"f16", [](Problem& p) { p.q_dtype = p.kv_dtype = DType::f16; }, nullptr, nullptr},
    {"d64", [](Problem& p) { p.head_dim = 64; }, nullptr, "head_dim = 64 is not 128"},
    {"d256", [](Problem& p) { p.head_dim = 256; }, "head_dim = 256 is not 64 or 128", "head_dim = 256 is not 128"},
    {"page8", [](Problem& p) { p.page_size = 8; }, "page_size = 8 is not 16 or 32", "page_size = 8 is not 16"},
    {"page32", [](Problem& p) { p.page_size = 32; }, nullptr, "page_size = 32 is not 16"},
    {"g1", [](Problem& p) { p.num_kv_heads = 32; }, nullptr, "G = 1 outside 3..16"},
    {"g2", [](Problem& p) { p.num_kv_heads = 16; }, nullptr, "G = 2 outside 3..16"},
    {"g3", [](Problem& p) { p.num_q_heads = 24; }, nullptr, nullptr},
    {"g16", [](Problem& p) { p.num_q_heads = 128; }, nullptr, nullptr},
    {"g17", [](Problem& p) { p.num_q_heads = 136; }, "G = 17 outside 1..16", "G = 17 outside 3..16"},
    {"g64", [](Problem& p) { p.num_q_heads = 64, p.num_kv_heads = 1; }, "G = 64 outside 1..16", "G = 64 outside 3..16"},
    {"longest", [](Problem& p) { p.reqs[1] = {1, 131071, 131072}; }, nullptr, nullptr},
    {"too_long", [](Problem& p) { p.reqs[1] = {1, 131072, 131073}; }, "max_seq_len = 131073 over 131072",
     "max_seq_len = 131073 over 131072"},
    {"alibi", [](Problem& p) { p.alibi = true; }, nullptr, "alibi_slopes are given"},
    {"fp8", [](Problem& p) { p.kv_dtype = DType::fp8_e4m3fnuz; }, nullptr, "kv_cache_dtype = fp8 is not auto"},
    {"e5m2", [](Problem& p) { p.kv_dtype = DType::fp8_e5m2; }, nullptr, "kv_cache_dtype = fp8_e5m2 is not auto"},
    {"sinks", [](Problem& p) { p.sinks = true; }, "sinks are given", "sinks are given"},
    {"soft_cap", [](Problem& p) { p.logits_soft_cap = 30.0f; }, nullptr, nullptr},
};

TEST(ExplainAsVllm, EachConditionAloneIsReportedAlone) {
  for (const Mutation& m : kMutations) {
    Problem p = decode();
    m.apply(p);
    for (const auto& [archs, expected] : {std::pair{std::vector{"gfx90a", "gfx942", "gfx950"}, m.gfx942},
                                          std::pair{std::vector{"gfx1100", "gfx1201"}, m.gfx1100}}) {
      for (const char* arch : archs) {
        const VllmChoice choice = ask(p, arch);
        if (expected == nullptr) {
          EXPECT_EQ(choice.decode_kernel, kCustom) << m.name << ' ' << arch;
          EXPECT_THAT(choice.failed, IsEmpty()) << m.name << ' ' << arch;
        } else {
          EXPECT_EQ(choice.decode_kernel, kTriton) << m.name << ' ' << arch;
          EXPECT_THAT(choice.failed, ElementsAre(expected)) << m.name << ' ' << arch;
        }
      }
    }
  }
}

TEST(ExplainAsVllm, EveryFailedConditionIsListed) {
  Problem p = decode(200000);
  p.sliding_window = 16;
  p.q_dtype = DType::f32;
  p.kv_dtype = DType::fp8_e4m3fn;
  p.head_dim = 256;
  p.page_size = 64;
  p.num_q_heads = 64;
  p.num_kv_heads = 1;
  p.alibi = p.sinks = true;
  EXPECT_THAT(ask(p, "gfx1201").failed,
              ElementsAre("sliding_window = 16 is set", "query dtype = f32 is not f16 or bf16", "head_dim = 256 is not 128",
                          "page_size = 64 is not 16", "G = 64 outside 3..16", "max_seq_len = 200001 over 131072",
                          "alibi_slopes are given", "kv_cache_dtype = fp8 is not auto", "sinks are given"));
  EXPECT_EQ(ask(p, "gfx942").failed.size(), 7u);
}

// The decisions for typical model shapes, bf16: columns gfx942, gfx1100, gfx1201.
struct Shape {
  const char* name;
  void (*apply)(Problem&);
  const char* kernel[3];
};
const Shape kShapes[] = {
    {"D128 G1 page 16", [](Problem& p) { p.num_kv_heads = 32; }, {kCustom, kTriton, kTriton}},
    {"D128 G4 page 16", [](Problem&) {}, {kCustom, kCustom, kCustom}},
    {"D128 G4 page 32", [](Problem& p) { p.page_size = 32; }, {kCustom, kTriton, kTriton}},
    {"D128 G8 page 16 fp8",
     [](Problem& p) { p.num_kv_heads = 4, p.kv_dtype = DType::fp8_e4m3fnuz; },
     {kCustom, kTriton, kTriton}},
    {"D64 G8 sinks", [](Problem& p) { p.num_q_heads = 64, p.head_dim = 64, p.sinks = true; }, {kTriton, kTriton, kTriton}},
    {"D256", [](Problem& p) { p.head_dim = 256; }, {kTriton, kTriton, kTriton}},
    {"G64", [](Problem& p) { p.num_q_heads = 64, p.num_kv_heads = 1; }, {kTriton, kTriton, kTriton}},
    {"window 4096", [](Problem& p) { p.sliding_window = 4096; }, {kTriton, kTriton, kTriton}},
    {"context 200k", [](Problem& p) { p.reqs = {{1, 200000, 200001}}; }, {kTriton, kTriton, kTriton}},
};

TEST(ExplainAsVllm, TypicalShapes) {
  std::string table;
  for (const Shape& shape : kShapes) {
    Problem p = decode();
    shape.apply(p);
    const char* archs[] = {"gfx942", "gfx1100", "gfx1201"};
    for (int i = 0; i < 3; ++i) {
      const VllmChoice choice = ask(p, archs[i]);
      EXPECT_EQ(choice.decode_kernel, shape.kernel[i]) << shape.name << ' ' << archs[i];
      table += "## " + std::string(shape.name) + "\n" + choice.text + "\n";
    }
  }
  test::expect_golden("tests/plan/goldens/vllm_typical_shapes.txt", table);
}

TEST(ExplainAsVllm, RowsAreSplitByQueryLen) {
  Problem p = decode();
  p.reqs = {{880, 430, 1310}, {1, 929, 930}, {2, 5, 7}};
  const VllmChoice choice = ask(p, "gfx942");
  EXPECT_EQ(choice.prefill_kernel, "context_attention_fwd");
  EXPECT_EQ(choice.decode_kernel, kCustom);
  EXPECT_THAT(choice.text, HasSubstr("context_attention_fwd (882 rows of 2 requests)"));
  EXPECT_THAT(choice.text, HasSubstr("paged_attention_rocm (1 rows)"));
}

// Each hazard: its trigger, and that without the trigger it is not claimed.
struct Hazard {
  const char* name;
  const char* arch;
  void (*apply)(Problem&);
  const char* note;
};
void prefill(Problem& p) { p.reqs = {{300, 40, 340}, {1, 1023, 1024}}; }
const Hazard kHazards[] = {
    {"e5m2", "gfx942", [](Problem& p) { p.kv_dtype = DType::fp8_e5m2; }, "TORCH_CHECK against kv_cache_dtype fp8_e5m2"},
    {"e5m2 view", "gfx1100", [](Problem& p) { p.kv_dtype = DType::fp8_e5m2; }, "must be handed over as uint8"},
    {"fn read as fnuz", "gfx942", [](Problem& p) { p.kv_dtype = DType::fp8_e4m3fn; }, "every e4m3fn value halves"},
    {"fnuz read as fn", "gfx950", [](Problem& p) { p.kv_dtype = DType::fp8_e4m3fnuz; }, "every e4m3fnuz value doubles"},
    {"no fp8", "gfx90a", [](Problem& p) { p.kv_dtype = DType::fp8_e4m3fn; }, "supports_fp8 = false on gfx90a"},
    {"no such cache", "gfx942", [](Problem& p) { p.kv_dtype = DType::fp8_e5m2fnuz; },
     "vLLM has no fp8_e5m2fnuz cache for bf16 queries"},
    {"layout", "gfx942", [](Problem& p) { p.layout = CacheLayout::nhd; }, "these ops need the packed layout; a nhd cache"},
    {"x", "gfx942", [](Problem& p) { p.head_dim = 120, p.kv_dtype = DType::fp8_e4m3fnuz; },
     "head_dim 120 is not a multiple of x = 16, the last 8 dims"},
    {"512 threads", "gfx942", [](Problem& p) { p.num_q_heads = p.num_kv_heads = 64; },
     "512 threads for 1024 (head, x-chunk) pairs, so from KV head 32 on"},
    {"per-head scale", "gfx942", [](Problem& p) { p.v_scale = ScaleKind::per_head; }, "per-head scales are ignored"},
    {"head_dim set", "gfx942", [](Problem& p) { p.head_dim = 24; }, "ROCM_ATTN refuses head_dim 24"},
    {"page set", "gfx942", [](Problem& p) { p.page_size = 5; }, "ROCM_ATTN refuses page_size 5"},
    {"page pow2", "gfx942", [](Problem& p) { p.page_size = 544; }, "page_size 544 is not a power of two"},
    {"cap", "gfx942", [](Problem& p) { p.logits_soft_cap = 30.0f; }, "neither prefill nor decode op takes a logits soft cap"},
    {"lse", "gfx942", [](Problem& p) { p.lse = true; }, "neither op returns an lse"},
    {"window minus one", "gfx942", [](Problem& p) { p.sliding_window = 16; }, "a query sees 15 keys instead of 16"},
    {"window one", "gfx942", [](Problem& p) { p.sliding_window = 1; }, "passes W - 1 = 0"},
    {"window left of", "gfx942", [](Problem& p) { p.sliding_window = 16; },
     "walks every page and loads those left of the window"},
    {"window leak", "gfx942", [](Problem& p) { p.sliding_window = 16; }, "masked with -10000"},
    {"alibi window", "gfx942", [](Problem& p) { prefill(p), p.alibi = true, p.sliding_window = 16; },
     "the ALiBi prefill kernel has no window, sliding_window = 16 is ignored"},
    {"alibi slopes", "gfx942", [](Problem& p) { prefill(p), p.alibi = true; }, "silently wrong for negative slopes"},
    {"alibi sinks", "gfx942", [](Problem& p) { prefill(p), p.alibi = p.sinks = true; },
     "asserts that sinks and ALiBi do not come together"},
    {"query_len 0", "gfx1100", [](Problem& p) { p.page_size = 32, p.reqs[0] = {0, 64, 64}; },
     "query_len 0 overwrites the first row"},
    {"starved decode", "gfx942", [](Problem& p) { p.reqs[1].cached_len = 1023; }, "request 1 has cached_len 1023 of 1024"},
    {"speculative", "gfx942", [](Problem& p) { p.reqs[1] = {4, 1000, 1004}; }, "go through the prefill kernel"},
    {"no decode rows", "gfx942", [](Problem& p) { p.reqs = {{64, 0, 64}}; }, "launched all the same and serves no row"},
    {"tail", "gfx942", [](Problem& p) { p.reqs[0] = {1, 1000, 1001}; }, "paged_attention_rocm multiplies the stale tail"},
    {"tail 2d", "gfx1100", [](Problem& p) { p.head_dim = 64, p.reqs[0] = {1, 1000, 1001}; },
     "kernel_paged_attention_2d multiplies the stale tail"},
    {"others change", "gfx942", [](Problem& p) { p.reqs[0] = {1, 199999, 200000}; }, "1 of 2 requests pass 131072 tokens"},
    {"no split", "gfx1100", [](Problem& p) { p.head_dim = 64, p.reqs[0] = {1, 8191, 8192}; }, "does not split over keys"},
    {"index wrap", "gfx942", [](Problem& p) { p.num_q_heads = 64, p.reqs.assign(1024, {1, 131071, 131072}); },
     "past the 32-bit index"},
    {"big buffer", "gfx942", [](Problem& p) { p.num_q_heads = 64, p.reqs.assign(256, {1, 131071, 131072}); },
     "tmp_out alone takes 2.0 GiB"},
};

TEST(ExplainAsVllm, EachHazardHasATriggerAndNoFalseAlarm) {
  for (const Hazard& h : kHazards) {
    Problem p = decode();
    EXPECT_THAT(ask(p, h.arch).notes, Not(Contains(HasSubstr(h.note)))) << h.name << ": claimed without its trigger";
    h.apply(p);
    EXPECT_THAT(ask(p, h.arch).notes, Contains(HasSubstr(h.note))) << h.name;
  }
}

TEST(ExplainAsVllm, CustomKernelSaysThatOneLongRequestMovesTheBatch) {
  EXPECT_THAT(ask(decode(), "gfx942").notes, Contains(HasSubstr("one longer request moves every decode row")));
}

TEST(ExplainAsVllm, RunTimeFailuresComeFirst) {
  Problem p = decode();
  prefill(p);
  p.alibi = p.sinks = true;
  p.sliding_window = 64;
  const VllmChoice choice = ask(p, "gfx942");
  ASSERT_GE(choice.notes.size(), 3u);
  EXPECT_THAT(choice.notes[0], StartsWith("fails at run time"));
  EXPECT_THAT(choice.notes[1], StartsWith("silently wrong"));
}

TEST(ExplainAsVllm, RefusesUnknownArchitecturesAndImpossibleSizes) {
  for (const char* arch : {"", "gfx94", "gfx908", "sm90", "GFX942"}) {
    const Result<VllmChoice> choice = explain_as_vllm(decode(), arch);
    ASSERT_FALSE(choice.ok()) << arch;
    EXPECT_EQ(choice.status().code(), Code::invalid_argument);
    EXPECT_THAT(choice.status().message(), HasSubstr("gfx90a, gfx942, gfx950, gfx1100, gfx1201"));
  }
  Problem p = decode();
  p.num_kv_heads = 0;
  EXPECT_FALSE(explain_as_vllm(p, "gfx942").ok());
  p.num_kv_heads = 5;
  EXPECT_FALSE(explain_as_vllm(p, "gfx942").ok());
}

}  // namespace
}  // namespace quire
