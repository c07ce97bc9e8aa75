// SPDX-License-Identifier: Apache-2.0
// verify() over a Python callable: the calls in, with the GIL and their exceptions, and the verdict out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>

#include "case.hpp"
#include "cli/command_line.h"
#include "errors.hpp"
#include "executor.hpp"
#include "literal.hpp"
#include "quire/tools/report.hpp"
#include "types.hpp"
#include "without_gil.hpp"

namespace quire_python {
namespace {

using quire::Case;
using quire::CaseResult;
using quire::CheckResult;
using quire::Code;
using quire::MutantResult;
using quire::PeerPower;
using quire::Status;
using quire::Target;
using quire::Verdict;
using quire::VerifyOptions;

/// Ctrl-C and sys.exit() in a callback end the run; they are kept here until verify() has returned.
struct Interrupt {
  std::exception_ptr error;
  bool happened() const { return error != nullptr; }
};

bool ends_the_run(nb::python_error& e) { return e.matches(PyExc_KeyboardInterrupt) || e.matches(PyExc_SystemExit); }

/// "ValueError: shapes differ"; the code decides whether it is a refusal.
Status status_of(nb::python_error& e) {
  const std::string text = nb::cast<std::string>(nb::str(e.value()));
  const std::string name = nb::cast<std::string>(nb::handle(e.type()).attr("__name__"));
  const nb::object refusal = nb::module_::import_("quire.errors").attr("UnsupportedError");
  if (e.matches(refusal.ptr())) return {Code::unsupported, text};
  if (e.matches(PyExc_NotImplementedError)) return {Code::unsupported, text.empty() ? name : text};
  return {Code::internal_error, text.empty() ? name : name + ": " + text};
}

/// The case as Python sees it: a copy that shares the memory, so that arrays which the callable keeps stay valid.
nb::object lend(const Case& c) { return nb::cast(new PyCase{c}, nb::rv_policy::take_ownership); }

quire::AttendCase attend_with(nb::object function, Interrupt& interrupt) {
  // The wrapper is copied and destroyed without the GIL; the object behind it is not.
  const std::shared_ptr<nb::object> held(new nb::object(std::move(function)), [](nb::object* f) {
    const nb::gil_scoped_acquire locked;
    delete f;
  });
  return [held, &interrupt](const Case& c, std::string& kernel) -> Status {
    const nb::gil_scoped_acquire locked;
    if (interrupt.happened()) return {Code::internal_error, "interrupted"};
    try {
      kernel = nb::cast<std::string>((*held)(lend(c)));
      return {};
    } catch (nb::python_error& e) {
      if (ends_the_run(e)) interrupt.error = std::current_exception();
      return status_of(e);
    }
  };
}

std::function<bool(std::int64_t, std::int64_t, const std::string&)> progress_with(const nb::object& report,
                                                                                  Interrupt& interrupt) {
  return [&report, &interrupt](std::int64_t done, std::int64_t total, const std::string& label) {
    const nb::gil_scoped_acquire locked;
    if (interrupt.happened()) return false;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      return report.is_none() || !report(done, total, label).is(nb::bool_(false));
    } catch (nb::python_error&) {
      interrupt.error = std::current_exception();
      return false;
    }
  };
}

const char* name_of(quire::ScaleKind kind) {
  switch (kind) {
    case quire::ScaleKind::per_tensor: return "tensor";
    case quire::ScaleKind::per_head: return "head";
    case quire::ScaleKind::per_token: return "token";
    case quire::ScaleKind::none: break;
  }
  return "none";
}

/// The attributes of a problem that quire._supports names.
nb::dict attributes_of(const quire::ProblemLine& line) {
  const quire::Problem& p = line.problem;
  const auto text = [](std::string_view name) { return nb::str(name.data(), name.size()); };
  nb::list reqs;
  for (const quire::Request& r : p.reqs) reqs.append(nb::make_tuple(r.query_len, r.context_len, r.cached_len));
  nb::dict d;
  d["query"] = text(quire::name(p.q_dtype));
  d["kv"] = text(quire::name(p.kv_dtype));
  d["v"] = text(quire::name(p.value_dtype()));
  d["layout"] = text(quire::name(p.layout));
  d["num_q_heads"] = p.num_q_heads;
  d["num_kv_heads"] = p.num_kv_heads;
  d["head_dim"] = p.head_dim;
  d["v_head_dim"] = p.out_dim();
  d["latent"] = p.latent;
  d["page_size"] = p.page_size;
  d["reqs"] = std::move(reqs);
  d["sliding_window"] = p.sliding_window;
  d["logits_soft_cap"] = p.logits_soft_cap;
  d["softmax_scale"] = p.softmax_scale;
  d["alibi"] = p.alibi;
  d["sinks"] = p.sinks;
  d["lse"] = p.lse;
  d["k_scale"] = name_of(p.k_scale);
  d["v_scale"] = name_of(p.v_scale);
  d["index"] = text(quire::name(line.index_dtype));
  d["padding"] = p.padding == quire::Padding::refused ? nb::object(nb::none()) : nb::object(text(quire::name(p.padding)));
  d["num_padding_rows"] = p.num_padding_rows;
  d["shared_pages"] = line.shared_pages;
  d["causal"] = std::all_of(p.reqs.begin(), p.reqs.end(), [](const quire::Request& r) { return r.causal; });
  d["q_begin"] = p.has_q_begin;
  d["key_begin"] = p.has_key_begin;
  d["window_right"] = p.window_right;
  d["attention_chunk"] = p.attention_chunk;
  d["prefix"] = p.has_prefix;
  d["spans"] = p.has_spans;
  d["tree"] = p.has_tree;
  d["line"] = quire::to_string(line);
  return d;
}

/// Wraps Python's function of supported problems; null if Python gave none.
quire::Supports supports_with(const nb::object& function, Interrupt& interrupt) {
  if (function.is_none()) return nullptr;
  return [&function, &interrupt](const quire::ProblemLine& line) {
    const nb::gil_scoped_acquire locked;
    if (interrupt.happened()) return false;
    try {
      return nb::cast<bool>(function(attributes_of(line)));
    } catch (nb::python_error&) {
      interrupt.error = std::current_exception();
      return false;
    }
  };
}

quire::DType type_named(const std::string& text) {
  const std::optional<quire::DType> type = quire::dtype_from_name(text);
  if (type) return *type;
  throw_status({Code::invalid_argument, "types: '" + text + "' is no type; they are written as f32, f16, bf16, fp8_e4m3fn"});
}

/// A list that was given by name.
template <typename T>
std::vector<T> list_given(const Arguments& given, const char* name) {
  std::vector<T> list;
  const nb::object value = given.get(name);
  if (!nb::try_cast(value, list))
    throw_error(Code::invalid_argument, std::string(name) + ": " + shown(value) + ", expected a list");
  return list;
}

/// What verify() and soak() have in common.
template <typename Into>
void set_asked(Into& options, const Arguments& given, const nb::object& supports, Interrupt& interrupt) {
  for (const auto& [query, cache] : list_given<std::pair<std::string, std::string>>(given, "types"))
    options.types.push_back({type_named(query), type_named(cache)});
  options.head_dims = list_given<std::int64_t>(given, "dims");
  for (const std::string& text : list_given<std::string>(given, "layouts")) {
    const std::optional<quire::CacheLayout> layout = quire::layout_from_name(text);
    if (!layout) throw_status({Code::invalid_argument, "layouts: '" + text + "' is none of nhd, hnd, packed"});
    options.layouts.push_back(*layout);
  }
  options.supports = supports_with(supports, interrupt);
  options.seed = static_cast<std::uint64_t>(given.integer("seed").value_or(1));
  options.shrink = given.flag("shrink", true);
  options.shrink_seconds = given.number("shrink_seconds").value_or(0);
}

/// Sets the strides of inputs that a target takes, by name; an empty name leaves them as they are.
void set_strides(Target& target, const std::string& text) {
  if (text.empty()) return;
  const std::optional<quire::Strides> strides = quire::strides_from_name(text);
  if (!strides) throw_status({Code::invalid_argument, "strides: '" + text + "' is none of none, rows, any"});
  target.strides = *strides;
}

Target target_of(const nb::object& runner, Interrupt& interrupt) {
  Target target;
  target.name = nb::cast<std::string>(runner.attr("name"));
  target.attend = attend_with(runner.attr("attend"), interrupt);
  target.deterministic = nb::cast<bool>(runner.attr("deterministic"));
  target.rounded_weights = nb::cast<bool>(runner.attr("rounded_weights"));
  target.in_place = nb::cast<bool>(runner.attr("in_place"));
  target.batch_invariant = nb::cast<bool>(runner.attr("batch_invariant"));
  set_strides(target, nb::cast<std::string>(runner.attr("strides")));
  target.padding = nb::cast<bool>(runner.attr("padding"));
  target.eight_bit_rows = nb::cast<bool>(runner.attr("eight_bit_rows"));
  target.token_scales = nb::cast<bool>(runner.attr("token_scales"));
  target.block_scales = nb::cast<bool>(runner.attr("block_scales"));
  target.unlike_types = nb::cast<bool>(runner.attr("unlike_types"));
  target.masks = nb::cast<bool>(runner.attr("masks"));
  target.v_head_dim = nb::cast<bool>(runner.attr("v_head_dim"));
  for (auto [name, function] : nb::cast<nb::dict>(runner.attr("variants")))
    target.variants.emplace_back(nb::cast<std::string>(name), attend_with(nb::borrow(function), interrupt));
  target.skip = nb::cast<std::map<std::string, std::string>>(runner.attr("skip"));
  return target;
}

/// A kernel of Quire by its name, or a runner.
Target made_target(const nb::object& target, Interrupt& interrupt) {
  if (!nb::isinstance<nb::str>(target)) return target_of(target, interrupt);
  return unwrap(quire::backend_target(nb::cast<std::string>(target), current_threads().chosen));
}

Verdict run(const Target& target, const VerifyOptions& options, const Interrupt& interrupt) {
  quire::Result<Verdict> result = without_gil([&] { return quire::verify(target, options); });
  if (interrupt.happened()) std::rethrow_exception(interrupt.error);
  return unwrap(std::move(result));
}

Verdict verify_target(const nb::object& target, const nb::dict& named) {
  const Arguments given(named);
  const nb::object supports = given.get("supports"), progress = given.get("progress");  // the options refer to them
  Interrupt interrupt;
  VerifyOptions options;
  set_asked(options, given, supports, interrupt);
  options.matrices = list_given<std::string>(given, "matrices");
  options.lines = list_given<std::string>(given, "lines");
  options.quick = given.flag("quick", false);
  options.power = given.flag("power", true);
  options.peer_power = given.flag("peer_power", false);
  options.random_cases = given.integer("random_cases").value_or(0);
  options.disabled_checks = list_given<std::string>(given, "disabled_checks");
  options.progress = progress_with(progress, interrupt);
  Target made = made_target(target, interrupt);
  set_strides(made, given.text("strides", ""));
  return run(made, options, interrupt);
}

/// Ctrl-C ends a soak like its time limit; any other exception of a callback is rethrown.
quire::SoakResult soak_target(const nb::object& target, const nb::dict& named) {
  const Arguments given(named);
  const nb::object supports = given.get("supports"), progress = given.get("progress");  // the options refer to them
  Interrupt interrupt;
  quire::SoakOptions options;
  set_asked(options, given, supports, interrupt);
  options.minutes = given.number("minutes").value_or(0);
  options.directory = given.text("directory", "");
  bool stopped = false;
  options.progress = [&](const std::string& label) {
    const nb::gil_scoped_acquire locked;
    if (interrupt.happened() || stopped) return false;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      return progress.is_none() || !progress(label).is(nb::bool_(false));
    } catch (nb::python_error& e) {
      stopped = e.matches(PyExc_KeyboardInterrupt);
      if (!stopped) interrupt.error = std::current_exception();
      return false;
    }
  };
  Target made = made_target(target, interrupt);
  set_strides(made, given.text("strides", ""));
  quire::Result<quire::SoakResult> result = [&] {
    const nb::gil_scoped_release unlocked;
    return quire::soak({made}, options);
  }();
  if (interrupt.happened()) std::rethrow_exception(interrupt.error);
  return unwrap(std::move(result));
}

void bind_results(nb::module_& m) {
  nb::class_<CheckResult> check(m, "CheckResult", "One check of one case.");
  def_literal(check, "state", &CheckResult::state, "\"pass\", \"fail\" or \"skipped\".");
  check.def_ro("check", &CheckResult::check)
      .def_ro("worst_ratio", &CheckResult::worst_ratio, "Largest |error| / tolerance, where the check measures one.")
      .def_ro("text", &CheckResult::text, "What failed, or why it was skipped.")
      .def("__repr__", [](const CheckResult& c) { return "<CheckResult " + c.check + ": " + std::string(name(c.state)) + ">"; });
  nb::class_<CaseResult> one_case(m, "CaseResult", "One case of a matrix.");
  def_literal(one_case, "status", &CaseResult::status, "\"pass\", \"fail\" or \"refused\".");
  one_case.def_ro("matrix", &CaseResult::matrix)
      .def_ro("name", &CaseResult::name)
      .def_ro("line", &CaseResult::line, "The problem line that reruns it.")
      .def_ro("special", &CaseResult::special, "What was done to the data where the line cannot say it, or empty.")
      .def_ro("kernel", &CaseResult::kernel)
      .def_ro("reason", &CaseResult::reason, "Why it was refused.")
      .def_ro("seconds", &CaseResult::seconds)
      .def_ro("checks", &CaseResult::checks)
      .def_ro("reduced_line", &CaseResult::reduced_line, "Of a failing case: the smallest problem line that still fails.")
      .def_ro("reduced_finding", &CaseResult::reduced_finding)
      .def("__repr__", [](const CaseResult& c) { return "<CaseResult " + std::string(name(c.status)) + ": " + c.line + ">"; });
  nb::class_<MutantResult>(m, "MutantResult", "What became of one planted fault.")
      .def_ro("id", &MutantResult::id)
      .def_ro("family", &MutantResult::family)
      .def_ro("text", &MutantResult::text)
      .def_ro("killed", &MutantResult::killed)
      .def_ro("asked", &MutantResult::asked, "False: only a case that the target refused or a check that it skips would show it.")
      .def_ro("can_show", &MutantResult::can_show, "False: on no case that was asked would it move an element.")
      .def_ro("check", &MutantResult::check)
      .def_ro("name", &MutantResult::name)
      .def_ro("line", &MutantResult::line)
      .def_ro("finding", &MutantResult::finding)
      .def("__repr__", [](const MutantResult& r) {
        return "<MutantResult " + r.id + (r.killed ? ": killed by " + r.check : r.asked ? ": survived" : ": not asked") + ">";
      });
  nb::class_<PeerPower>(m, "PeerPower", "The same catalogue under the data and tolerance of vLLM's test_prefix_prefill.py.")
      .def_ro("name", &PeerPower::name)
      .def_ro("line", &PeerPower::line)
      .def_ro("atol", &PeerPower::atol)
      .def_ro("killed", &PeerPower::killed)
      .def_ro("total", &PeerPower::total)
      .def("__repr__", [](const PeerPower& p) {
        return "<PeerPower " + p.name + ": " + std::to_string(p.killed) + " of " + std::to_string(p.total) + " killed>";
      });
}

}  // namespace

void bind_soak(nb::module_& m) {
  using quire::SoakCounts;
  using quire::SoakFinding;
  using quire::SoakResult;
  nb::class_<SoakCounts>(m, "SoakCounts", "What became of one target in a soak, earlier runs of the same state included.")
      .def_ro("target", &SoakCounts::target)
      .def_ro("cases", &SoakCounts::cases)
      .def_ro("passed", &SoakCounts::passed)
      .def_ro("failed", &SoakCounts::failed)
      .def_ro("refused", &SoakCounts::refused)
      .def_ro("worst_ratio", &SoakCounts::worst_ratio, "Largest |error| / tolerance.");
  nb::class_<SoakFinding>(m, "SoakFinding", "A case of a soak that failed.")
      .def_ro("target", &SoakFinding::target)
      .def_ro("check", &SoakFinding::check)
      .def_ro("text", &SoakFinding::text)
      .def_ro("line", &SoakFinding::line)
      .def_ro("reduced_line", &SoakFinding::reduced_line, "The smallest problem line that still fails, or empty.")
      .def_ro("reduced_finding", &SoakFinding::reduced_finding);
  nb::class_<SoakResult>(m, "SoakResult", "The result of soak(); true if no case of any run failed, str() is the report.")
      .def_ro("seed", &SoakResult::seed)
      .def_ro("first", &SoakResult::first, "The first random line of the seed that this run asked.")
      .def_ro("next", &SoakResult::next, "The first that it did not ask.")
      .def_ro("seconds", &SoakResult::seconds)
      .def_ro("total_seconds", &SoakResult::total_seconds, "Of all runs of the state.")
      .def_ro("counts", &SoakResult::counts)
      .def_ro("findings", &SoakResult::findings)
      .def_ro("interrupted", &SoakResult::interrupted, "Lines that ran when the process of an earlier run ended.")
      .def_prop_ro("text", [](const SoakResult& r) { return to_string(r); })
      .def_prop_ro(
          "json", [](const SoakResult& r) { return to_json(r); }, "The report as JSON (json.md), made at each access.")
      .def("__bool__", &SoakResult::ok)
      .def("__str__", [](const SoakResult& r) { return to_string(r); });
}

void bind_verify(nb::module_& m) {
  bind_results(m);
  bind_soak(m);
  nb::class_<Verdict> verdict(m, "Verdict", "The result of verify(); true if it is a pass, str() is the report for a terminal.");
  def_literal(verdict, "verdict", &Verdict::verdict, "\"pass\", \"fail\", \"mistrusted\" or \"stopped\".");
  verdict.def_ro("target", &Verdict::target)
      .def_ro("seconds", &Verdict::seconds)
      .def_ro("cases", &Verdict::cases)
      .def_ro("power", &Verdict::power, "Every planted fault, and the check that noticed it.")
      .def_ro("peer", &Verdict::peer)
      .def_ro("supported", &Verdict::supported, "What supports said yes to, in words.")
      .def_ro("left_out", &Verdict::left_out, "Cases by name that have no form which is supported.")
      .def_prop_ro("text", [](const Verdict& v) { return to_string(v); })
      .def_prop_ro(
          "html", [](const Verdict& v) { return to_html(v); }, "One self-contained page with pictures.")
      .def_prop_ro(
          "json", [](const Verdict& v) { return to_json(v); },
          "The report as JSON (json.md), made at each access; render_html() makes a page of it.")
      .def("__bool__", [](const Verdict& v) { return v.verdict == quire::VerifyVerdict::pass; })
      .def("__str__", [](const Verdict& v) { return to_string(v); })
      .def("__repr__", [](const Verdict& v) {
        return "<Verdict " + std::string(name(v.verdict)) + " of " + v.target + ": " + std::to_string(v.cases.size()) + " cases>";
      });
  m.def("verify_json", &quire::cli::verify_json, nb::arg("verdict"), nb::arg("exit_code"), "What `quire verify --json` prints.");
  m.def("soak_json", &quire::cli::soak_json, nb::arg("result"), nb::arg("folder"), nb::arg("exit_code"),
        "What `quire verify --soak --json` prints.");
  m.def("verify_target", &verify_target, nb::arg("target"), nb::arg("asked"),
        "verify() for a backend's name or a quire.targets.Runner.");
  m.def("soak_target", &soak_target, nb::arg("target"), nb::arg("asked"),
        "soak() for a backend's name or a quire.targets.Runner.");
}

}  // namespace quire_python
