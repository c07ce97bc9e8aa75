// SPDX-License-Identifier: Apache-2.0
// quire verify: exit codes, text, JSON, the page, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "command.h"

namespace quire::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kLine = "q=f32 heads=2:1 d=8 page=4 reqs=3@5,1@9 lse=1";

TEST(Verify, PassesALineWithoutPower) {
  const Ran ran = quire({"verify", "--line", kLine, "--no-power"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("1 pass"), HasSubstr("served by cpu_generic"), HasSubstr("power: not measured"),
                             HasSubstr("\nPASS (")));
  EXPECT_EQ(ran.err, "");
}

TEST(Verify, FaultsThatOneLineCannotShowAreNoMistrust) {
  const Ran ran = quire({"verify", "--line", kLine});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.out, AllOf(HasSubstr(" cannot show on these cases\n"), HasSubstr("only this was tested"),
                             HasSubstr("rows of a request 1 to 3; context of a request 5 to 9"), HasSubstr("\nPASS (")));
}

TEST(Verify, SoaksAndGoesOn) {
  const TempFolder folder;
  const std::vector<std::string> words = {"verify",        "--soak", "0.01", "--seed",    "4",  "--soak-folder",
                                          folder / "soak", "--dims", "16",   "--layouts", "nhd"};
  const Ran first = quire(words);
  EXPECT_EQ(first.exit_code, 0) << first.out << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("soak: lines 0 to "), HasSubstr("cpu: "), HasSubstr("\nPASS\n")));
  EXPECT_THAT(slurp(folder / "soak/log.txt"), HasSubstr("begin: seed 4, line 0"));
  std::vector<std::string> again = words;
  again.emplace_back("--json");
  const auto json = json_of(quire(again));
  EXPECT_EQ(json["schema"], "quire.soak/1");
  EXPECT_GT(json["soak"]["first"], 0);
  EXPECT_EQ(json["soak"]["next"], json["soak"]["counts"][0]["cases"]);
  EXPECT_EQ(quire({"verify", "--soak", "0"}).exit_code, 2);
  EXPECT_EQ(quire({"verify", "--soak", "1", "--matrix", "random"}).exit_code, 2);
  EXPECT_EQ(quire({"verify", "--soak", "1", "--html", folder / "page.html"}).exit_code, 2);
  EXPECT_EQ(quire({"verify", "--soak", "1", "--soak-folder", "/dev/null/no"}).exit_code, 3);
}

TEST(Verify, RunsHazardsInTheTypesAndDimsAskedFor) {
  const auto json = json_of(quire(
      {"verify", "--quick", "--types", "bf16,f16:fp8_e4m3fn", "--dims", "24,40", "--no-power", "--json", "--backend", "cpu"}));
  EXPECT_EQ(json["verdicts"][0]["num_refused"], 0);
  EXPECT_GT(json["verdicts"][0]["num_served"], 150);
  for (const auto& c : json["verdicts"][0]["cases"])
    EXPECT_THAT(c["line"].get<std::string>(), ::testing::ContainsRegex("^q=(bf16 kv=bf16|f16 kv=fp8_e4m3fn) .* d=(24|40) "));
}

TEST(Verify, SaysTheSameAsJson) {
  const Ran ran = quire({"verify", "--line", kLine, "--line", "q=bf16 heads=1 d=8 page=4 reqs=2", "--no-power", "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const auto json = json_of(ran);
  EXPECT_EQ(json["schema"], "quire.verify/1");
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["verdicts"][0]["target"], "cpu");
  EXPECT_EQ(json["verdicts"][0]["verdict"], "pass");
  EXPECT_EQ(json["verdicts"][0]["matrices"][0]["passed"], 2);
  EXPECT_TRUE(json["verdicts"][0]["power"].is_null());
}

TEST(Verify, RunsEveryKernelOfTheMachine) {
  const auto json = json_of(quire({"verify", "--backend", "all", "--line", kLine, "--no-power", "--json"}));
  ASSERT_EQ(json["verdicts"].size(), 1u) << "QUIRE_CPU=scalar leaves one";
  EXPECT_EQ(json["verdicts"][0]["target"], "cpu_generic");
}

TEST(Verify, WritesAPage) {
  const TempFolder folder;
  const std::string page = folder / "page.html";
  const Ran ran = quire({"verify", "--line", kLine, "--no-power", "--html", page});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("wrote " + page));
  EXPECT_THAT(slurp(page), AllOf(HasSubstr("<html"), HasSubstr("heads=2:1 d=8")));
  EXPECT_EQ(quire({"verify", "--line", kLine, "--no-power", "--html", folder / "no/page.html"}).exit_code, 3);
  EXPECT_EQ(quire({"verify", "--backend", "cpu", "--backend", "cpu_generic", "--html", page}).exit_code, 2);
}

TEST(Verify, RefusesWhatItDoesNotKnow) {
  const Ran backend = quire({"verify", "--backend", "cpu_generi"});
  EXPECT_EQ(backend.exit_code, 2);
  EXPECT_THAT(backend.err, HasSubstr("did you mean 'cpu_generic'?"));
  EXPECT_EQ(quire({"verify", "--backend", "cpu_avx2"}).exit_code, 4) << "QUIRE_CPU=scalar";
  EXPECT_EQ(quire({"verify", "--matrix", "hazard"}).exit_code, 2);
  EXPECT_EQ(quire({"verify", "--line", "q=f32"}).exit_code, 2);
  EXPECT_EQ(quire({"verify", "--cases", "0"}).exit_code, 2);
  EXPECT_EQ(quire({"verify", "--dims", "0"}).exit_code, 2);
  EXPECT_EQ(quire({"verify", "--dims", "64", "--matrix", "notes"}).exit_code, 2);
  EXPECT_EQ(quire({"verify", "--layouts", "NHD"}).exit_code, 2);
  const Ran types = quire({"verify", "--types", "bf16:fp8"});
  EXPECT_EQ(types.exit_code, 2);
  EXPECT_THAT(types.err, HasSubstr("--types bf16:fp8: 'fp8' is no type"));
}

TEST(Verify, ShowsProgressOnATerminal) {
  // Long enough for the line to appear, which it does after half a second.
  const Ran ran = quire_on_terminal({"verify", "--quick", "--matrix", "notes", "--no-power"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("verifying cpu"), HasSubstr("\x1b[32mPASS (")));
}

}  // namespace
}  // namespace quire::test
