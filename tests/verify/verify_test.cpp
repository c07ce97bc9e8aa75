// SPDX-License-Identifier: Apache-2.0
// The verdict: power of the whole suite, survivors, refusals, stops, text and JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "batch/fields.h"
#include "kernels/host_kernels.h"
#include "quire/plan.hpp"
#include "quire/tools/faults.hpp"
#include "quire/tools/report.hpp"
#include "quire/tools/verify.hpp"
#include "semantics/dtype.h"
#include "text/formatted.h"
#include "verify/guarded.h"
#include "verify/judge.h"
#include "verify/matrix.h"
#include "verify/mutants.h"
#include "verify/power.h"
#include "verify/reach.h"
#include "verify/shared.h"

namespace quire::verify_detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLine = "q=f32 heads=4:2 d=8 page=4 reqs=9@7,1@12 lse=1 seed=1";

Verdict run(const Target& target, const VerifyOptions& options) {
  Result<Verdict> v = verify(target, options);
  EXPECT_TRUE(v.ok()) << v.status().message();
  return v.ok() ? std::move(v).value() : Verdict{};
}

VerifyOptions line_only(const std::string& line = kLine) {
  VerifyOptions options;
  options.matrices = {};
  options.lines = {line};
  options.power = false;
  return options;
}

Target cpu() { return backend_target("cpu").value(); }

TEST(Power, TheQuickSuiteKillsEveryMutant) {
  VerifyOptions options;
  options.quick = true;
  const Verdict v = run(cpu(), options);
  EXPECT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
  EXPECT_EQ(v.power.size(), faults().size() + call_mutants().size() + view_mutants().size());
  for (const MutantResult& m : v.power) {
    EXPECT_TRUE(m.killed) << m.id << ": a kernel that " << m.text;
    EXPECT_NE(m.check, "") << m.id;
    EXPECT_NE(m.line, "") << m.id;
  }
  EXPECT_THAT(to_string(v), AllOf(HasSubstr("power: "), HasSubstr("planted bugs were caught"), HasSubstr("PASS (")));
}

TEST(Power, ADisabledCheckLetsAMutantSurviveAndIsMistrusted) {
  // Chunks would notice a leak from past the end too: there a chunk ends in the middle of a sequence.
  const std::vector<std::vector<std::string>> disabled = {{"canaries"}, {"garbage_poison", "chunks"}, {"strided_inputs"}};
  for (const std::vector<std::string>& checks : disabled) {
    VerifyOptions options;
    options.quick = true;
    options.disabled_checks = checks;
    Target target = cpu();
    target.token_scales = false;  // i8 has no NaN: what must not be read is garbage there, for every check
    const Verdict v = run(target, options);
    EXPECT_EQ(v.verdict, VerifyVerdict::mistrusted) << checks[0];
    EXPECT_THAT(to_string(v), AllOf(HasSubstr("missed: "), HasSubstr("MISTRUSTED: passed, but the cases do not exercise: ")))
        << checks[0];
    EXPECT_EQ(nlohmann::json::parse(to_json(v))["verdict"], "mistrusted");
  }
}

// It was mistrusted for 83 faults of windows, sinks, fp8 and so on, which its line has not.
TEST(Power, FaultsThatCannotShowOnTheLinesAskedAreNoSurvivors) {
  VerifyOptions options = line_only();
  options.power = true;
  const Verdict v = run(cpu(), options);
  EXPECT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
  const auto hidden = std::ranges::count(v.power, false, &MutantResult::can_show);
  const auto killed = std::ranges::count(v.power, true, &MutantResult::killed);
  EXPECT_GT(hidden, 50);
  EXPECT_GT(killed, 50);
  for (const MutantResult& m : v.power) {
    EXPECT_FALSE(m.killed && !m.can_show) << m.id;
    EXPECT_FALSE(m.family == "window" && m.can_show) << m.id;
  }
  EXPECT_THAT(to_string(v), AllOf(HasSubstr(formatted("{} cannot show on these cases", hidden)), Not(HasSubstr("missed: ")),
                                  HasSubstr("planted bugs that these cases cannot show, by family: ")));
}

// A check that would have noticed them is left out: what they move shows, and nobody looks.
TEST(Power, AFaultThatMovesTheOutputUnnoticedIsASurvivor) {
  VerifyOptions options = line_only();
  options.power = true;
  options.disabled_checks = {"values", "rows", "nan_poison", "garbage_poison", "canaries"};
  const Verdict v = run(cpu(), options);
  EXPECT_EQ(v.verdict, VerifyVerdict::mistrusted) << to_string(v);
  const auto ignored = std::ranges::find(v.power, "qk_ignored", &MutantResult::id);
  ASSERT_NE(ignored, v.power.end());
  EXPECT_TRUE(ignored->can_show);
}

TEST(Power, ChecksThatATargetCannotBeAskedAreNotCounted) {
  Target t = cpu();
  t.batch_invariant = false;
  VerifyOptions options;
  options.quick = true;
  const Verdict v = run(t, options);
  EXPECT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
  std::set<std::string> not_asked;
  for (const MutantResult& m : v.power)
    if (!m.asked) not_asked.insert(m.id);
  EXPECT_EQ(not_asked, (std::set<std::string>{"batch_changes_bits", "chunk_changes_bits"}));
  EXPECT_THAT(to_string(v), HasSubstr("does not apply: chunk_changes_bits"));
}

TEST(Power, FaultsThatOnlyARefusedCaseShowsAreNotCounted) {
  // It refuses every soft cap, so nobody can ask whether it gets that right.
  Target t = cpu();
  t.attend = [served = t.attend](const Case& c, std::string& kernel) {
    return c.options.logits_soft_cap ? Status(Code::unsupported, "no soft cap") : served(c, kernel);
  };
  t.variants.clear();
  VerifyOptions options;
  options.quick = true;
  const Verdict v = run(t, options);
  EXPECT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
  const auto cap = std::find_if(v.power.begin(), v.power.end(),
                                [](const MutantResult& m) { return m.text.find("cap") != std::string::npos && !m.asked; });
  ASSERT_NE(cap, v.power.end());
  EXPECT_NE(cap->line, "") << "where it would have been noticed";
  EXPECT_THAT(to_string(v), HasSubstr("x no soft cap"));
}

TEST(Verdicts, ATargetThatRefusesEverythingIsMistrusted) {
  Target t;
  t.name = "nothing";
  t.attend = [](const Case&, std::string&) { return Status(Code::unsupported, "not today"); };
  const Verdict v = run(t, line_only());
  EXPECT_EQ(v.verdict, VerifyVerdict::mistrusted);
  EXPECT_THAT(to_string(v), AllOf(HasSubstr("1 refused"), HasSubstr("1 x not today"), HasSubstr("no case was served")));
}

TEST(Verdicts, HazardsThatATargetSkipsAreRefusedWithItsReason) {
  Target t = cpu();
  t.skip["HugeOffsets"] = "its memory is elsewhere";
  VerifyOptions options;
  options.quick = true;
  options.power = false;
  const Verdict v = run(t, options);
  std::int64_t refused = 0;
  for (const CaseResult& c : v.cases) {
    EXPECT_EQ(c.status == CaseStatus::refused, c.name == "HugeOffsets");
    refused += c.reason == "its memory is elsewhere" ? 1 : 0;
  }
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(v.verdict, VerifyVerdict::pass);
}

TEST(Verdicts, SayOnHowManyCasesTheyRest) {
  Target t = cpu();
  t.attend = [served = t.attend](const Case& c, std::string& kernel) {
    return c.options.sliding_window ? served(c, kernel) : Status(Code::unsupported, "windows only");
  };
  VerifyOptions options;
  options.quick = true;
  options.power = false;
  const Verdict v = run(t, options);
  EXPECT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
  const auto json = nlohmann::json::parse(to_json(v));
  const std::size_t served = json["num_served"], refused = json["num_refused"];
  EXPECT_EQ(served + refused, v.cases.size());
  EXPECT_GT(served, 10u);
  EXPECT_GT(refused, 100u);
  EXPECT_THAT(to_string(v), HasSubstr(formatted("\nPASS on {} of {} cases, {} refused (", served, v.cases.size(), refused)));
  t.attend = call_mutants().front().target.attend;
  EXPECT_THAT(to_string(run(t, line_only())), HasSubstr("\nFAIL in 1 of 1 cases ("));
}

TEST(Verdicts, AFailureOutranksMistrust) {
  Target t = cpu();
  t.attend = call_mutants().front().target.attend;
  VerifyOptions options = line_only();
  options.power = true;
  const Verdict v = run(t, options);
  EXPECT_EQ(v.verdict, VerifyVerdict::fail);
  EXPECT_THAT(to_string(v), AllOf(HasSubstr("FAIL lines Line: q=f32"), HasSubstr("smallest: ")));
}

TEST(Verdicts, AFailureComesFirstAndLast) {
  Target t = cpu();
  t.name = "wrong";
  t.attend = call_mutants().front().target.attend;
  VerifyOptions options = line_only("q=f32 heads=4:2 d=8 page=4 reqs=90@70,1@12 lse=1 seed=1");
  options.lines.emplace_back(kLine);
  const Verdict v = run(t, options);
  const auto json = nlohmann::json::parse(to_json(v));
  const std::string line = json["smallest_line"], finding = json["smallest_finding"];
  EXPECT_EQ(parse_problem_line(line)->problem.num_tokens(), 1) << line;
  const std::string failing = formatted("smallest failing line: {}\n  {}\n", line, finding);
  EXPECT_TRUE(to_string(v).starts_with("FAIL wrong\n" + failing)) << to_string(v);
  EXPECT_THAT(to_string(v), HasSubstr(failing + "FAIL in 2 of 2 cases ("));
}

TEST(Verdicts, SayWhatTheyCouldNotHaveSeen) {
  VerifyOptions options = line_only("q=f16 heads=4:2 d=8 page=4 reqs=9@7,1@12 window=5 seed=1");
  options.lines.emplace_back("q=f16 heads=8:1 d=16 page=4 layout=hnd reqs=3@70 kscale=head seed=1");
  options.lines.emplace_back("q=f32 heads=2 d=300 page=4 reqs=500 seed=1");  // the target refuses this line
  Target t = cpu();
  t.attend = [served = t.attend](const Case& c, std::string& kernel) {
    return c.batch.query.dtype == DType::f32 ? Status(Code::unsupported, "f32") : served(c, kernel);
  };
  const Verdict v = run(t, options);
  EXPECT_THAT(to_string(v), AllOf(HasSubstr("only this was tested:\n"), HasSubstr("rows of a request 1 to 9;"),
                                  HasSubstr("context of a request 7 to 70"), HasSubstr("head_dim 8 to 16"),
                                  HasSubstr("query heads per KV head 2 to 8"), HasSubstr("sliding_window 5"),
                                  HasSubstr("not tested: f32 over f32"), HasSubstr("layout packed"), HasSubstr("i64 indices"),
                                  HasSubstr("sinks"), HasSubstr("requests without rows")));
  EXPECT_THAT(to_string(v), AllOf(Not(HasSubstr("layout hnd;")), Not(HasSubstr("k_scale head;"))));
  const auto json = nlohmann::json::parse(to_json(v))["reach"];
  EXPECT_THAT(json["never"].dump(), HasSubstr("ALiBi"));
}

/// A kernel that has never heard of scales, sinks and lse: the report says so first.
TEST(Verdicts, SayWhatFailingCasesShare) {
  Target t = cpu();
  t.name = "plain";
  t.variants.clear();
  t.attend = [served = t.attend](const Case& c, std::string& kernel) {
    Case plain = c;
    plain.cache.k_scale = plain.cache.v_scale = plain.options.sinks = {};
    return served(plain, kernel);
  };
  VerifyOptions options;
  options.matrices = {};
  for (const char* more : {"", " lse=1", " window=5", " kscale=head", " vscale=tensor", " kscale=tensor vscale=head", " sinks=1"})
    options.lines.push_back(formatted("q=f32 kv=fp8_e4m3fn heads=4:2 d=8 page=4 reqs=9@7,1@12{} seed=1", more));
  const Verdict v = run(t, options);
  EXPECT_TRUE(v.shared.starts_with("all 4 failing cases have ")) << v.shared;
  EXPECT_THAT(v.shared, AllOf(HasSubstr("k_scale"), HasSubstr("v_scale"), HasSubstr("sinks"), HasSubstr("kscale=none"),
                              HasSubstr("vscale=none"), HasSubstr("sinks=0")));
  EXPECT_TRUE(to_string(v).starts_with("FAIL plain\n" + v.shared + "\n")) << to_string(v);
  EXPECT_EQ(std::ranges::count_if(v.cases, [](const CaseResult& c) { return !c.reduced_line.empty(); }), 1);
  EXPECT_TRUE(v.power.empty());
}

/// A case without rows passes whatever it has, and says nothing of it.
TEST(Verdicts, PassingCasesWithoutRowsHideNothingThatFailuresShare) {
  std::vector<CaseResult> cases;
  for (const char* line :
       {"reqs=3@5 kscale=head", "reqs=4@5 kscale=head", "reqs=5@5 kscale=tensor", "reqs=3@5", "reqs=0@5 kscale=head"}) {
    CaseResult c;
    c.line = formatted("q=f32 kv=f32 heads=4:2 d=16 page=8 {}", line);
    c.status = cases.size() < 3 ? CaseStatus::fail : CaseStatus::pass;
    c.num_elements = cases.size() < 4 ? 64 : 0;
    cases.push_back(c);
  }
  EXPECT_TRUE(what_failures_share(cases).starts_with("all 3 failing cases have k_scale,")) << what_failures_share(cases);
}

TEST(Verdicts, SayThatOneCheckIsAllThatFails) {
  VerifyOptions options = line_only();
  options.lines = {kLine, "q=f32 heads=4:2 d=16 page=4 reqs=9@7,1@12 seed=2", "q=f16 heads=4:2 d=8 page=4 reqs=3@7,1@12 seed=3"};
  const Verdict v = run(view_mutants().front().target, options);
  EXPECT_EQ(v.shared,
            "all 3 failing cases fail strided_inputs alone; if the target takes none, ask with --supports \"strides=none\"");
}

TEST(Verdicts, SayNothingOfFailuresThatShareNothing) {
  Target t = cpu();
  t.attend = call_mutants().front().target.attend;
  VerifyOptions options = line_only();
  options.lines = {kLine, "q=f32 heads=4:2 d=16 page=4 reqs=9@7,1@12 seed=2", "q=f16 heads=4:2 d=8 page=4 reqs=3@7,1@12 seed=3"};
  options.shrink = false;
  EXPECT_EQ(run(t, options).shared, "");
}

/// Every member of the contract's structs is on an axis, so that "not tested" can name it. check() and append() alone read two.
TEST(Reach, HasEveryFieldOfTheContract) {
  std::set<std::string> fields, named = {"slot_mapping", "request_ids"};
  const Case none;
  batch::for_each_tensor([&](const batch::TensorField& f, const Tensor&) { fields.emplace(f.member); }, none);
  batch::for_each_choice([&](std::string_view member, const auto&) { fields.emplace(member); }, none);
  for (const AxisValue& value : axes()) {
    std::istringstream words(value.fields);
    for (std::string field; words >> field;) named.insert(field);
  }
  EXPECT_EQ(named, fields);
}

/// The rules of the contract say which types go together.
TEST(Reach, HasThePairsOfTypesThatTheRulesAllow) {
  std::set<std::string> words;
  for (const AxisValue& value : axes()) words.insert(value.words);
  Case c = make_case(parse_problem_line("q=f32 heads=2:1 d=32 page=4 reqs=1@3").value()).value();
  const auto allowed = [&](const std::set<std::string>& rules) {
    const Findings found = check(c.batch, c.cache, c.options, Depth::metadata);
    return std::ranges::none_of(found.items, [&](const Finding& f) { return rules.contains(f.rule); });
  };
  float scale = 1;
  c.batch.output_scale = Tensor::contiguous(&scale, DType::f32, 1);
  for (std::int32_t i = 0; name(static_cast<DType>(i)) != "invalid"; ++i)
    for (std::int32_t j = 0; name(static_cast<DType>(j)) != "invalid"; ++j) {
      const auto query = static_cast<DType>(i), other = static_cast<DType>(j);
      c.batch.query.dtype = query;
      c.cache.k.dtype = c.cache.v.dtype = c.batch.output.dtype = other;
      const std::string over = formatted("{} over {}", name(query), name(other));
      const std::string under = formatted("{} output under {} queries", name(other), name(query));
      EXPECT_EQ(words.contains(over), allowed({"Q-M02", "Q-M10", "Q-M20"})) << over;
      EXPECT_EQ(words.contains(under), allowed({"Q-M02", "Q-M10", "Q-M12"})) << under;
    }
}

/// The names of an enumeration's values.
template <typename Enum>
void add_names(std::set<std::string>& names) {
  for (std::int32_t i = 0; !name(static_cast<Enum>(i)).empty() && name(static_cast<Enum>(i)) != "invalid"; ++i)
    names.emplace(name(static_cast<Enum>(i)));
}

/// The words of a text that are made of small letters, digits and underscores.
std::set<std::string> words_of(std::string_view text) {
  std::set<std::string> words;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", begin), text.size());
    words.emplace(text.substr(begin, end - begin));
  }
  return words;
}

/// Types, layouts and paddings, as the rules name them. Flags and bits (u8) and block scales of mxfp4 (fp8_e8m0) have one type,
/// and no padding is refused where none is.
TEST(Reach, HasEveryValueThatARuleNames) {
  std::set<std::string> values, listed;
  add_names<DType>(values);
  add_names<CacheLayout>(values);
  add_names<Padding>(values);
  for (const char* no_axis : {"none", "u8", "refused", "fp8_e8m0"}) values.erase(no_axis);
  for (const AxisValue& value : axes()) listed.merge(words_of(value.words));
  std::set<std::string> named;
  for (const Rule& rule : rules())
    for (const std::string& word : words_of(rule.statement))
      if (values.contains(word)) {
        named.insert(word);
        EXPECT_TRUE(listed.contains(word)) << rule.id << " names " << word << ", which no axis has";
      }
  EXPECT_GE(named.size(), 14u) << "rules name most types";
  for (const std::string& value : values) EXPECT_TRUE(listed.contains(value)) << value;
}

/// Values of types, layouts and padding come from their enumerations; a value of each must be there, once.
TEST(Reach, HasEveryValueOnce) {
  std::set<std::string> words;
  for (const AxisValue& value : axes()) EXPECT_TRUE(words.insert(value.words).second) << value.words;
  for (const char* some : {"bf16 over nvfp4", "f16 over fp8_ds_mla", "fp8_e4m3fn over fp8_e4m3fn", "layout packed",
                           "k_scale token", "padding rows (zero)", "i64 indices"})
    EXPECT_TRUE(words.contains(some)) << some;
}

TEST(Reach, NamesStridesThatWereNotAsked) {
  for (const Strides strides : {Strides::none, Strides::rows, Strides::any}) {
    Target t = cpu();
    t.strides = strides;
    const std::vector<std::string> never = run(t, line_only()).reach.never;
    EXPECT_EQ(std::ranges::count(never, "strides of inputs"), strides == Strides::none);
    EXPECT_EQ(std::ranges::count(never, "steps between elements of inputs, and negative strides"), strides != Strides::any);
  }
}

TEST(Verdicts, StopWhenAskedTo) {
  VerifyOptions options;
  options.quick = true;
  int calls = 0;
  options.progress = [&](std::int64_t done, std::int64_t total, const std::string& label) {
    EXPECT_LE(done, total);
    EXPECT_NE(label, "");
    return ++calls < 5;
  };
  const Verdict v = run(cpu(), options);
  EXPECT_EQ(v.verdict, VerifyVerdict::stopped);
  EXPECT_EQ(v.cases.size(), 4u);
  EXPECT_TRUE(v.power.empty());
  EXPECT_THAT(to_string(v), HasSubstr("STOPPED: not every case was run"));
}

TEST(Verdicts, RefuseUnknownNamesAndEmptySuites) {
  VerifyOptions options;
  options.matrices = {"hazard"};
  EXPECT_EQ(verify(cpu(), options).status().code(), Code::invalid_argument);
  options.matrices = {};
  EXPECT_EQ(verify(cpu(), options).status().code(), Code::invalid_argument);
  options.lines = {"q=f32"};
  EXPECT_EQ(verify(cpu(), options).status().code(), Code::parse_error);
  options = {};
  options.types = {{DType::i32, DType::f16}};
  EXPECT_EQ(verify(cpu(), options).status().code(), Code::invalid_argument);
  options = {};
  options.head_dims = {0};
  EXPECT_THAT(verify(cpu(), options).status().message(), HasSubstr("head_dim 0"));
  options.head_dims = {64};
  options.matrices = {"notes"};
  EXPECT_THAT(verify(cpu(), options).status().message(), HasSubstr("are for the matrices hazards and random"));
  options = line_only();
  options.disabled_checks = {"canary"};
  EXPECT_THAT(verify(cpu(), options).status().message(), HasSubstr("canaries"));
  EXPECT_EQ(verify(Target{}, line_only()).status().code(), Code::invalid_argument);
}

TEST(Backends, KnowTheirNames) {
  EXPECT_EQ(backend_target("gpu").status().code(), Code::invalid_argument);
  EXPECT_THAT(backend_target("gpu").status().message(), HasSubstr("cpu_generic"));
  for (const Kernel& kernel : kernels()) {
    const Result<Target> target = backend_target(std::string(kernel.name));
    const bool here = kernel.backend == Backend::cpu
                          ? (kernel.cpu_features & ~host_device().cpu_features) == 0
                          : std::ranges::any_of(gpu_devices(), [&](const Device& d) { return d.backend == kernel.backend; });
    EXPECT_EQ(target.ok(), here) << kernel.name;
    if (!here) continue;
    const std::string line = to_string(test::as_taken_by(std::string(kernel.name), parse_problem_line(kLine).value()));
    const Verdict v = run(target.value(), line_only(line));
    ASSERT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
    EXPECT_EQ(v.cases[0].kernel, kernel.name);
  }
}

TEST(Backends, MayHaveMoreThreadsThanTheirVariantsPretend) {
  const Verdict v = run(backend_target("cpu", 20).value(), line_only());
  EXPECT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
}

TEST(Matrices, HoldWhatTheirNamesPromise) {
  EXPECT_EQ(notes_matrix(false).size(), 48u);
  EXPECT_EQ(small_notes_matrix().size(), 48u);
  const Problem p = notes_matrix(/*quick=*/false).front().line.problem;
  EXPECT_EQ(p.num_tokens(), 5337);
  EXPECT_EQ(p.num_q_heads, 64);
  EXPECT_EQ(p.reqs.back(), (Request{1, 929, 930}));
  std::set<std::string> quick, full;
  for (const Entry& e : hazard_matrix(/*quick=*/true)) quick.insert(e.name);
  for (const Entry& e : hazard_matrix(/*quick=*/false)) {
    full.insert(e.name);
    EXPECT_FALSE(to_string(e.line).empty());
    EXPECT_GT(e.line.problem.num_q_heads, 1) << e.name;
  }
  EXPECT_EQ(quick, full) << "every hazard is part of the quick run";
}

TEST(Matrices, HazardsComeInTheTypesAndDimsThatAreAskedFor) {
  AskedTypes asked;
  asked.types = {{DType::bf16, DType::bf16}, {DType::f16, DType::fp8_e4m3fn}};
  asked.head_dims = {64, 128, 256};
  std::set<std::string> own, names, layouts;
  for (const Entry& e : hazard_matrix(/*quick=*/false)) own.insert(e.name);
  for (const Entry& e : hazard_matrix(asked, /*quick=*/false)) {
    const Problem& p = e.line.problem;
    const TypePair types{p.q_dtype, p.kv_dtype};
    EXPECT_TRUE(types == asked.types[0] || types == asked.types[1]) << to_string(e.line);
    EXPECT_TRUE(p.head_dim == 64 || p.head_dim == 128 || p.head_dim == 256) << to_string(e.line);
    EXPECT_TRUE(parse_problem_line(to_string(e.line)).ok()) << to_string(e.line);
    EXPECT_FALSE(e.special == Special::every_fp8_code && !is_fp8(p.kv_dtype));
    EXPECT_FALSE(e.special == Special::minus_infinite_scores && is_fp8(p.kv_dtype));
    EXPECT_FALSE(e.name == "WideToken" && p.head_dim < 128);
    names.insert(e.name);
    layouts.insert(formatted("{} {} {}", p.head_dim, name(p.layout), name(p.kv_dtype)));
  }
  EXPECT_EQ(own.erase("EightBitRows"), 1u);                                // types of 16-bit queries say nothing of outputs
  EXPECT_EQ(own.erase("TokenScales") + own.erase("IntegerExtremes"), 2u);  // nor do types say whether tokens have scales
  EXPECT_EQ(own.erase("UnlikeTypes") + own.erase("FourBits"), 2u);         // nor whether K and V have types of their own
  EXPECT_EQ(own.erase("LatentRows"), 1u);                                  // rows of 656 bytes are a type of their own
  EXPECT_EQ(names, own);
  EXPECT_EQ(layouts.size(), 18u) << "every layout meets every type and head_dim";
  asked.head_dims = {64};
  for (const Entry& e : hazard_matrix(asked, /*quick=*/true)) EXPECT_NE(e.name, "WideHeadsManyKeys");
}

TEST(Matrices, EightBitRowsAreAskedOfEightBitQueries) {
  AskedTypes asked;
  asked.types = {{DType::fp8_e4m3fn, DType::fp8_e4m3fn}};
  asked.head_dims = {64, 128};
  std::set<std::string> outputs;
  for (const Entry& e : hazard_matrix(asked, /*quick=*/false)) {
    EXPECT_EQ(e.line.problem.q_dtype, DType::fp8_e4m3fn) << to_string(e.line);
    if (e.name == "EightBitRows") outputs.insert(std::string(name(e.line.problem.out_dtype())));
  }
  EXPECT_EQ(outputs, (std::set<std::string>{"bf16", "f16", "f32", "fp8_e4m3fn"}));
  std::size_t with_query = 0, with_output = 0;
  for (const Entry& e : random_matrix(/*seed=*/5, /*count=*/400)) {
    with_query += e.line.problem.q_dtype == DType::fp8_e4m3fn ? 1 : 0;
    with_output += e.line.problem.out_dtype() == DType::fp8_e4m3fn ? 1 : 0;
    EXPECT_TRUE(parse_problem_line(to_string(e.line)).ok()) << to_string(e.line);
  }
  EXPECT_GT(with_query, 3u);
  EXPECT_GT(with_output, 20u);
}

Supports only_bf16_nhd() {
  return [](const ProblemLine& line) {
    const Problem& p = line.problem;
    return p.q_dtype == DType::bf16 && p.kv_dtype == DType::bf16 && p.layout == CacheLayout::nhd && !p.sinks && !p.lse &&
           (p.head_dim == 64 || p.head_dim == 128) && p.page_size % 16 == 0 && p.k_scale == ScaleKind::none &&
           p.v_scale == ScaleKind::none;
  };
}

// A plain right kernel was asked 4 of 239 cases.
TEST(Supports, BringsHazardsIntoAFormThatIsTaken) {
  Target t = cpu();
  t.attend = [right = t.attend](const Case& c, std::string& kernel) {
    return only_bf16_nhd()(parse_problem_line(c.notes.at("problem")).value()) ? right(c, kernel)
                                                                              : Status(Code::unsupported, "not bf16 nhd");
  };
  t.variants.clear();
  t.batch_invariant = false;
  VerifyOptions options;
  options.quick = true;
  options.matrices = {"hazards", "random"};
  options.power = false;
  options.supports = only_bf16_nhd();
  const Verdict v = run(t, options);
  EXPECT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
  EXPECT_GT(v.cases.size(), 100u);
  EXPECT_THAT(to_string(v), Not(HasSubstr("refused, not failed")));
  std::set<std::string> names;
  for (const CaseResult& c : v.cases) names.insert(c.name);
  EXPECT_TRUE(names.contains("WindowOne") && names.contains("ManyRequests") && names.contains("HugeOffsets"));
  EXPECT_FALSE(names.contains("SinkDominates")) << "no sinks: the hazard has no form";
  EXPECT_TRUE(v.left_out.contains("hazards SinkDominates"));
  EXPECT_THAT(v.supported,
              AllOf(HasSubstr("bf16 over bf16; layout nhd; head_dim 64, 128; pages of 16, 32"), HasSubstr("no sinks, lse")));
  EXPECT_THAT(to_string(v), AllOf(HasSubstr("in supported forms only: bf16 over bf16"), HasSubstr("hazards SinkDominates (4)")));
}

TEST(Supports, TheSmallestFailingLineIsSupported) {
  Target t = cpu();
  t.attend = call_mutants().front().target.attend;
  VerifyOptions options = line_only("q=bf16 heads=4:2 d=64 page=16 reqs=9@30,1@12 seed=1");
  options.supports = only_bf16_nhd();
  const ProblemLine smallest = parse_problem_line(run(t, options).cases.at(0).reduced_line).value();
  EXPECT_TRUE(only_bf16_nhd()(smallest)) << to_string(smallest);
  EXPECT_EQ(smallest.problem.num_tokens(), 1);
}

TEST(Supports, MustSayYesToSomething) {
  VerifyOptions options;
  options.quick = true;
  options.supports = [](const ProblemLine&) { return false; };
  EXPECT_THAT(verify(cpu(), options).status().message(), HasSubstr("supports says no to every plain line"));
  options.matrices = {};
  options.lines = {kLine};
  options.power = false;
  EXPECT_EQ(run(cpu(), options).verdict, VerifyVerdict::pass) << "lines of one's own are asked all the same";
}

TEST(Supports, LayoutsAreKept) {
  for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed}) {
    const AskedTypes asked{.layouts = {layout}};
    std::set<std::string> names;
    for (const Entry& e : hazard_matrix(asked, /*quick=*/true)) {
      EXPECT_EQ(e.line.problem.layout, layout) << to_string(e.line);
      EXPECT_TRUE(parse_problem_line(to_string(e.line)).ok());
      names.insert(e.name);
    }
    EXPECT_GT(names.size(), 25u);
    for (const Entry& e : random_matrix(1, 50, asked)) EXPECT_EQ(e.line.problem.layout, layout);
  }
}

// A kernel that is wrong in one of the types alone, which the hazards' own types reach in few shapes.
TEST(Matrices, AskedTypesFindWhatIsWrongInOneOfThem) {
  Target t = right_target();
  t.batch_invariant = false;
  t.attend = [right = t.attend](const Case& c, std::string& kernel) {
    const Status s = right(c, kernel);
    const bool wrong = c.cache.k.dtype == DType::fp8_e5m2 && head_dim(c.cache) == 96 && c.batch.output.num_elements() > 0;
    if (wrong) semantics::store(c.batch.output.data, c.batch.output.dtype, 0, 9.0f);
    return s;
  };
  VerifyOptions options;
  options.quick = true;
  options.power = options.shrink = false;
  options.types = {{DType::bf16, DType::fp8_e5m2}};
  options.head_dims = {80};
  EXPECT_EQ(run(t, options).verdict, VerifyVerdict::pass);
  options.head_dims = {80, 96};
  EXPECT_EQ(run(t, options).verdict, VerifyVerdict::fail);
}

TEST(Matrices, ShrinkingKeepsToTheAskedTypes) {
  Target t = right_target();
  std::set<std::string> seen;
  t.attend = [&seen, right = t.attend](const Case& c, std::string& kernel) {
    seen.insert(
        formatted("{} {} {} {}", name(c.batch.query.dtype), name(c.cache.k.dtype), name(c.cache.layout), head_dim(c.cache)));
    const Status s = right(c, kernel);
    if (c.batch.output.num_elements() > 0) semantics::store(c.batch.output.data, c.batch.output.dtype, 0, 9.0f);
    return s;
  };
  VerifyOptions options;
  options.matrices = {"hazards"};
  options.quick = true;
  options.power = false;
  options.shrink_seconds = 1;
  options.types = {{DType::bf16, DType::bf16}};
  options.head_dims = {64};
  options.layouts = {CacheLayout::nhd};
  const Verdict v = run(t, options);
  EXPECT_EQ(v.verdict, VerifyVerdict::fail);
  EXPECT_EQ(seen, std::set<std::string>{"bf16 bf16 nhd 64"});
  EXPECT_TRUE(std::ranges::any_of(v.cases, [](const CaseResult& c) { return !c.reduced_line.empty(); }));
  // A line of the caller's own lies outside, and is reduced all the same.
  options.matrices = {"random"};
  options.random_cases = 1;
  options.lines = {kLine};
  const Verdict both = run(t, options);
  const auto own = std::ranges::find(both.cases, "lines", &CaseResult::matrix);
  ASSERT_NE(own, both.cases.end());
  ASSERT_NE(own->reduced_line, "");
  EXPECT_LT(own->reduced_line.size(), own->line.size());
}

TEST(Matrices, RandomLinesAreFixedLegalAndOfBoundedCost) {
  const std::vector<Entry> a = random_matrix(7, 300), b = random_matrix(7, 300), other = random_matrix(8, 300);
  bool differ = false;
  std::size_t far = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].line, b[i].line);
    differ = differ || !(a[i].line == other[i].line);
    EXPECT_TRUE(parse_problem_line(to_string(a[i].line)).ok()) << to_string(a[i].line);
    const Problem& p = a[i].line.problem;
    const std::int64_t work = p.visible_pairs() * p.num_q_heads * p.head_dim;
    far += work > 4'000'000 ? 1 : 0;
    EXPECT_LE(work, 400'000'000) << to_string(a[i].line);
  }
  EXPECT_TRUE(differ);
  EXPECT_LE(far, a.size() / 24 + 5) << "most lines are cheap";
}

// A soak ended at its line 1173: the rows of a tree's request had been halved, the tree had not.
TEST(Matrices, EveryRandomLineIsALine) {
  for (const std::uint64_t seed : {1, 2, 3})
    for (const Entry& e : random_matrix(seed, 20'000)) {
      const Result<ProblemLine> read = parse_problem_line(to_string(e.line));
      ASSERT_TRUE(read.ok()) << to_string(e.line) << ": " << read.status().message();
    }
}

/// "q=f16", "kv=bf16", "layout=nhd", "ks=none", ... of a line.
std::vector<std::string> values_of(const ProblemLine& line) {
  const Problem& p = line.problem;
  constexpr const char* kForms[] = {"none", "tensor", "head"};
  return {formatted("q={}", name(p.q_dtype)),
          formatted("kv={}", name(p.kv_dtype)),
          formatted("layout={}", name(p.layout)),
          formatted("ks={}", kForms[static_cast<int>(p.k_scale)]),
          formatted("vs={}", kForms[static_cast<int>(p.v_scale)]),
          formatted("index={}", name(line.index_dtype))};
}

// A kernel that was wrong for e5m2fnuz, packed, with scales per head alone passed every quick hazard.
TEST(Matrices, EveryTypeMeetsEveryLayoutAndScaleForm) {
  for (const bool quick : {true, false}) {
    std::set<std::string> pairs, k_triples, v_triples;
    for (const Entry& e : hazard_matrix(quick)) {
      if (e.name != "EveryTypeLayoutScale") continue;
      const std::vector<std::string> v = values_of(e.line);
      for (std::size_t i = 0; i < v.size(); ++i)
        for (std::size_t j = i + 1; j < v.size(); ++j) pairs.insert(v[i] + " " + v[j]);
      k_triples.insert(v[1] + v[2] + v[3]);
      v_triples.insert(v[1] + v[2] + v[4]);
    }
    // 21 pairs of q and kv without f32 caches of 16-bit queries; q with layout, 2 forms, index; kv with those; and so on.
    EXPECT_EQ(pairs.size(), 19u + 3 * (3 + 3 + 3 + 2) + 7 * (3 + 3 + 3 + 2) + 3 * (3 + 3 + 2) + 3 * (3 + 2) + 3 * 2);
    EXPECT_EQ(k_triples.size(), 63u);
    EXPECT_EQ(v_triples.size(), 63u);
  }
}

TEST(Matrices, HazardsReachFar) {
  for (const bool quick : {true, false}) {
    std::size_t requests = 0;
    std::int64_t rows = 0, context = 0;
    for (const Entry& e : hazard_matrix(quick)) {
      requests = std::max(requests, e.line.problem.reqs.size());
      for (const Request& r : e.line.problem.reqs) rows = std::max(rows, r.query_len), context = std::max(context, r.context_len);
    }
    EXPECT_GE(requests, 300u);
    EXPECT_GE(rows, 4096);
    EXPECT_GE(context, 100'000);
  }
}

TEST(Matrices, RandomLinesReachFar) {
  std::size_t requests = 0;
  std::int64_t rows = 0, context = 0;
  for (const Entry& e : random_matrix(1, 2000)) {
    requests = std::max(requests, e.line.problem.reqs.size());
    for (const Request& r : e.line.problem.reqs) rows = std::max(rows, r.query_len), context = std::max(context, r.context_len);
  }
  EXPECT_GE(requests, 300u);
  EXPECT_GE(rows, 4096);
  EXPECT_GE(context, 100'000);
}

/// Adds the path of every key below `json`: "power.mutants[].id". The report's pictures have a page of their own.
void collect_keys(const nlohmann::json& json, const std::string& prefix, std::set<std::string>& keys) {
  if (json.is_array())
    for (const auto& element : json) collect_keys(element, prefix + "[]", keys);
  if (!json.is_object() || prefix.ends_with("pictures")) return;
  for (const auto& [key, value] : json.items()) {
    const std::string path = prefix.empty() ? key : prefix + "." + key;
    keys.insert(path);
    collect_keys(value, path, keys);
  }
}

TEST(Json, EveryKeyIsDocumentedAndThePageTakesIt) {
  Target t = cpu();
  t.attend = call_mutants().front().target.attend;
  VerifyOptions options = line_only();
  options.power = true;
  Verdict v = run(t, options);
  v.peer.push_back({"16-bit cache", kLine, 1e-4, 1, 2, 1, 1, 5, 100, {{"qk_ignored", false, 1e-8}}});
  EXPECT_THAT(to_string(v), HasSubstr("16-bit cache"));
  std::set<std::string> keys;
  const nlohmann::json json = nlohmann::json::parse(to_json(v));
  EXPECT_FALSE(json["cases"][0]["pictures"].is_null()) << "a failing case has pictures";
  collect_keys(json, "", keys);
  std::ifstream file(QUIRE_SOURCE_DIR "/docs/reference/verify.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const std::string& key : keys) EXPECT_THAT(page.str(), HasSubstr("`" + key + "`"));
  const Result<std::string> html = render_html(to_json(v));
  ASSERT_TRUE(html.ok()) << html.status().message();
  EXPECT_THAT(html.value(), HasSubstr("last_row_unwritten"));
}

TEST(Json, ForeignBytesStayValidJson) {
  Target t;
  t.name = "\xff\xfe";
  t.attend = [](const Case&, std::string&) { return Status(Code::unsupported, "\x80"); };
  EXPECT_TRUE(nlohmann::json::accept(to_json(run(t, line_only()))));
}

TEST(Docs, ListEveryCheckAndMutantOfTheCall) {
  std::ifstream file(QUIRE_SOURCE_DIR "/docs/reference/verify.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const std::string& check : check_names()) EXPECT_THAT(page.str(), HasSubstr("\n| `" + check + "` |"));
  for (const Mutant& m : call_mutants())
    EXPECT_THAT(page.str(), HasSubstr("\n| `" + m.id + "` | " + m.text + " | `" + m.check + "` |"));
  for (const char* id : {"reads_X_as_contiguous", "reads_k_by_strides_of_v"})
    EXPECT_THAT(page.str(), HasSubstr("\n| `" + std::string(id) + "` |"));
}

/// Off by most of what rounding the weights to f16 may cost, everywhere.
Target off_by_rounded_weights() {
  Target t;
  t.name = "f16 weights";
  t.in_place = false;
  t.attend = [](const Case& c, std::string&) -> Status {
    const Result<Reference> r = reference(c.batch, c.cache, c.options);
    if (!r.ok()) return r.status();
    for (std::size_t i = 0; i < r->out.size(); ++i)
      semantics::store(c.batch.output.data, DType::f16, static_cast<std::int64_t>(i),
                       static_cast<float>(r->out[i] + 0.9 * 0x1p-11 * r->abs_pv[i]));
    return {};
  };
  return t;
}

TEST(Verify, RoundedWeightsAreJudgedByTheToleranceThatPaysForThem) {
  const VerifyOptions options = line_only("q=f16 heads=4:2 d=8 page=4 reqs=9@30,1@12 seed=1");
  Target t = off_by_rounded_weights();
  EXPECT_EQ(run(t, options).verdict, VerifyVerdict::fail);
  t.rounded_weights = true;
  const Verdict v = run(t, options);
  EXPECT_EQ(v.cases.at(0).status, CaseStatus::pass) << to_string(v);
}

TEST(Verify, RowsThatRoundNoWeightsAreJudgedWithoutThatTolerance) {
  const VerifyOptions options = line_only("q=f16 heads=4:2 d=8 page=4 reqs=9@30,1@12 seed=1");
  Target t = off_by_rounded_weights();
  const auto only_first = [](const Case& c) {
    std::vector<bool> rows(static_cast<std::size_t>(c.batch.query.shape[0]), true);
    rows.back() = false;  // the decode row
    return rows;
  };
  t.rounded_rows = only_first;
  const Verdict v = run(t, options);
  EXPECT_EQ(v.cases.at(0).status, CaseStatus::fail);
  EXPECT_THAT(to_string(v), HasSubstr("output[token 9,")) << "the only row that is judged strictly";
  t.rounded_rows = [](const Case& c) { return std::vector<bool>(static_cast<std::size_t>(c.batch.query.shape[0]), true); };
  EXPECT_EQ(run(t, options).cases.at(0).status, CaseStatus::pass);
}

// An output of one byte that was right counted as never written: the fill of fp8 rows was a number.
TEST(Verify, NoRightOutputLooksUnwritten) {
  const Verdict v = run(cpu(), line_only("q=f32 heads=1:1 d=1 page=1 reqs=1x60 out=fp8_e4m3fn sinks=1 seed=612018"));
  EXPECT_EQ(v.cases.at(0).status, CaseStatus::pass) << to_string(v);
  for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3fn}) {
    const std::vector<std::byte> fill = fill_pattern(type, 1);
    EXPECT_TRUE(std::isnan(semantics::load(fill.data(), type, 0))) << name(type);
  }
}

}  // namespace
}  // namespace quire::verify_detail
