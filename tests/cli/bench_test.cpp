// SPDX-License-Identifier: Apache-2.0
// quire bench: exit codes, text, JSON with every key documented, comparison, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "command.h"
#include "quire/plan.hpp"

namespace quire::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLine = "q=f32 heads=2:1 d=8 page=4 reqs=3@5,1@9";
constexpr const char* kCanonical = "q=f32 kv=f32 heads=2:1 d=8 page=4 layout=nhd reqs=1x3@5,1x1@9 seed=0";

TEST(BenchCommand, SaysHowFastAndThatItIsRight) {
  const Ran ran = quire({"bench", kLine, "--seconds", "0.01", "--threads", "1"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("machine   "), HasSubstr("ceilings  "), HasSubstr("cpu_generic, 1 thread "),
                    HasSubstr("% of the machine: floor "), HasSubstr("in 4 of 4 rows"), HasSubstr("\nOK: 1 verified\n")));
}

// Where there is a GPU, the same report; elsewhere a reason and no numbers.
TEST(BenchCommand, TimesAGpuOrSaysWhyNot) {
  const Ran ran = quire({"bench", "--device", "cuda", "--seconds", "0.02", "--json", kLine});
  if (gpu_device().ok()) {
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    const auto result = json_of(ran)["cases"][0]["results"][0];
    EXPECT_EQ(result["status"], "ok");
    EXPECT_EQ(result["clock"], "device");
    return;
  }
  EXPECT_EQ(ran.exit_code, 4);
  EXPECT_THAT(ran.out + ran.err, AllOf(HasSubstr("bench: "), HasSubstr(has_backend(Backend::cuda) ? "CUDA" : "cuda")));
  EXPECT_THAT(ran.out + ran.err, Not(HasSubstr("GB/s")));
  EXPECT_EQ(quire({"bench", "--device", "hip", kLine}).exit_code, 4);
  EXPECT_EQ(quire({"bench", "--device", "tpu", kLine}).exit_code, 2);
  EXPECT_EQ(quire({"bench", "--device", "cuda", "--threads", "2", kLine}).exit_code, 2);
}

TEST(BenchCommand, TakesAVOfItsOwnHeadDim) {
  for (const char* line : {"q=f32 heads=4:2 d=16 dv=8 page=8 reqs=3@9", "q=f32 heads=4:1 d=16 dv=24 page=8 reqs=3@9",
                           "q=f32 heads=4:1 d=24 dv=16 latent=1 page=8 reqs=3@9"}) {
    const Ran ran = quire({"bench", line, "--seconds", "0.005", "--threads", "1"});
    EXPECT_EQ(ran.exit_code, 0) << line << ran.out << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("OK: 1 verified"));
  }
}

TEST(BenchCommand, TakesLinesWordsFilesAndCaptures) {
  const TempFolder folder;
  const std::string cases = folder / "cases.txt", capture = folder / "a.safetensors";
  std::ofstream(cases) << "# a comment\n" << kLine << "\n";
  ASSERT_EQ(quire({"capture", kLine, "-o", capture}).exit_code, 0);
  const Ran ran = quire({"bench", "q=f32", "heads=1", "d=4", "page=4", "reqs=1", kLine, "--cases", cases, "--capture", capture,
                         "--seconds", "0.005", "--threads", "1", "--no-verify", "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const auto json = json_of(ran);
  ASSERT_EQ(json["cases"].size(), 4u);
  EXPECT_EQ(json["cases"][0]["line"], kCanonical);
  EXPECT_THAT(json["cases"][1]["line"].get<std::string>(), HasSubstr("heads=1:1 d=4"));
  EXPECT_EQ(json["cases"][2]["line"], kCanonical);
  EXPECT_EQ(json["cases"][3]["name"], capture);
  EXPECT_EQ(json["cases"][3]["results"][0]["status"], "unverified");
}

/// Every key of an object or of the objects in a list, at any depth.
void each_key(const nlohmann::json& json, const std::function<void(const std::string&)>& visit) {
  if (json.is_object())
    for (const auto& [key, value] : json.items()) {
      visit(key);
      each_key(value, visit);
    }
  if (json.is_array())
    for (const auto& element : json) each_key(element, visit);
}

TEST(BenchCommand, EveryKeyIsDocumentedAndComparisonReadsThem) {
  const TempFolder folder;
  const std::string file = folder / "report.json";
  ASSERT_EQ(quire({"bench", kLine, "--seconds", "0.01", "--threads", "1", "--save", file}).exit_code, 0);
  const Ran compared = quire({"bench", "compare", file, file, "--json"});
  EXPECT_EQ(compared.exit_code, 0) << compared.err;
  const std::string page = slurp(std::string(QUIRE_SOURCE_DIR) + "/docs/reference/bench.md");
  for (const auto& json : {nlohmann::json::parse(slurp(file)), json_of(compared)}) {
    ASSERT_TRUE(json.is_object());
    EXPECT_EQ(json["ok"], true);
    each_key(json, [&](const std::string& key) { EXPECT_THAT(page, HasSubstr("`" + key + "`")); });
  }
}

/// As a calm machine reports it: whoever runs this test may be busy.
void calm(nlohmann::json& report) {
  for (auto& c : report["ceilings"]) c["drift"] = c["ping_pong_ns"] = 0.0;
  for (auto& r : report["cases"][0]["results"]) r["disturbed"] = 0, r["of_floor"] = 0.5;
}

TEST(BenchCommand, ComparisonFailsOnWhatIsSlower) {
  const TempFolder folder;
  const std::string before = folder / "old.json", after = folder / "new.json";
  ASSERT_EQ(quire({"bench", kLine, "--seconds", "0.01", "--threads", "1", "--save", before}).exit_code, 0);
  nlohmann::json report = nlohmann::json::parse(slurp(before));
  calm(report);
  std::ofstream(before) << report;
  for (const char* key : {"median", "low", "high"}) {
    auto& seconds = report["cases"][0]["results"][0]["seconds"];
    seconds[key] = seconds[key].get<double>() * 1000;
  }
  std::ofstream(after) << report;
  const Ran slower = quire({"bench", "compare", before, after});
  EXPECT_EQ(slower.exit_code, 1);
  EXPECT_THAT(slower.out, AllOf(HasSubstr("SLOW"), HasSubstr("0 FAST, 1 SLOW, 0 SAME, 0 AMBIGUOUS")));
  EXPECT_EQ(quire({"bench", "compare", after, before}).exit_code, 0);
  report["machine"]["cpu"] = "another";
  std::ofstream(after) << report;
  const Ran refused = quire({"bench", "compare", before, after});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("two different machines"), HasSubstr("--force")));
  EXPECT_EQ(quire({"bench", "compare", before, after, "--force"}).exit_code, 1);
}

TEST(BenchCommand, WritesAPage) {
  const TempFolder folder;
  const std::string page = folder / "page.html";
  const Ran ran = quire({"bench", kLine, "--seconds", "0.01", "--threads", "1", "--html", page});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("wrote " + page));
  EXPECT_THAT(slurp(page), AllOf(HasSubstr("<!doctype html>"), HasSubstr(R"("quire_bench":1)"), HasSubstr(kCanonical)));
}

TEST(BenchCommand, SaysWhatItCannotDo) {
  const auto fails = [](const std::vector<std::string>& args, int exit_code, const char* text) {
    const Ran ran = quire(args);
    EXPECT_EQ(ran.exit_code, exit_code) << args.back() << ran.out;
    EXPECT_THAT(ran.out + ran.err, HasSubstr(text));
  };
  fails({"bench"}, 2, "nothing to time");
  fails({"bench", "q=bf17"}, 2, "bf17");
  fails({"bench", "--workload", "W9"}, 2, "no workload 'W9'");
  fails({"bench", kLine, "--kernel", "cpu_generc"}, 2, "did you mean 'cpu_generic'?");
  fails({"bench", kLine, "--threads", "0"}, 2, "whole number");
  fails({"bench", "--cases", "/nonexistent/cases.txt"}, 3, "/nonexistent/cases.txt");
  fails({"bench", kLine, "--seconds", "0.01", "--threads", "1", "--save", "/nonexistent/a.json"}, 3, "/nonexistent/a.json");
  fails({"bench", kLine, "--kernel", "cpu_avx512", "--seconds", "0.01", "--threads", "1"}, 4, "AVX-512");
  fails({"bench", "compare", "/nonexistent/a.json", "/nonexistent/b.json"}, 3, "/nonexistent/a.json");
}

/// A frame that is wider than the terminal (80 columns, where nobody says) scrolls: ten times a second.
TEST(BenchCommand, ProgressFitsTheTerminal) {
  const Ran ran = quire_on_terminal({"bench", kLine, "--kernel", "cpu_generic", "--kernel", "cpu_avx2", "--threads", "1",
                                     "--threads", "2", "--seconds", "0.7", "--no-verify"},
                                    {{"QUIRE_CPU", ""}});
  int frames = 0;
  for (std::size_t at = 0; (at = ran.out.find("\r\x1b[K", at)) != std::string::npos; ++frames) {
    at += 4;
    const std::size_t end = ran.out.find_first_of("\r\n", at);
    if (std::string_view("|/-\\").find(ran.out[at]) == std::string_view::npos) break;  // the report
    EXPECT_LT(end - at, 80u) << ran.out.substr(at, end - at);
  }
  EXPECT_GT(frames, 2);
}

TEST(BenchCommand, ProgressAndColourOnATerminalOnly) {
  const Ran ran = quire_on_terminal({"bench", kLine, "--seconds", "1.5", "--threads", "1"});
  EXPECT_THAT(ran.out, HasSubstr(": case 1 of 1: timing planned kernel, 1 thread"));
  EXPECT_THAT(ran.out, HasSubstr("\x1b[32mOK: 1 verified"));
  EXPECT_THAT(quire_on_terminal({"bench", kLine, "--seconds", "0.01", "--threads", "1"}, {{"NO_COLOR", "1"}}).out,
              Not(HasSubstr("\x1b[32m")));
}

}  // namespace
}  // namespace quire::test
