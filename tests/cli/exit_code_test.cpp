// SPDX-License-Identifier: Apache-2.0
// Every class of error: its exit code, its text on stderr with a hint, and the same as JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "command.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProblem = "q=f32 heads=4:2 d=16 page=4 reqs=1x5@3,2x1@7";

struct Case {
  const char* name;
  std::vector<std::string> args;
  int exit_code;
  const char* error;
  const char* hint;  ///< nullptr: none expected
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"unknown command", {"exlpain"}, 2, "no command 'exlpain'", "did you mean 'explain'?"},
      {"hopeless command", {"zzzzzzzzz"}, 2, "no command 'zzzzzzzzz'", "`quire --help` lists the commands"},
      {"unknown option", {"check", kProblem, "--dpeth", "tables"}, 2, "--dpeth", "did you mean '--depth'?"},
      {"missing value", {"run", kProblem, "--threads"}, 2, "--threads", "`quire run --help`"},
      {"missing input", {"run"}, 2, "PROBLEM|FILE is required", "`quire run --help`"},
      {"bad depth",
       {"check", kProblem, "--depth", "table"},
       2,
       "'table' is not one of metadata, tables, contents; did you mean 'tables'?",
       nullptr},
      {"bad thread count", {"run", kProblem, "--threads", "two"}, 2, "'two' is not a whole number from 1 to 4096", nullptr},
      {"zero repeats", {"run", kProblem, "--repeat", "0"}, 2, "'0' is not a whole number from 1 to 1000000", nullptr},
      {"huge repeats", {"run", kProblem, "--repeat", "99999999999999999999"}, 2, "is not a whole number", nullptr},
      {"contradiction", {"run", kProblem, "--verify", "--no-verify"}, 2, "contradict", nullptr},
      {"unknown kernel",
       {"run", kProblem, "--kernel", "cpu_av2"},
       2,
       "no kernel named 'cpu_av2'; known kernels: ",
       "did you mean 'cpu_avx2'?"},
      {"unknown kernel to explain",
       {"explain", kProblem, "--kernel", "cpu_generik"},
       2,
       "no kernel named",
       "did you mean 'cpu_generic'?"},
      {"unknown device", {"explain", kProblem, "--device", "gfx94"}, 2, "no device named 'gfx94'", "did you mean 'gfx942'?"},
      {"unknown product", {"explain", kProblem, "--device", "h1000"}, 2, "or a product: a100, h100", "did you mean 'h100'?"},
      {"unknown rule", {"rules", "Q-T3"}, 2, "no rule 'Q-T3'", "did you mean 'Q-T03'?"},
      {"malformed problem", {"run", "q=bf17 heads=4 d=16 page=4 reqs=1"}, 2, "bf17", nullptr},
      {"incomplete problem", {"check", "q=bf16"}, 2, "heads", nullptr},
      {"no such file", {"check", "/nonexistent/a.safetensors"}, 3, "/nonexistent/a.safetensors", nullptr},
      {"a folder", {"run", "/"}, 3, "/", nullptr},
      {"no such folder to write",
       {"capture", kProblem, "-o", "/nonexistent/a.safetensors"},
       3,
       "/nonexistent/a.safetensors",
       nullptr},
      {"kernel this CPU cannot run", {"run", kProblem, "--kernel", "cpu_avx512"}, 4, "AVX-512", nullptr},
      {"more memory than there is", {"run", "q=f32 heads=1024 d=65536 page=1024 reqs=1x1@1000000000"}, 4, "", nullptr},
  };
  return all;
}

TEST(ExitCodes, EveryClassOfError) {
  for (const Case& c : cases()) {
    const Ran ran = quire(c.args);
    EXPECT_EQ(ran.exit_code, c.exit_code) << c.name << '\n' << ran.err;
    EXPECT_EQ(ran.out, "") << c.name;
    EXPECT_THAT(ran.err, ::testing::StartsWith("quire: error: ")) << c.name;
    EXPECT_THAT(ran.err, HasSubstr(c.error)) << c.name;
    if (c.hint == nullptr) continue;
    EXPECT_THAT(ran.err, HasSubstr(std::string("\nhint: ") + c.hint)) << c.name;
  }
}

TEST(ExitCodes, TheSameAsJson) {
  for (const Case& c : cases()) {
    std::vector<std::string> args = c.args;
    args.push_back("--json");
    if (c.args.empty() || std::string(c.name) == "missing value")
      continue;  // --json would be read as the command, or as the value
    const Ran ran = quire(args);
    const auto json = json_of(ran);
    ASSERT_TRUE(json.is_object()) << c.name << '\n' << ran.out;
    EXPECT_EQ(ran.exit_code, c.exit_code) << c.name;
    EXPECT_EQ(json.value("exit_code", -1), c.exit_code) << c.name;
    EXPECT_EQ(json.value("ok", true), false) << c.name;
    EXPECT_EQ(json.value("schema", ""), "quire.error/1") << c.name;
    EXPECT_THAT(json.value("message", ""), HasSubstr(c.error)) << c.name;
    EXPECT_THAT(ran.err, HasSubstr(c.error)) << c.name;
  }
}

TEST(ExitCodes, UnsupportedKernelIsExplainedAndFour) {
  const Ran ran = quire({"explain", kProblem, "--device", "gfx942", "--kernel", "hip_matrix"});
  EXPECT_EQ(ran.exit_code, 4);
  EXPECT_THAT(ran.out, HasSubstr("hip_matrix: q is f32, expected f16 or bf16"));
  EXPECT_EQ(quire({"explain", kProblem, "--all"}).exit_code, 0);
}

TEST(ExitCodes, BrokenEnvironmentIsAnErrorNotASurprise) {
  EXPECT_THAT(quire({"info"}, {{"QUIRE_CPU", "avx51"}}).err, HasSubstr("QUIRE_CPU=avx51 is not one of scalar, avx2"));
  for (const char* count : {"0", "-1", "two", "2.5", "99999"}) {
    const Ran ran = quire({"info"}, {{"QUIRE_NUM_THREADS", count}});
    EXPECT_EQ(ran.exit_code, 2) << count;
    EXPECT_THAT(ran.err, HasSubstr("QUIRE_NUM_THREADS")) << count;
  }
  EXPECT_EQ(quire({"info"}, {{"QUIRE_CPU", ""}, {"QUIRE_NUM_THREADS", ""}}).exit_code, 0);
}

TEST(ExitCodes, FullDiskIsThree) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Ran ran = quire({"rules"}, {}, "/dev/full");
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_THAT(ran.err, HasSubstr("cannot write to stdout"));
}

TEST(HostileInput, NothingCrashesAndNothingDrivesTheTerminal) {
  const TempFolder folder;
  const std::vector<std::vector<std::string>> inputs = {{""},
                                                        {" "},
                                                        {"="},
                                                        {"=\x1b[2J"},
                                                        {"q=\x1b]0;owned\x07"},
                                                        {"\x1b[2Jevil"},
                                                        {"q=f32", "q=f32"},
                                                        {std::string(100000, 'x')},
                                                        {"q=" + std::string(100000, '1')},
                                                        {"q=f32 heads=4 d=16 page=4 reqs=" + std::string(50000, ',')},
                                                        {"q=f32 heads=99999999999999999999 d=16 page=4 reqs=1"},
                                                        {"q=f32 heads=0 d=16 page=4 reqs=1"},
                                                        {"q=f32 heads=3:2 d=16 page=4 reqs=1"},
                                                        {"q=f32 heads=4 d=16 page=4 reqs=-1x1"},
                                                        {"q=f32 heads=4 d=16 page=4 reqs=1000000x1000000"},
                                                        {"q=f32 heads=4 d=16 page=4 reqs=1 cap=nan"},
                                                        {"\xff\xfe"},
                                                        {"--"},
                                                        {"-"},
                                                        {"%s%s%n"},
                                                        {"../../etc/passwd\n"}};
  for (const char* command : {"check", "explain", "run", "capture"}) {
    for (const auto& input : inputs) {
      std::vector<std::string> args = {command};
      args.insert(args.end(), input.begin(), input.end());
      if (std::string(command) == "capture") args.insert(args.begin() + 1, {"-o", folder / "never"});
      const Ran ran = quire(args);
      EXPECT_TRUE(ran.exit_code == 2 || ran.exit_code == 3) << command << ' ' << input[0].substr(0, 80) << ": " << ran.exit_code;
      EXPECT_THAT(ran.out + ran.err, Not(HasSubstr("\x1b")));
      EXPECT_LT(ran.err.size(), 8100u) << command << ' ' << input[0].substr(0, 80);
      args.push_back("--json");
      if (input[0] == "--") continue;  // words behind "--" are no options
      EXPECT_TRUE(json_of(quire(args)).is_object()) << command << ' ' << input[0].substr(0, 80);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "never"));
}

TEST(HostileInput, BrokenCapturesAreRefused) {
  const TempFolder folder;
  const std::string good = folder / "good.safetensors";
  ASSERT_EQ(quire({"capture", kProblem, "-o", good}).exit_code, 0);
  const std::string bytes = slurp(good);
  const std::string path = folder / "broken.safetensors";
  for (const std::size_t keep :
       {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    std::ofstream(path, std::ios::binary) << bytes.substr(0, keep);
    const Ran ran = quire({"run", path});
    EXPECT_EQ(ran.exit_code, 2) << keep << ": " << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(path)) << keep;
  }
  std::ofstream(path, std::ios::binary) << std::string(4096, '\xff');
  EXPECT_EQ(quire({"check", path}).exit_code, 2);
}

}  // namespace
}  // namespace quire::test
