// SPDX-License-Identifier: Apache-2.0
// Output of each command: goldens without varying parts, the JSON schema, and faults that must be reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <sstream>

#include "command.h"
#include "quire/contract.hpp"
#include "quire/plan.hpp"
#include "quire/tools/capture.hpp"
#include "support/golden.h"

namespace quire::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProblem = "q=f32 heads=4:2 d=16 page=4 reqs=1x5@3,2x1@7";

/// Times, error ratios and the plan's numbers depend on the machine; what they stand for does not.
std::string normalised_line(const std::string& line) {
  for (const char* label : {"plan      ", "tiles     ", "splits    ", "work      "})
    if (line.starts_with(label)) return label + std::string("<plan>");
  if (line.starts_with("time      ")) return "time      <time>" + line.substr(std::min(line.size(), line.rfind(" (")));
  const std::size_t error = line.find("worst error ");
  if (error == std::string::npos) return line;
  return line.substr(0, error) + "worst error <ratio>" + line.substr(std::min(line.size(), line.find(" of ")));
}

std::string normalised(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!line.ends_with("this machine") && !line.starts_with("no GPU: ")) out += normalised_line(line) + "\n";
  return out;
}

/// A file in the test's own directory.
std::string scratch(const std::string& name) { return testing::TempDir() + name; }

TEST(Commands, DiagnoseNamesThePlantedFault) {
  const std::string file = scratch("diagnose_fault.safetensors"), reduced = scratch("diagnose_fault.reduced.safetensors");
  std::remove(reduced.c_str());
  ASSERT_EQ(quire({"capture", kProblem, "--fault", "scale_from_query_heads", "-o", file}).exit_code, 0);
  const Ran ran = quire({"diagnose", file});
  EXPECT_EQ(ran.exit_code, 1) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("verdict  cause found"), HasSubstr("scale_from_query_heads"), Not(HasSubstr("refuted  ")),
                             HasSubstr("reduced  " + reduced), HasSubstr("more     --verbose")));
  EXPECT_THAT(quire({"diagnose", file, "--no-reduced", "--verbose"}).out,
              AllOf(HasSubstr("verdict  cause found"), HasSubstr("refuted  "), HasSubstr("problem  q=f32 kv=f32 heads=4:2"),
                    HasSubstr("file     "), HasSubstr("time     ")));
  EXPECT_EQ(quire({"diagnose", reduced, "--no-reduced"}).exit_code, 1);

  const Ran json = quire({"diagnose", file, "--json", "--no-reduced"});
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed["schema"], "quire.diagnose/1");
  EXPECT_EQ(parsed["suspicions"][0]["fault"], "scale_from_query_heads");
}

std::vector<std::string> rows_of(const std::string& text) {
  std::vector<std::string> rows;
  std::istringstream in(text);
  for (std::string row; std::getline(in, row);) rows.push_back(row);
  return rows;
}

/// A diagnosis fits on a screen, whatever its width, and breaks no word.
TEST(Commands, ADiagnosisIsTwelveLinesOfTheTerminalsWidth) {
  const std::string file = scratch("wide.safetensors"), reduced = scratch("w.safetensors");
  const std::pair<const char*, const char*> captures[] = {
      {"q=f16 heads=8:2 d=64 page=16 reqs=20@30,1@100,7@9", "kv_head_modulo"},
      {"q=f16 heads=8:2 d=64 page=16 index=i64 data=tiny reqs=88@43,41@95,1@92", "query_start_loc_as_int32_in_decode"},
      {"q=bf16 heads=8:2 d=64 page=16 reqs=1@30,1@100,1@9", "own_slot_zero"},
      {"q=f32 heads=8:2 d=64 page=16 reqs=20@30,1@100,7@9", "output_not_written"}};
  for (const auto& [line, fault] : captures) {
    ASSERT_EQ(quire({"capture", line, "--fault", fault, "-o", file}).exit_code, 0) << fault;
    for (const std::size_t columns : {60, 80, 120}) {
      const std::string text = quire({"diagnose", file, "--reduced", reduced}, {{"COLUMNS", std::to_string(columns)}}).out;
      EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 12) << text;
      for (const std::string& row : rows_of(text))
        EXPECT_TRUE(row.size() <= columns || row.substr(9).find(' ') == row.npos) << columns << ": " << row;
      const std::string whole = quire({"diagnose", file, "--reduced", reduced, "--verbose"}, {{"COLUMNS", "1000000"}}).out;
      for (const std::string& row : rows_of(text)) {
        const std::size_t word = row.rfind(' ') + 1, end = row.find_last_not_of(";:,") + 1;
        EXPECT_TRUE(row.ends_with("...") || row.starts_with("more") || whole.find(row.substr(word, end - word)) != whole.npos)
            << row;
      }
    }
  }
}

TEST(Commands, DiagnoseOfARightOutputWritesNothing) {
  const std::string file = scratch("diagnose_right.safetensors");
  ASSERT_EQ(quire({"run", kProblem, "--save", file}).exit_code, 0);
  const Ran ran = quire({"diagnose", file, "--full"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("verdict  right"), Not(HasSubstr("reduced"))));
}

/// Rewrites the header of a capture, with an "other" of no more bytes than "text" has: blanks fill the rest.
void replace_in_header(const std::string& file, const std::string& text, std::string other) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::size_t at = bytes.find(text);
  ASSERT_NE(at, std::string::npos);
  ASSERT_LE(other.size(), text.size());
  other.append(text.size() - other.size(), ' ');
  bytes.replace(at, text.size(), other);
  std::ofstream(file, std::ios::binary) << bytes;
}

TEST(Commands, AFileCannotForgeAReport) {
  const std::string file = scratch("forged\nverdict  right.safetensors");
  ASSERT_EQ(quire({"capture", kProblem, "--fault", "scale_from_query_heads", "-o", file}).exit_code, 0);
  replace_in_header(file, "q=f32 kv=f32 heads=4:2", "q=f16 \\nverdict  right");
  const Ran ran = quire({"diagnose", file, "--no-reduced", "--verbose"});
  EXPECT_EQ(ran.exit_code, 1) << ran.err;
  EXPECT_THAT(ran.out,
              AllOf(Not(HasSubstr("\nverdict  right")), HasSubstr("forged\\x0averdict  right.safetensors\nproblem  q=f32 kv=f32"),
                    HasSubstr("\nverdict  cause found")));
  std::remove(file.c_str());
}

TEST(Commands, DiagnoseRefusesWhatItCannotRead) {
  const std::string file = scratch("diagnose_plain.safetensors");
  ASSERT_EQ(quire({"capture", kProblem, "-o", file}).exit_code, 0);
  const Ran ran = quire({"diagnose", file});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, HasSubstr("the case has no observed output"));
  EXPECT_EQ(quire({"diagnose", scratch("no_such_file.safetensors")}).exit_code, 3);
  EXPECT_EQ(quire({"diagnose"}).exit_code, 2);
}

TEST(Commands, Goldens) {
  const std::pair<const char*, std::vector<std::string>> runs[] = {
      {"check", {"check", kProblem}},
      {"check_metadata", {"check", kProblem, "--depth", "metadata"}},
      {"explain_avx512", {"explain", kProblem, "--device", "avx512"}},
      {"explain_forced", {"explain", kProblem, "--device", "scalar", "--kernel", "cpu_avx2"}},
      {"explain_gfx942", {"explain", kProblem, "--device", "gfx942"}},
      {"explain_lists",
       {"explain", "q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=64x1@8191,3@1", "--lists", "slot:2048", "--device",
        "sm90"}},
      {"explain_shared", {"explain", "q=bf16 heads=32:8 d=128 page=16 reqs=256x1@8703 share=512", "--device", "sm90"}},
      {"explain_not_shared", {"explain", "q=bf16 heads=32:8 d=128 page=16 reqs=2x1@90 share=5", "--device", "sm90"}},
      {"run", {"run", kProblem}},
      {"run_repeat", {"run", kProblem, "--repeat", "3", "--threads", "1", "--batch-invariant"}},
      {"run_no_verify", {"run", kProblem, "--no-verify"}},
      {"info_devices", {"info", "devices"}},
      {"rules_one", {"rules", "Q-T03"}},
  };
  for (const auto& [stem, args] : runs) {
    const Ran ran = quire(args);
    EXPECT_EQ(ran.err, "") << stem;
    const std::string text = normalised(ran.out) + "exit " + std::to_string(ran.exit_code) + "\n";
    expect_golden(std::string("tests/cli/goldens/") + stem + ".txt", text);
  }
}

TEST(Commands, ProblemLineAsOneWordOrMany) {
  const Ran one = quire({"explain", kProblem, "--device", "avx2"});
  const Ran many = quire({"explain", "q=f32", "heads=4:2", "d=16", "page=4", "reqs=1x5@3,2x1@7", "--device", "avx2"});
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_EQ(one.out, many.out);
}

TEST(Commands, KernelsAndRulesListWhatTheLibraryHas) {
  const Ran listed = quire({"info", "kernels"});
  const auto json = json_of(quire({"info", "--json"}));
  ASSERT_EQ(json["kernels"].size(), kernels().size());
  for (std::size_t i = 0; i < kernels().size(); ++i) {
    EXPECT_EQ(json["kernels"][i]["name"], kernels()[i].name);
    EXPECT_EQ(json["kernels"][i]["runs_here"],
              kernels()[i].cpu_features == 0 && (kernels()[i].backend == Backend::cpu || !gpu_devices().empty()));
    EXPECT_THAT(listed.out, HasSubstr(std::string(kernels()[i].name)));
  }
  const Ran all = quire({"rules"});
  for (const Rule& rule : rules()) {
    EXPECT_THAT(all.out, HasSubstr(std::string(rule.id) + "  "));
    const Ran one = quire({"rules", std::string(rule.id)});
    EXPECT_THAT(one.out, AllOf(HasSubstr(std::string(rule.statement)), HasSubstr(std::string(rule.why)),
                               HasSubstr(std::string(rule.example))));
  }
}

TEST(Commands, RunProvesEveryKernelThisMachineHas) {
  const Device host = host_device();
  for (const Kernel& kernel : kernels()) {
    if (kernel.backend != Backend::cpu || (kernel.cpu_features & ~host.cpu_features) != 0) continue;
    const Ran ran = quire(
        {"run", "q=bf16 kv=fp8_e4m3fn heads=6:2 d=24 page=5 layout=hnd reqs=1x9@4,2x1@30 window=7 cap=20 alibi=1 sinks=1 lse=1",
         "--kernel", std::string(kernel.name)},
        {{"QUIRE_CPU", host.name == "neon" ? "" : host.name}});
    EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
    EXPECT_THAT(ran.out, AllOf(HasSubstr("66 by " + std::string(kernel.name)), HasSubstr("PASS\n"))) << kernel.name;
  }
}

// --- captures -----------------------------------------------------------------------------------------------------------------

void change(const std::string& path, const std::function<void(quire::Case&)>& edit) {
  Result<quire::Case> c = read_capture(path);
  ASSERT_TRUE(c.ok()) << c.status().message();
  edit(c.value());
  const Status written = write_capture(path, c.value());
  ASSERT_TRUE(written.ok()) << written.message();
}

TEST(Commands, RunTakesAVOfItsOwnHeadDim) {
  const TempFolder folder;
  for (const char* line :
       {"q=f32 heads=4:2 d=16 dv=8 page=8 lse=1 reqs=3@9", "q=f32 heads=4:1 d=16 dv=24 page=8 layout=packed reqs=3@9",
        "q=f32 heads=4:1 d=24 dv=16 latent=1 page=8 reqs=3@9"}) {
    EXPECT_EQ(quire({"run", line}).exit_code, 0) << line;
    ASSERT_EQ(quire({"capture", line, "-o", folder / "v.safetensors"}).exit_code, 0);
    EXPECT_EQ(quire({"run", folder / "v.safetensors"}).exit_code, 0) << line;
  }
}

TEST(Captures, WrittenReadSavedAndJudged) {
  const TempFolder folder;
  const std::string batch = folder / "batch.safetensors";
  const std::string answered = folder / "answered.safetensors";
  EXPECT_EQ(quire({"capture", kProblem, "-o", batch}).exit_code, 0);
  EXPECT_EQ(quire({"check", batch}).exit_code, 0);
  EXPECT_THAT(quire({"explain", batch, "--device", "avx2"}).out, HasSubstr("heads=4:2 d=16 page=4"));
  const Ran saved = quire({"run", batch, "--save", answered});
  EXPECT_EQ(saved.exit_code, 0) << saved.err;
  EXPECT_THAT(saved.out, AllOf(HasSubstr("saved     "), Not(HasSubstr("observed"))));
  const Ran judged = quire({"run", answered});
  EXPECT_EQ(judged.exit_code, 0) << judged.err;
  EXPECT_THAT(judged.out, HasSubstr("observed  worst error"));
}

TEST(Captures, WrongObservedOutputIsAMismatch) {
  const TempFolder folder;
  const std::string path = folder / "wrong.safetensors";
  for (const float wrong : {1000.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ASSERT_EQ(quire({"run", kProblem, "--save", path}).exit_code, 0);
    change(path, [wrong](quire::Case& c) { static_cast<float*>(c.observed.data)[2 * 4 * 16 + 16 + 3] = wrong; });
    const Ran ran = quire({"run", path});
    EXPECT_EQ(ran.exit_code, 1) << wrong;
    EXPECT_THAT(ran.out, AllOf(HasSubstr("1 of 448 elements over: WRONG"), HasSubstr("FAIL\n"), HasSubstr("head 1"))) << wrong;
    const auto json = json_of(quire({"run", path, "--json"}));
    EXPECT_EQ(json["ok"], false);
    EXPECT_EQ(json["comparison"]["ok"], true);  // ours is right, theirs is not
    EXPECT_EQ(json["observed"]["ok"], false);
    EXPECT_EQ(json["observed"]["worst"]["token"], 2);
  }
}

constexpr const char* kLongIndices = "q=f16 heads=4:2 d=16 page=8 reqs=3@5,2@9 index=i64 lse=1 seed=1";

TEST(Captures, OfAFaultHoldWhatSuchAKernelWrites) {
  const TempFolder folder;
  const std::string path = folder / "fault.safetensors";
  const Ran ran = quire({"capture", kLongIndices, "-o", path, "--fault", "query_start_loc_as_int32", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(json_of(ran)["fault"], "query_start_loc_as_int32");
  EXPECT_EQ(quire({"run", path}).exit_code, 1) << "a NaN row is a mismatch";
  const Result<quire::Case> c = read_capture(path);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->notes.at("fault"), "query_start_loc_as_int32");
  EXPECT_TRUE(c->observed_lse.present());
  // The kernel sees query_start_loc 0 0 3: rows 3 and 4 belong to nobody and keep the fill.
  const auto* rows = static_cast<const std::uint16_t*>(c->observed.data);
  EXPECT_EQ(rows[4 * 64], 0xFFFF);
  EXPECT_NE(rows[0], 0xFFFF);
}

TEST(Captures, OfAFaultCanLieOverGarbage) {
  const TempFolder folder;
  const std::string path = folder / "garbage.safetensors", again = folder / "again.safetensors";
  for (const std::string& to : {path, again})
    ASSERT_EQ(quire({"capture", kLongIndices, "-o", to, "--fault", "query_start_loc_as_int32", "--fill", "garbage"}).exit_code,
              0);
  EXPECT_EQ(slurp(path), slurp(again)) << "the same bytes every time";
  const Result<quire::Case> c = read_capture(path);
  ASSERT_TRUE(c.ok()) << c.status().message();
  const auto* rows = static_cast<const std::uint16_t*>(c->observed.data);
  for (int i = 0; i < 5 * 64; ++i) EXPECT_LT(rows[i] & 0x7C00, 0x7C00) << "finite";
  const auto* lse = static_cast<const float*>(c->observed_lse.data);
  EXPECT_NE(lse[4 * 4], 0.0f);
  EXPECT_LT(std::fabs(lse[4 * 4]), 6.0f);
}

TEST(Captures, OfAFaultThatIsUnknownOrCannotShow) {
  const TempFolder folder;
  const std::string path = folder / "none.safetensors";
  const Ran unknown = quire({"capture", kProblem, "-o", path, "--fault", "query_start_loc_as_int23"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'query_start_loc_as_int32'?"));
  const Ran cannot = quire({"capture", kProblem, "-o", path, "--fault", "query_start_loc_as_int32"});
  EXPECT_EQ(cannot.exit_code, 4) << cannot.out;
  EXPECT_THAT(cannot.err, HasSubstr("query_start_loc_as_int32 cannot show here"));
  EXPECT_EQ(quire({"capture", kProblem, "-o", path, "--fill", "nan"}).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Captures, BrokenRuleIsExitOneEverywhere) {
  const TempFolder folder;
  const std::string path = folder / "broken.safetensors";
  ASSERT_EQ(quire({"capture", kProblem, "-o", path}).exit_code, 0);
  change(path, [](quire::Case& c) { static_cast<std::int32_t*>(c.batch.block_table.data)[0] = 913; });
  const Ran checked = quire({"check", path});
  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_THAT(checked.out,
              AllOf(HasSubstr("Q-T03 block_table[0][0]: page 913"), HasSubstr("broken: 1 finding at depth contents")));
  EXPECT_EQ(quire({"check", path, "--depth", "metadata"}).exit_code, 0);
  for (const char* command : {"run", "explain"}) {
    const Ran ran = quire({command, path});
    EXPECT_EQ(ran.exit_code, 1) << command;
    EXPECT_THAT(ran.err, HasSubstr("Q-T03 block_table[0][0]")) << command;
    EXPECT_EQ(ran.out, "") << command;
  }
  const auto json = json_of(quire({"check", path, "--json"}));
  EXPECT_EQ(json["total"], 1);
  EXPECT_EQ(json["findings"][0]["rule"], "Q-T03");
  EXPECT_EQ(json["findings"][0]["tensor"], "block_table");
  EXPECT_EQ(json["findings"][0]["index"], nlohmann::json({0, 0}));
}

// --- JSON ---------------------------------------------------------------------------------------------------------------------

/// Adds the path of every key below `json`: "plan.tile_q", "findings[].rule".
void collect_keys(const nlohmann::json& json, const std::string& prefix, std::vector<std::string>& keys) {
  if (json.is_array()) {
    for (const auto& element : json) collect_keys(element, prefix + "[]", keys);
    return;
  }
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    const std::string path = prefix.empty() ? key : prefix + "." + key;
    keys.push_back(path);
    collect_keys(value, path, keys);
  }
}

/// The bullet list under "### `schema`" in docs/reference/cli.md.
std::string documented_section(const std::string& page, const std::string& schema) {
  const std::size_t from = page.find("### `" + schema + "`");
  if (from == std::string::npos) return {};
  return page.substr(from, page.find("\n### ", from + 1) - from);
}

TEST(Json, EveryKeyIsDocumented) {
  const TempFolder folder;
  const std::string path = folder / "a.safetensors";
  ASSERT_EQ(quire({"run", kProblem, "--save", path}).exit_code, 0);
  const std::string broken = folder / "b.safetensors";
  ASSERT_EQ(quire({"capture", kProblem, "-o", broken}).exit_code, 0);
  change(broken, [](quire::Case& c) { static_cast<std::int32_t*>(c.batch.block_table.data)[0] = 913; });
  const std::string page = slurp(std::string(QUIRE_SOURCE_DIR) + "/docs/reference/cli.md");
  const std::vector<std::vector<std::string>> runs = {{"check", broken},
                                                      {"explain", kProblem, "--all"},
                                                      {"run", path},
                                                      {"run", broken},
                                                      {"capture", kProblem, "-o", folder / "c.safetensors"},
                                                      {"info"},
                                                      {"completions", "fish"},
                                                      {"rules"},
                                                      {"rules", "Q-X1"}};
  for (std::vector<std::string> args : runs) {
    args.push_back("--json");
    const Ran ran = quire(args);
    const auto json = json_of(ran);
    ASSERT_TRUE(json.is_object()) << args[0] << '\n' << ran.out << ran.err;
    EXPECT_EQ(json.value("exit_code", -1), ran.exit_code) << args[0];
    EXPECT_EQ(json.value("ok", false), ran.exit_code == 0) << args[0];
    const std::string section = documented_section(page, json.value("schema", "none"));
    EXPECT_NE(section, "") << json.value("schema", "none");
    std::vector<std::string> keys;
    collect_keys(json, "", keys);
    for (const std::string& key : keys) EXPECT_THAT(section, HasSubstr("`" + key + "`")) << args[0];
  }
}

TEST(Json, ForeignBytesStayValidJson) {
  const Ran ran = quire({"rules", "\xff\xfe\x80", "--json"});
  EXPECT_TRUE(json_of(ran).is_object()) << ran.out;
}

// --- files and times ----------------------------------------------------------------------------------------------------------

TEST(Outputs, NeverTakeThePlaceOfAnInputOrOfEachOther) {
  const TempFolder folder;
  const std::string file = folder / "case.safetensors", link = folder / "link", lines = folder / "lines.txt";
  ASSERT_EQ(quire({"capture", kProblem, "--fault", "scale_from_query_heads", "-o", file}).exit_code, 0);
  std::ofstream(lines) << kProblem << "\n";
  std::filesystem::create_symlink(file, link);
  const std::string before = slurp(file), lines_before = slurp(lines);
  const std::vector<std::vector<std::string>> calls = {{"capture", file, "-o", file},
                                                       {"capture", file, "--output", link},
                                                       {"run", file, "--save", file},
                                                       {"diagnose", file, "--reduced", file},
                                                       {"diagnose", link, "--html", file},
                                                       {"bench", "--capture", file, "--save", link, "--seconds", "0.001"},
                                                       {"bench", "--cases", lines, "--html", lines, "--seconds", "0.001"}};
  for (const std::vector<std::string>& call : calls) {
    const Ran ran = quire(call);
    EXPECT_EQ(ran.exit_code, 2) << call[0] << ran.out;
    EXPECT_THAT(ran.err, HasSubstr("would overwrite the input")) << call[0];
    EXPECT_EQ(slurp(file), before) << call[0];
    EXPECT_EQ(slurp(lines), lines_before) << call[0];
  }
  for (const char* spelling : {"both", "./both"}) {
    const Ran both = quire({"diagnose", file, "--reduced", folder / "both", "--html", folder / spelling});
    EXPECT_EQ(both.exit_code, 2) << spelling << both.out;
    EXPECT_THAT(both.err, HasSubstr("would overwrite what --html writes")) << spelling;
  }
}

TEST(Times, AreFiniteAndNotNegative) {
  const TempFolder folder;
  const std::string file = folder / "case.safetensors";
  ASSERT_EQ(quire({"run", kProblem, "--save", file}).exit_code, 0);
  for (const std::string wrong : {"nan", "inf", "-1", "-inf", "one"})
    for (const std::vector<std::string>& call : {std::vector<std::string>{"verify", "--soak"},
                                                 {"diagnose", file, "--seconds"},
                                                 {"bench", kProblem, "--no-verify", "--seconds"}}) {
      std::vector<std::string> words = call;
      words.back() += "=" + wrong;
      const Ran ran = quire(words);
      EXPECT_EQ(ran.exit_code, 2) << call[0] << " " << wrong << ran.out;
      EXPECT_THAT(ran.err, ::testing::AnyOf(HasSubstr("expected a finite number >= "), HasSubstr("'one' is not a number")));
    }
}

TEST(Explain, TakesNoStepForEachOfTwoBillionHeads) {
  const auto start = std::chrono::steady_clock::now();
  const Ran ran = quire({"explain", "q=bf16 heads=2147483647:2147483647 d=128 page=16 reqs=1x16", "--all"});
  EXPECT_THAT(ran.out, HasSubstr("items on 8 threads, the busiest has 1.000 of the mean"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

// --- terminals ----------------------------------------------------------------------------------------------------------------

TEST(Terminal, ColoursOnlyOnATerminalAndOnlyIfWanted) {
  EXPECT_THAT(quire_on_terminal({"check", kProblem}).out, HasSubstr("\x1b[32mok\x1b[0m"));
  EXPECT_THAT(quire_on_terminal({"check", kProblem}, {{"NO_COLOR", "1"}}).out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(quire_on_terminal({"check", kProblem}, {{"TERM", "dumb"}}).out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(quire_on_terminal({"check", kProblem, "--json"}).out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(quire({"check", kProblem}).out, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace quire::test
