// SPDX-License-Identifier: Apache-2.0
// docs/reference/cli.md shows the help text of every command, word for word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "command.h"
#include "support/golden.h"

namespace quire::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::string> kCommands = {"check",          "explain", "run",  "capture",     "diagnose", "verify",
                                            "compare-caches", "bench",   "info", "completions", "rules"};

std::string docs_path() { return std::string(QUIRE_SOURCE_DIR) + "/docs/reference/cli.md"; }

/// Replaces what stands between the markers of `name`; returns the block found there before.
std::string swap_block(std::string& page, const std::string& name, const std::string& text) {
  const std::string begin = "<!-- help: " + name + " -->\n```text\n";
  const std::size_t from = page.find(begin);
  if (from == std::string::npos) return "no block for " + name;
  const std::size_t start = from + begin.size();
  const std::size_t end = page.find("```\n", start);
  const std::string old = page.substr(start, end - start);
  page.replace(start, end - start, text);
  return old;
}

TEST(Help, DocsShowItWordForWord) {
  std::string page = slurp(docs_path());
  for (const std::string& command : kCommands) {
    const Ran ran = quire({command, "--help"});
    EXPECT_EQ(ran.exit_code, 0) << command;
    EXPECT_EQ(ran.err, "");
    const std::string documented = swap_block(page, command, ran.out);
    if (updating_goldens()) continue;
    EXPECT_EQ(documented, ran.out) << "docs/reference/cli.md; QUIRE_UPDATE_GOLDENS=1 rewrites it";
  }
  const std::string compare_help = quire({"bench", "compare", "--help"}).out;
  const std::string compare_documented = swap_block(page, "bench compare", compare_help);
  const Ran ran = quire({"--help"});
  const std::string documented = swap_block(page, "quire", ran.out);
  if (updating_goldens()) {
    std::ofstream(docs_path(), std::ios::binary) << page;
    return;
  }
  EXPECT_EQ(documented, ran.out);
  EXPECT_EQ(compare_documented, compare_help);
}

TEST(Help, NamesEveryCommandAndExitCode) {
  const Ran ran = quire({"-h"});
  EXPECT_EQ(ran.exit_code, 0);
  for (const std::string& command : kCommands) EXPECT_THAT(ran.out, HasSubstr("  " + command + " ")) << command;
  for (const char* code : {"  0 ", "  1 ", "  2 ", "  3 ", "  4 ", "  70 "}) EXPECT_THAT(ran.out, HasSubstr(code));
  EXPECT_THAT(ran.out, AllOf(HasSubstr("NO_COLOR"), HasSubstr("QUIRE_CPU"), HasSubstr("QUIRE_NUM_THREADS")));
}

TEST(Help, IsWhatTheCommandAlonePrints) {
  const Ran bare = quire({});
  EXPECT_EQ(bare.out, quire({"--help"}).out);
  EXPECT_EQ(bare.err, "");
  EXPECT_EQ(bare.exit_code, 2) << "a script whose variable was empty must notice";
}

/// The scripts are run by their shells where those are installed.
TEST(Completions, NameEveryCommandAndOption) {
  const std::string bash = quire({"completions", "bash"}).out, fish = quire({"completions", "fish"}).out;
  for (const std::string& command : kCommands) {
    EXPECT_THAT(bash, HasSubstr("    " + command + ") words=")) << command;
    EXPECT_THAT(fish, HasSubstr("-a " + command + " -d '")) << command;
  }
  EXPECT_THAT(bash, HasSubstr("--batch-invariant"));
  EXPECT_THAT(quire({"completions", "zsh"}).out, HasSubstr("bashcompinit"));
  EXPECT_EQ(quire({"completions", "tcsh"}).exit_code, 2);
}

TEST(Completions, BashOffersWhatBegins) {
  const TempFolder folder;
  const std::string script = folder / "quire.bash", out = folder / "offered";
  std::ofstream(script) << quire({"completions", "bash"}).out
                        << "COMP_WORDS=(quire exp); COMP_CWORD=1; _quire; echo \"${COMPREPLY[@]}\"\n"
                        << "COMP_WORDS=(quire explain --exa); COMP_CWORD=2; _quire; echo \"${COMPREPLY[@]}\"\n";
  if (std::system(("bash " + script + " > " + out).c_str()) != 0) GTEST_SKIP() << "no bash here";
  EXPECT_EQ(slurp(out), "explain\n--exact-weights\n");
}

TEST(Info, SaysWhatWasBuiltAndWhatWouldRun) {
  const Ran ran = quire({"info"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("built     by "), HasSubstr("kernels for cpu"), HasSubstr("device    scalar: this CPU, 2 threads"),
                    HasSubstr("runs      cpu_generic"), HasSubstr("rejected  cpu_avx2: needs AVX2")));
  EXPECT_THAT(ran.out, ::testing::Not(HasSubstr("is a cuda kernel")));
}

TEST(Help, Version) {
  const Ran ran = quire({"--version"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.out, ::testing::MatchesRegex("quire [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Help, CheckFindsAChangedPage) {  // the comparison above must be able to fail
  std::string page = slurp(docs_path());
  const Ran ran = quire({"rules", "--help"});
  page.replace(page.find("<!-- help: rules -->\n```text\n") + 30, 1, "#");
  EXPECT_NE(swap_block(page, "rules", ran.out), ran.out);
}

}  // namespace
}  // namespace quire::test
