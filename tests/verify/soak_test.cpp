// SPDX-License-Identifier: Apache-2.0
// soak(): resumes where it stopped, asks no line twice, shrinks and writes what it finds, and says where a process ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "quire/tools/bench.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/report.hpp"
#include "quire/tools/verify.hpp"
#include "semantics/dtype.h"
#include "verify/matrix.h"
#include "verify/mutants.h"

namespace quire::verify_detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("quire_soak_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_.string(); }
  std::string read(const char* name) const {
    std::ifstream file(path_ / name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void write(const char* name, const std::string& text) const { std::ofstream(path_ / name) << text; }

 private:
  std::filesystem::path path_;
};

std::string random_text(std::uint64_t index) { return to_string(random_line(1, index).value()); }

/// Remembers the lines that it was asked, once each.
Target listening(std::vector<std::string>& lines) {
  Target t = right_target();
  t.batch_invariant = t.in_place = t.deterministic = false;
  t.attend = [&lines, right = t.attend](const Case& c, std::string& kernel) {
    if (lines.empty() || lines.back() != c.notes.at("problem")) lines.push_back(c.notes.at("problem"));
    return right(c, kernel);
  };
  return t;
}

SoakOptions cases(int count, const std::string& directory) {
  SoakOptions options;
  options.minutes = 0;
  options.directory = directory;
  options.progress = [left = count](const std::string& label) mutable {
    EXPECT_THAT(label, HasSubstr("of seed"));
    return left-- > 0;
  };
  return options;
}

SoakResult run(const Target& target, const SoakOptions& options) {
  Result<SoakResult> r = soak({target}, options);
  EXPECT_TRUE(r.ok()) << r.status().message();
  return r.ok() ? std::move(r).value() : SoakResult{};
}

TEST(Soak, GoesOnWhereTheLastRunStopped) {
  const Folder folder;
  std::vector<std::string> lines;
  const SoakResult first = run(listening(lines), cases(5, folder.path()));
  EXPECT_TRUE(first.ok()) << to_string(first);
  EXPECT_EQ(first.next, 5);
  const SoakResult second = run(listening(lines), cases(4, folder.path()));
  EXPECT_EQ(second.first, 5);
  EXPECT_EQ(second.next, 9);
  EXPECT_EQ(second.counts.at(0).cases, 9);
  EXPECT_EQ(second.counts.at(0).passed, 9);
  EXPECT_GE(second.total_seconds, second.seconds);
  ASSERT_EQ(lines.size(), 9u);
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i], random_text(i));
  EXPECT_THAT(folder.read("log.txt"), AllOf(HasSubstr("begin: seed 1, line 0"), HasSubstr("end: next line 9")));
}

TEST(Soak, FindsShrinksAndWritesWhatIsWrong) {
  const Folder folder;
  Target t = right_target();
  t.batch_invariant = false;
  // Wrong in the last row of requests with a window, and right again in the next case.
  t.attend = [right = t.attend](const Case& c, std::string& kernel) {
    Status s = right(c, kernel);
    const Tensor& o = c.batch.output;
    if (c.options.sliding_window && o.num_elements() > 0)
      semantics::store(o.data, o.dtype, (o.shape[0] - 1) * o.stride[0], 40.0f);
    return s;
  };
  const SoakResult r = run(t, cases(12, folder.path()));
  EXPECT_FALSE(r.ok());
  ASSERT_FALSE(r.findings.empty());
  const SoakFinding& f = r.findings.front();
  EXPECT_EQ(f.check, "values");
  EXPECT_THAT(f.line, HasSubstr("window="));
  const Result<ProblemLine> smallest = parse_problem_line(f.reduced_line);
  ASSERT_TRUE(smallest.ok()) << f.reduced_line;
  EXPECT_EQ(smallest->problem.num_tokens(), 1) << f.reduced_line;
  EXPECT_TRUE(smallest->problem.sliding_window.has_value());
  EXPECT_THAT(to_string(r), AllOf(HasSubstr("\nFAIL in "), HasSubstr("smallest: " + f.reduced_line)));
  const Result<std::vector<ProblemLine>> written = parse_problem_lines(folder.read("findings.txt"));
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(written->size(), r.findings.size());
  EXPECT_EQ(written->front(), smallest.value());
  EXPECT_THAT(folder.read("log.txt"), HasSubstr("FAIL reference values: q="));
  EXPECT_FALSE(run(right_target(), cases(1, folder.path())).ok()) << "a failure of an earlier run stays a failure";
}

TEST(Soak, SaysWhichLineRanWhenAProcessEnded) {
  const Folder folder;
  std::vector<std::string> lines;
  run(listening(lines), cases(2, folder.path()));
  nlohmann::json state = nlohmann::json::parse(folder.read("state.json"));
  EXPECT_EQ(state["running"], "");
  state["running"] = random_text(2);
  folder.write("state.json", state.dump());
  const SoakResult r = run(listening(lines), cases(2, folder.path()));
  EXPECT_EQ(r.interrupted, std::vector<std::string>{random_text(2)});
  EXPECT_EQ(r.first, 3);
  EXPECT_EQ(lines.at(2), random_text(3)) << "the line is not asked again";
  EXPECT_THAT(to_string(r), HasSubstr("the process of an earlier run ended during: " + random_text(2)));
}

TEST(Soak, TheLineThatRunsIsInTheState) {
  const Folder folder;
  std::string seen;
  Target t = right_target();
  t.attend = [&, right = t.attend](const Case& c, std::string& kernel) {
    seen = nlohmann::json::parse(folder.read("state.json"))["running"];
    return right(c, kernel);
  };
  run(t, cases(1, folder.path()));
  EXPECT_EQ(seen, random_text(0));
}

TEST(Soak, RefusesOtherStatesAndNoTargets) {
  const Folder folder;
  run(right_target(), cases(1, folder.path()));
  Target other = right_target();
  other.name = "another";
  EXPECT_EQ(soak({other}, cases(1, folder.path())).status().code(), Code::invalid_argument);
  EXPECT_EQ(soak({right_target(), other}, cases(1, folder.path())).status().code(), Code::invalid_argument);
  for (const char* text : {"", "{}", "[1]", R"({"quire_soak": 2})", R"({"quire_soak": 1, "seed": "one"})"}) {
    folder.write("state.json", text);
    const Status s = soak({right_target()}, cases(1, folder.path())).status();
    EXPECT_EQ(s.code(), Code::parse_error) << text;
    EXPECT_THAT(s.message(), HasSubstr("state.json: expected the state of a soak")) << text;
  }
  EXPECT_EQ(soak({}, cases(1, "")).status().code(), Code::invalid_argument);
  EXPECT_EQ(soak({Target{}}, cases(1, "")).status().code(), Code::invalid_argument);
  EXPECT_EQ(soak({right_target()}, cases(1, "/dev/null/no")).status().code(), Code::io_error);
}

TEST(Soak, EndsWhenTimeIsUpAndNeedsNoFolder) {
  SoakOptions options;
  options.minutes = 0.005;
  const SoakResult r = run(right_target(), options);
  EXPECT_TRUE(r.ok()) << to_string(r);
  EXPECT_GE(r.seconds, 0.3);
  EXPECT_GT(r.counts.at(0).cases, 0);
}

TEST(Soak, ATargetThatRefusesEverythingDoesNotPass) {
  Target t;
  t.name = "nothing";
  t.attend = [](const Case&, std::string&) { return Status(Code::unsupported, "not today"); };
  const SoakResult r = run(t, cases(2, ""));
  EXPECT_FALSE(r.ok());
  EXPECT_THAT(to_string(r), HasSubstr("MISTRUSTED: no case was served"));
}

TEST(Soak, AFailureDoesNotSpoilTheNextTarget) {
  Target spoils = right_target();
  spoils.name = "spoils";
  spoils.attend = [right = spoils.attend](const Case& c, std::string& kernel) {
    const Tensor& k = c.cache.k;
    for (std::int64_t i = 0; i < k.num_elements(); ++i) semantics::store(k.data, k.dtype, i, 3.0f);
    return right(c, kernel);
  };
  const Result<SoakResult> r = soak({spoils, right_target()}, cases(2, ""));
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_EQ(r->counts.at(0).failed, 2);
  EXPECT_EQ(r->counts.at(1).failed, 0) << to_string(r.value());
}

TEST(Soak, TimesAreFiniteAndNotNegative) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const double wrong : {-1.0, -kInf, kInf, kNaN}) {
    SoakOptions minutes = cases(1, ""), shrinking = minutes;
    minutes.minutes = wrong;
    shrinking.shrink_seconds = wrong;
    EXPECT_THAT(soak({right_target()}, minutes).status().message(), HasSubstr("soak: minutes: ")) << wrong;
    EXPECT_THAT(soak({right_target()}, shrinking).status().message(), HasSubstr("soak: shrink_seconds: ")) << wrong;
    EXPECT_THAT(verify(right_target(), {.shrink_seconds = wrong}).status().message(), HasSubstr("finite number >= 0")) << wrong;
    EXPECT_THAT(diagnose(Case(), {.seconds = wrong}).status().message(), HasSubstr("diagnose: seconds: ")) << wrong;
    EXPECT_THAT(bench({}, {.seconds = wrong}).status().message(), HasSubstr("bench: seconds: ")) << wrong;
  }
}

}  // namespace
}  // namespace quire::verify_detail
