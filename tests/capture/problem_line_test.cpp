// SPDX-License-Identifier: Apache-2.0
// The problem line: round trips, the documented examples, and one test per way to be wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "quire/problem.hpp"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kExample =
    "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 layout=nhd reqs=1x4096,64x1@2048 window=4096 cap=30 seed=7";

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

ProblemLine parse_ok(const std::string& text) {
  Result<ProblemLine> line = parse_problem_line(text);
  EXPECT_TRUE(line.ok()) << text << "\n" << line.status().message();
  return line.ok() ? line.value() : ProblemLine{};
}

void expect_round_trip(const std::string& text) {
  const ProblemLine line = parse_ok(text);
  const std::string canonical = to_string(line);
  EXPECT_EQ(parse_ok(canonical), line) << canonical;
  EXPECT_EQ(to_string(parse_ok(canonical)), canonical);
}

TEST(ProblemLine, ReadsTheDocumentedExample) {
  const ProblemLine line = parse_ok(kExample);
  const Problem& p = line.problem;
  EXPECT_EQ(p.q_dtype, DType::bf16);
  EXPECT_EQ(p.kv_dtype, DType::fp8_e4m3fn);
  EXPECT_EQ(p.num_q_heads, 32);
  EXPECT_EQ(p.num_kv_heads, 8);
  EXPECT_EQ(p.head_dim, 128);
  EXPECT_EQ(p.page_size, 16);
  EXPECT_EQ(p.layout, CacheLayout::nhd);
  ASSERT_EQ(p.reqs.size(), 65u);
  EXPECT_EQ(p.reqs[0], (Request{4096, 0, 4096}));
  EXPECT_EQ(p.reqs[64], (Request{1, 2048, 2049}));
  EXPECT_EQ(p.sliding_window, 4096);
  EXPECT_EQ(p.logits_soft_cap, 30.0f);
  EXPECT_EQ(line.seed, 7u);
  EXPECT_EQ(to_string(line), kExample);
}

TEST(ProblemLine, DefaultsAreTheDocumentedOnes) {
  const ProblemLine line = parse_ok("q=f16 heads=3 d=80 page=5 reqs=2@7");
  ProblemLine expected;
  expected.problem.q_dtype = DType::f16;
  expected.problem.kv_dtype = DType::f16;
  expected.problem.num_q_heads = 3;
  expected.problem.num_kv_heads = 3;
  expected.problem.head_dim = 80;
  expected.problem.page_size = 5;
  expected.problem.reqs = {{2, 7, 9}};
  EXPECT_EQ(line, expected);
}

TEST(ProblemLine, RoundTripsEveryKey) {
  expect_round_trip(kExample);
  expect_round_trip(
      "q=f32 kv=f32 heads=12:4 d=24 page=7 layout=packed reqs=3x2@5/6,0@9,2@5/6,2@5/6 scale=0.1 window=3 "
      "cap=1e-3 alibi=1 sinks=1 lse=1 kscale=tensor vscale=head pad=12:zero pages=99 share=2 index=i64 data=tiny "
      "seed=18446744073709551615");
  expect_round_trip("q=bf16 kv=f16 heads=1 d=1 page=1 reqs=none alibi=0 sinks=0 lse=0 kscale=none vscale=none index=i32");
  for (const char* pad : {"0", "7", "7:left", "0:zero", "2147483647:zero"})
    expect_round_trip(std::string("q=bf16 heads=1 d=1 page=1 reqs=1@3,2x0 pad=") + pad);
  expect_round_trip("q=f32 heads=1 d=1 page=4 reqs=8x1@90 share=4,4x2,2x1");
  expect_round_trip("q=f32 heads=1 d=1 page=4 reqs=8x1@90 share=0,3x2147483647");
  expect_round_trip("q=fp8_e4m3fn qscale=head heads=4:2 d=16 page=8 reqs=3@9 out=bf16");
  expect_round_trip("q=fp8_e4m3fn heads=4:2 d=16 page=8 reqs=3@9 out=fp8_e4m3fn");
  expect_round_trip("q=f16 heads=4:2 d=16 page=8 reqs=3@9 out=fp8_e4m3fn");
  expect_round_trip("\t q=f32\r\nheads=1\nd=1 page=1  reqs=1 scale=1.4e-45 ");
  expect_round_trip("q=f32 heads=1 d=1 page=1 reqs=1 cap=3.4028235e38 scale=0.088388346");
  for (const char* type : {"f16", "bf16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"}) {
    expect_round_trip(std::string("q=f16 heads=1 d=16 page=1 layout=packed reqs=1 kv=") + type);
  }
}

TEST(ProblemLine, PaddingIsLeftUnlessZeroIsAskedFor) {
  const Problem none = parse_ok("q=f16 heads=1 d=1 page=1 reqs=1").problem;
  EXPECT_EQ(none.padding, Padding::refused);
  const Problem left = parse_ok("q=f16 heads=1 d=1 page=1 reqs=1 pad=3").problem;
  EXPECT_EQ(left.padding, Padding::left);
  EXPECT_EQ(left.num_padding_rows, 3);
  EXPECT_EQ(left.num_tokens(), 1) << "padding rows are no tokens of a request";
  EXPECT_EQ(parse_ok("q=f16 heads=1 d=1 page=1 reqs=1 pad=3:left").problem, left);
  const Problem zero = parse_ok("q=f16 heads=1 d=1 page=1 reqs=1 pad=0:zero").problem;
  EXPECT_EQ(zero.padding, Padding::zero);
  EXPECT_EQ(to_string(zero), "q=f16 kv=f16 heads=1:1 d=1 page=1 layout=nhd reqs=1x1 pad=0:zero");
}

TEST(ProblemLine, CanonicalTextMergesEqualNeighbours) {
  const ProblemLine line = parse_ok("q=f32 heads=2 d=8 page=4 reqs=1@5,1@5,2x1@5,3,1@5 pages=0 share=0");
  EXPECT_EQ(to_string(line), "q=f32 kv=f32 heads=2:2 d=8 page=4 layout=nhd reqs=4x1@5,1x3,1x1@5 seed=0");
  EXPECT_EQ(to_string(line.problem), "q=f32 kv=f32 heads=2:2 d=8 page=4 layout=nhd reqs=4x1@5,1x3,1x1@5");
}

TEST(ProblemLine, LargestSizesAreAccepted) {
  const ProblemLine line = parse_ok("q=f32 heads=1 d=1 page=2147483647 reqs=1@2147483646 pages=2147483647");
  EXPECT_EQ(line.problem.reqs[0].seq_len(), std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(parse_ok("q=f32 heads=1 d=1 page=1 reqs=1048576x0").problem.reqs.size(), 1048576u);
}

TEST(ProblemLine, AHeadDimOfVIsItsOwn) {
  const ProblemLine line = parse_ok("q=bf16 heads=16:1 d=576 dv=512 latent=1 page=64 reqs=1@9");
  EXPECT_EQ(line.problem.head_dim, 576);
  EXPECT_EQ(line.problem.out_dim(), 512);
  EXPECT_TRUE(line.problem.latent);
  EXPECT_EQ(to_string(line), "q=bf16 kv=bf16 heads=16:1 d=576 page=64 layout=nhd reqs=1x1@9 dv=512 latent=1 seed=0");
  EXPECT_EQ(parse_ok(to_string(line).c_str()), line);
  const ProblemLine equal = parse_ok("q=bf16 heads=4 d=64 dv=64 page=64 reqs=1@9");
  EXPECT_EQ(equal.problem.v_head_dim, 0) << "one way to say that they are equal";
  EXPECT_EQ(equal, parse_ok("q=bf16 heads=4 d=64 page=64 reqs=1@9"));
}

struct BadLine {
  const char* text;
  const char* where;     ///< key and offending text as they appear in the message
  const char* expected;  ///< part of the expectation
};
void PrintTo(const BadLine& bad, std::ostream* out) { *out << bad.text; }

class ProblemLineRefuses : public ::testing::TestWithParam<BadLine> {};

TEST_P(ProblemLineRefuses, WithKeyTextAndExpectation) {
  const Result<ProblemLine> line = parse_problem_line(GetParam().text);
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.status().code(), Code::parse_error);
  EXPECT_THAT(line.status().message(), AllOf(HasSubstr(GetParam().where), HasSubstr(GetParam().expected)));
}

INSTANTIATE_TEST_SUITE_P(OwnV, ProblemLineRefuses,
                         ::testing::Values(BadLine{"q=f32 heads=8 d=8 dv=0 page=16 reqs=1", "dv=", "1"},
                                           BadLine{"q=f32 heads=8 d=8 dv=9 latent=1 page=16 reqs=1", "dv=\"9\"", "at most d (8)"},
                                           BadLine{"q=f32 heads=8 d=8 latent=1 layout=packed page=16 reqs=1", "latent=\"1\"",
                                                   "0 with layout=packed"},
                                           BadLine{"q=f32 heads=8 d=8 latent=2 page=16 reqs=1", "latent=\"2\"", "0, 1"},
                                           BadLine{"q=f32 heads=8 d=8 v_head_dim=4 page=16 reqs=1", "v_head_dim", "dv"}));

#define REST " heads=8:2 d=64 page=16 reqs=1@9"
INSTANTIATE_TEST_SUITE_P(
    Cases, ProblemLineRefuses,
    ::testing::Values(
        BadLine{"", "key q=", "missing"}, BadLine{"q=f32", "key heads=", "missing"},
        BadLine{"q=f32 heads=8 page=16 reqs=1", "key d=", "head_dim"},
        BadLine{"q=f32 heads=8 d=1 reqs=1", "key page=", "missing"}, BadLine{"q=f32 heads=8 d=1 page=4", "key reqs=", "missing"},
        BadLine{"q" REST, "\"q\"", "key=value"}, BadLine{"q=" REST, "q=\"\"", "one of f32, f16, bf16"},
        BadLine{"q=fp8_e5m2" REST, "q=\"fp8_e5m2\"", "one of f32"},
        BadLine{"q=f16 out=bf16" REST, "out=\"bf16\"", "the query's type (f16), f32 or fp8_e4m3fn"},
        BadLine{"q=fp8_e4m3fn kv=bf16" REST, "kv=\"bf16\"", "fp8_e4m3fn, as the query is"},
        BadLine{"q=bf16 qscale=head" REST, "qscale=\"head\"", "none with q=bf16"},
        BadLine{"q=f32 kv=fp8" REST, "kv=\"fp8\"", "fp8_e4m3fnuz"}, BadLine{"q=bf16 kv=f32" REST, "kv=\"f32\"", "bf16"},
        BadLine{"q=f32 q=f32" REST, "q=\"f32\"", "twice"},
        BadLine{"q=f32 heads=7:2 d=1 page=1 reqs=1", "heads=\"7:2\"", "multiple"},
        BadLine{"q=f32 heads=0:1 d=1 page=1 reqs=1", "heads=\"0:1\"", ">= 1"},
        BadLine{"q=f32 heads=4:0 d=1 page=1 reqs=1", "heads=\"4:0\"", ">= 1"},
        BadLine{"q=f32 heads=8: d=1 page=1 reqs=1", "heads=\"8:\"", "num_kv_heads"},
        BadLine{"q=f32 heads=99999999999999999999 d=1 page=1 reqs=1", "heads=\"9999", "num_q_heads"},
        BadLine{"q=f32 heads=8 d=0 page=1 reqs=1", "d=\"0\"", "[1, 2147483647]"},
        BadLine{"q=f32 heads=8 d=64x page=1 reqs=1", "d=\"64x\"", "an integer"},
        BadLine{"q=f32 heads=8 d=+64 page=1 reqs=1", "d=\"+64\"", "an integer"},
        BadLine{"q=f32 heads=8 d=2147483648 page=1 reqs=1", "d=\"2147483648\"", "[1, 2147483647]"},
        BadLine{"q=f32 heads=8 d=1 page=-1 reqs=1", "page=\"-1\"", "[1, "},
        BadLine{"q=f32 layout=NHD" REST, "layout=\"NHD\"", "nhd, hnd, packed"},
        BadLine{"q=f16 layout=packed heads=8 d=20 page=1 reqs=1", "layout=\"packed\"", "multiple of 8"},
        BadLine{"q=f16 kv=fp8_e5m2 layout=packed heads=8 d=24 page=1 reqs=1", "layout=\"packed\"", "multiple of 16"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=", "reqs=\"\"", "query_len"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=1,", "reqs=\"\"", "query_len"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=0x5", "reqs=\"0x5\"", "count"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=2x3x4", "reqs=\"2x3x4\"", "count"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=-1", "reqs=\"-1\"", "query_len"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=1@-1", "reqs=\"1@-1\"", "context_len"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=1@2@3", "reqs=\"1@2@3\"", "context_len"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=1/1@3", "reqs=\"1/1@3\"", "cached_len"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=8@100/", "reqs=\"8@100/\"", "cached_len"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=8@100/99", "reqs=\"8@100/99\"", "[100, 108]"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=8@100/109", "reqs=\"8@100/109\"", "[100, 108]"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=1@2147483647", "reqs=\"1@2147483647\"", "<= 2147483647"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=9223372036854775807@9223372036854775807", "reqs=", "<= 2147483647"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=1048577x1", "reqs=\"1048577x1\"", "1048576 requests"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=1048576x1,1", "reqs=\"1\"", "1048576 requests"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=9223372036854775807x1", "reqs=", "1048576 requests"},
        BadLine{"q=f32 heads=8 d=1 page=1 reqs=32x2147483647", "reqs=\"32x2147483647\"", "pairs"},
        BadLine{"q=f32 scale=nan" REST, "scale=\"nan\"", "finite"}, BadLine{"q=f32 scale=1e39" REST, "scale=\"1e39\"", "finite"},
        BadLine{"q=f32 scale=0" REST, "scale=\"0\"", "> 0"}, BadLine{"q=f32 scale=-1" REST, "scale=\"-1\"", "> 0"},
        BadLine{"q=f32 scale=" REST, "scale=\"\"", "finite"}, BadLine{"q=f32 scale=1,5" REST, "scale=\"1,5\"", "finite"},
        BadLine{"q=f32 cap=0" REST, "cap=\"0\"", "leave the key out"}, BadLine{"q=f32 cap=-30" REST, "cap=\"-30\"", "> 0"},
        BadLine{"q=f32 cap=inf" REST, "cap=\"inf\"", "finite"},
        BadLine{"q=f32 window=0" REST, "window=\"0\"", "leave the key out"},
        BadLine{"q=f32 window=-1" REST, "window=\"-1\"", "leave the key out"},
        BadLine{"q=f32 alibi=true" REST, "alibi=\"true\"", "one of 0, 1"}, BadLine{"q=f32 sinks=2" REST, "sinks=\"2\"", "0, 1"},
        BadLine{"q=f32 lse=" REST, "lse=\"\"", "0, 1"},
        BadLine{"q=f32 kscale=per_head" REST, "kscale=\"per_head\"", "none, tensor, head"},
        BadLine{"q=f32 vscale=1" REST, "vscale=\"1\"", "none, tensor, head"},
        BadLine{"q=f32 data=uniform" REST, "data=\"uniform\"", "normal, tiny"},
        BadLine{"q=f32 index=int32" REST, "index=\"int32\"", "i32, i64"}, BadLine{"q=f32 seed=-1" REST, "seed=\"-1\"", "2^64"},
        BadLine{"q=f32 seed=18446744073709551616" REST, "seed=", "2^64"}, BadLine{"q=f32 pages=-1" REST, "pages=\"-1\"", "[0, "},
        BadLine{"q=f32 pad=-1" REST, "pad=\"-1\"", "8, 8:left or 8:zero"},
        BadLine{"q=f32 pad=4:refused" REST, "pad=\"4:refused\"", "8, 8:left or 8:zero"},
        BadLine{"q=f32 pad=:zero" REST, "pad=\":zero\"", "the number of padding rows"},
        BadLine{"q=f32 padding=4" REST, "unknown key \"padding\"", "did you mean pad=?"},
        BadLine{"q=f32 share=x" REST, "share=\"x\"", "[0, "},
        BadLine{"q=f32 share=1,2" REST, "share=\"1,2\"", "requests x pages"},
        BadLine{"q=f32 share=1,0x2" REST, "share=\"1,0x2\"", "requests x pages"},
        BadLine{"q=f32 share=1,2x0" REST, "share=\"1,2x0\"", "requests x pages"},
        BadLine{"q=f32 share=1,2x2147483647" REST, "share=\"1,2x2147483647\"", "requests x pages"},
        BadLine{"q=f32 share=0,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1" REST, "share=", "at most 16"},
        BadLine{"q=f32 windw=4" REST, "unknown key \"windw\"", "did you mean window=?"},
        BadLine{"q=f32 block_size=4" REST, "unknown key \"block_size\"", "did you mean page=?"},
        BadLine{"q=f32 KV=f32" REST, "unknown key \"KV\"", "keys: q kv heads"},
        BadLine{"q=f32 zzzzzz=4" REST, "unknown key \"zzzzzz\" (keys", "seed)"},
        BadLine{"q=f32 =4" REST, "unknown key \"\"", "keys: q"},
        BadLine{"q=f32 \x01\xff=4" REST, "unknown key \"\\x01\\xff\"", "keys: q"}));
#undef REST

TEST(ProblemLine, LongGarbageIsCutInTheMessage) {
  const Result<ProblemLine> line = parse_problem_line("d=" + std::string(100000, '9'));
  ASSERT_FALSE(line.ok());
  EXPECT_LT(line.status().message().size(), 300u);
  EXPECT_FALSE(parse_problem_line(std::string(100000, 'k') + "=1").ok());
}

TEST(ProblemLines, SkipsCommentsAndNumbersErrors) {
  const auto lines = parse_problem_lines("# a\n\nq=f32 heads=1 d=1 page=1 reqs=1 # tail\r\n  \nq=f16 heads=1 d=1 page=1 reqs=2");
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  ASSERT_EQ(lines.value().size(), 2u);
  EXPECT_EQ(lines.value()[1].problem.q_dtype, DType::f16);
  const auto bad = parse_problem_lines("\n# fine\nq=f32 d=0");
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.status().message(), ::testing::StartsWith("line 3: problem line: d=\"0\""));
  EXPECT_TRUE(parse_problem_lines("").value().empty());
}

/// Lines of all ```problem blocks of a page.
std::vector<std::string> documented_lines(const std::string& page) {
  std::vector<std::string> lines;
  std::stringstream text(page);
  bool inside = false;
  for (std::string row; std::getline(text, row);) {
    if (row.rfind("```", 0) == 0) {
      inside = row == "```problem";
    } else if (inside) {
      lines.push_back(row);
    }
  }
  return lines;
}

TEST(ProblemLineDocs, EveryExampleParsesAndRoundTrips) {
  const std::string page = read_text(std::filesystem::path(QUIRE_SOURCE_DIR) / "docs/reference/problem_line.md");
  const std::vector<std::string> lines = documented_lines(page);
  ASSERT_GE(lines.size(), 8u);
  EXPECT_EQ(lines.front(), kExample);
  for (const std::string& line : lines) expect_round_trip(line);
}

TEST(ProblemLineDocs, EveryDocumentedErrorIsTheRealOne) {
  const std::string page = read_text(std::filesystem::path(QUIRE_SOURCE_DIR) / "docs/reference/problem_line.md");
  for (const char* bad : {"q=f16 kv=fp8", "reqs=8@100/90", "d=128 d=128"}) {
    const Result<ProblemLine> line = parse_problem_line(bad);
    ASSERT_FALSE(line.ok());
    EXPECT_THAT(page, HasSubstr("    " + line.status().message() + "\n"));
  }
}

TEST(ProblemLineDocs, EveryKeyHasARow) {
  const std::string page = read_text(std::filesystem::path(QUIRE_SOURCE_DIR) / "docs/reference/problem_line.md");
  const std::string message = parse_problem_line("?=1").status().message();
  std::stringstream keys(message.substr(message.find("keys: ") + 6));
  for (std::string key; keys >> key;) {
    if (key.back() == ')') key.pop_back();
    EXPECT_THAT(page, ::testing::ContainsRegex("\n\\| .*`" + key + "`")) << key;
  }
}

TEST(ProblemLine, ReadsMasks) {
  const Problem p =
      parse_ok("q=bf16 heads=2 d=8 page=4 causal=1x1,2x0 wright=3 kbegin=1x16,2x0 qbegin=1x30,1x4,1x9 reqs=5@20,8:3,2:0").problem;
  EXPECT_TRUE(p.causal && p.has_causal && p.has_q_begin && p.has_key_begin);
  EXPECT_FALSE(p.is_causal_at_end());
  EXPECT_EQ(p.window_right, 3);
  ASSERT_EQ(p.reqs.size(), 3u);
  EXPECT_EQ(p.reqs[0], (Request{5, 20, 25, true, -6, 16}));
  EXPECT_EQ(p.reqs[0].q_begin(), 30);
  EXPECT_EQ(p.reqs[0].first_row(), 14);
  EXPECT_EQ(p.reqs[1], (Request{8, -5, 3, false, 9, 0}));
  EXPECT_EQ(p.reqs[2], (Request{2, -2, 0, false, 11, 0}));
  EXPECT_EQ(p.reqs[2].seq_len(), 0);
  const Problem all = parse_ok("q=bf16 heads=2 d=8 page=4 causal=0 reqs=5@20,1@9").problem;
  EXPECT_FALSE(all.causal || all.has_causal || all.reqs[0].causal || all.reqs[1].causal);
}

TEST(ProblemLine, ReadsShapes) {
  const Problem p =
      parse_ok(
          "q=bf16 heads=2 d=8 page=4 chunk=16 prefix=1x3,2x0 spans=0:2-6,0:8-9,2:0-4 beyond=1 tree=1x5,1x0,1x2 reqs=5@20,9,2@9")
          .problem;
  EXPECT_FALSE(p.is_causal_at_end());
  EXPECT_EQ(p.attention_chunk, 16);
  EXPECT_TRUE(p.has_prefix && p.has_prefix_lens && p.has_spans && p.has_tree && p.spans_beyond_window);
  EXPECT_EQ(p.reqs[0].prefix_len, 3);
  EXPECT_EQ(p.reqs[0].tree_len, 5);
  EXPECT_EQ(p.spans, (std::vector<Span>{{2, 6}, {8, 9}, {0, 4}}));
  EXPECT_EQ(p.reqs[0].num_spans, 2);
  EXPECT_EQ(p.reqs[1].num_spans, 0);
  EXPECT_EQ(p.reqs[2].first_span, 2);
  const Problem all = parse_ok("q=bf16 heads=2 d=8 page=4 prefix=7 reqs=5@20,1@9").problem;
  EXPECT_TRUE(all.has_prefix && !all.has_prefix_lens);
  EXPECT_EQ(all.reqs[1].prefix_len, 7);
}

TEST(ProblemLine, ShapesRoundTrip) {
  for (const char* shapes : {"chunk=1 reqs=5@20", "prefix=0 reqs=3", "prefix=1x0,1x9 reqs=3,4@9", "spans=none reqs=3",
                             "spans=0:0-3 reqs=3,4", "spans=1:4-5,1:5-70000 beyond=1 reqs=3,4", "tree=3 reqs=2x3@9",
                             "tree=1x0,1x4 reqs=3,4@9", "beyond=1 reqs=3", "tree=0 prefix=2 chunk=9 spans=0:1-2 reqs=1@9"})
    expect_round_trip(std::string("q=bf16 heads=2 d=8 page=4 seed=3 ") + shapes);
}

TEST(ProblemLine, MalformedShapesAreNamed) {
  const std::pair<const char*, const char*> wrong[] = {{"chunk=0 reqs=3", "the number of tokens of a chunk"},
                                                       {"prefix=-1 reqs=3", "an integer in [0,"},
                                                       {"spans=0:3-3 reqs=3", "ascending and disjoint"},
                                                       {"spans=0:3-6,0:5-9 reqs=3", "ascending and disjoint"},
                                                       {"spans=1:0-2 reqs=3", "ascending and disjoint"},
                                                       {"spans=1:0-2,0:0-2 reqs=3,3", "ascending and disjoint"},
                                                       {"spans=0-2 reqs=3", "request:begin-end"},
                                                       {"tree=4 reqs=3", "at most the keys of request 0, 3"},
                                                       {"tree=257 reqs=300", "an integer in [0, 256]"},
                                                       {"attention_chunk_size=8 reqs=3", "did you mean chunk=?"}};
  for (const auto& [shapes, text] : wrong) {
    const Result<ProblemLine> line = parse_problem_line(std::string("q=bf16 heads=2 d=8 page=4 ") + shapes);
    ASSERT_FALSE(line.ok()) << shapes;
    EXPECT_THAT(line.status().message(), HasSubstr(text)) << shapes;
  }
}

TEST(ProblemLine, MasksRoundTrip) {
  for (const char* masks : {"causal=0 reqs=5@20,8:3", "causal=0 wright=0 window=4 reqs=3", "causal=1x0 reqs=3",
                            "causal=1,0 reqs=3,4@9", "causal=1 reqs=3", "kbegin=70000 reqs=3@9/9",
                            "qbegin=1x30,2x9 reqs=3@9,2x5:0", "qbegin=12 kbegin=2 reqs=2x7:3", "causal=0 reqs=none"})
    expect_round_trip(std::string("q=bf16 heads=2 d=8 page=4 seed=3 ") + masks);
}

TEST(ProblemLine, MalformedMasksAreNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {"causal=2 reqs=3", "causal=\"2\""},
      {"causal=1x1,1x0 reqs=3", "as many values as requests, 1"},
      {"causal=1x1 reqs=3,4", "as many values as requests, 2"},
      {"causal=0x1 reqs=3", "count x value"},
      {"wright=3 reqs=3", "causal requests see no later key"},
      {"wright=-1 causal=0 reqs=3", "the number of visible keys after the own one"},
      {"reqs=8:3", "at least query_len keys in a causal request without qbegin"},
      {"reqs=8@2:3", "query_len [@ context_len | : seq_len]"},
      {"reqs=8:-3 causal=0", "query_len [@ context_len | : seq_len]"},
      {"reqs=3@9/9 qbegin=4", "every key cached"},
      {"reqs=3:2/1 causal=0", "every key cached"},
      {"reqs=3@9 kbegin=2147483640", "key_begin + seq_len <= 2147483647"},
      {"reqs=3@9 qbegin=2147483645", "q_begin + query_len <= 2147483647"},
      {"reqs=3 window_right=1", "did you mean wright=?"},
      {"reqs=3 is_causal=0", "did you mean causal=?"}};
  for (const auto& [masks, text] : wrong) {
    const Result<ProblemLine> line = parse_problem_line(std::string("q=bf16 heads=2 d=8 page=4 ") + masks);
    ASSERT_FALSE(line.ok()) << masks;
    EXPECT_THAT(line.status().message(), HasSubstr(text)) << masks;
  }
}

/// Problem::visible_pairs() is a formula; the sum over rows is not.
TEST(ProblemLine, VisiblePairsAreTheSumOverRows) {
  for (const char* text :
       {"reqs=5@20,9,1@3", "reqs=5@20,9,1@3 window=4", "causal=0 reqs=5@20,8:3,2:0", "causal=0 window=3 wright=2 reqs=30@20,8:3",
        "qbegin=1x2,1x100,1x50 reqs=5:20,40:9,9:60", "qbegin=1x2,1x100,1x50 window=12 reqs=5:20,40:9,9:60"}) {
    const Problem p = parse_ok(std::string("q=bf16 heads=2 d=8 page=4 ") + text).problem;
    std::int64_t sum = 0;
    for (const Request& r : p.reqs)
      for (std::int64_t i = 0; i < r.query_len; ++i) {
        const KeyPositions keys = p.visible_keys(r, i, i);
        sum += keys.end - keys.begin;
      }
    EXPECT_EQ(p.visible_pairs(), sum) << text;
  }
}

}  // namespace
}  // namespace quire
