// SPDX-License-Identifier: Apache-2.0
// diagnose(), reduce_case() and the HTML page.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <exception>

#include "case.hpp"
#include "errors.hpp"
#include "literal.hpp"
#include "profile.hpp"
#include "quire/tools/report.hpp"
#include "types.hpp"
#include "without_gil.hpp"

namespace quire_python {
namespace {

using quire::Case;
using quire::DiagnoseOptions;
using quire::Diagnosis;
using quire::Suspicion;

std::function<void(const std::string&)> stages(const nb::object& progress, std::exception_ptr& error) {
  if (progress.is_none()) return {};
  return [&progress, &error](const std::string& stage) {
    const nb::gil_scoped_acquire locked;
    if (error != nullptr) return;
    try {
      progress(stage);
    } catch (nb::python_error&) {
      error = std::current_exception();
    }
  };
}

/// diagnose() as it was asked for, by name.
Diagnosis run(const Case& c, const nb::dict& named) {
  const Arguments given(named);
  const nb::object profile = given.get("profile"), progress = given.get("progress");
  std::exception_ptr error;
  const DiagnoseOptions options{
      .full = given.flag("full", false),
      .seconds = given.number("seconds").value_or(0),
      .profile = profile_from(profile.is_none() ? std::nullopt : std::optional(given.text("profile", ""))),
      .progress = stages(progress, error)};
  quire::Result<Diagnosis> result = without_gil([&] { return quire::diagnose(c, options); });
  if (error != nullptr) std::rethrow_exception(error);
  return unwrap(std::move(result));
}

Diagnosis diagnose_case(const PyCase& given, const nb::dict& named) { return run(given.data, named); }

/// The batch with what its output held before the call, as a capture has it. Nobody knows that of a batch without an output, nor
/// of one whose output is what was observed: NaN then.
BatchForCall with_output_before(const PyBatch& batch, const PyCache& cache, const quire::Tensor& observed) {
  const quire::Tensor& output = batch.views().output;
  if (output.present() && output.data != observed.data) return batch.to_read(cache);
  BatchForCall made = batch.with_new_output(cache);
  fill_with_nan(made);
  return made;
}

Diagnosis diagnose_batch(const PyBatch& batch, const PyCache& cache, const PyOptions* options, nb::handle observed,
                         nb::handle observed_lse, const nb::dict& named) {
  const ArrayRef out = import_array(observed, "observed", Access::read, std::string(quire::name(batch.views().query.dtype)));
  const ArrayRef lse = import_array(observed_lse, "lse");
  const BatchForCall call = with_output_before(batch, cache, out.view);
  Case c;
  c.batch = call.views;
  c.cache = cache.checked();
  c.options = options_or_default(options);
  c.observed = out.view;
  c.observed_lse = lse.view;
  return run(c, named);
}

PyCase reduce_case(const PyCase& given, const Diagnosis& diagnosis) {
  return {unwrap(without_gil([&] { return quire::reduce_case(given.data, diagnosis); }))};
}

std::string render_html(const std::string& json) { return unwrap(quire::render_html(json)); }

/// The page in a frame of its own: its styles do not reach the notebook, and nothing in it can leave the attribute.
std::string html_frame(const Diagnosis& d) {
  std::string escaped;
  for (const char c : quire::to_html(d)) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '"': escaped += "&quot;"; break;
      case '<': escaped += "&lt;"; break;
      default: escaped += c;
    }
  }
  return "<iframe title=\"quire diagnose\" width=\"100%\" height=\"640\" style=\"border:0\" sandbox=\"allow-scripts\" srcdoc=\"" +
         escaped + "\"></iframe>";
}

/// "factor_out in heads 2-3": what a suspect is called, and where it holds.
std::string called(const Suspicion& s) {
  return (s.fault.empty() ? s.mechanism : s.fault) + (s.scope.empty() ? "" : " in " + s.scope);
}

std::string suspicion_repr(const Suspicion& s) {
  const char* standing = s.certain ? ", certain" : s.refutation.empty() ? "" : ", refuted";
  return "<Suspicion " + called(s) + ": explains " + std::to_string(std::lround(100 * s.explained)) + " %" + standing + ">";
}

std::string diagnosis_repr(const Diagnosis& d) {
  using quire::DiagnosisVerdict;
  const bool named =
      (d.verdict == DiagnosisVerdict::cause_found || d.verdict == DiagnosisVerdict::mechanism_likely) && !d.suspicions.empty();
  return "<Diagnosis " + std::string(name(d.verdict)) + (named ? ": " + called(d.suspicions.front()) : "") + ", " +
         std::to_string(d.wrong_tokens.size()) + (d.wrong_tokens.size() == 1 ? " wrong row" : " wrong rows") +
         (d.profile.plain() ? "" : ", profile " + quire::to_string(d.profile)) + ">";
}

std::vector<std::string> pattern_texts(const Diagnosis& d) {
  std::vector<std::string> texts;
  for (const quire::CellPattern& pattern : d.patterns) texts.push_back(pattern.text);
  return texts;
}

void bind_suspicion(nb::module_& m) {
  nb::class_<Suspicion>(m, "Suspicion",
                        "One suspect of a diagnosis: a mechanism with its parameters and its scope, often a fault of faults().")
      .def_ro("mechanism", &Suspicion::mechanism, "Id of diagnose.md, e.g. \"factor_out\"; two joined by \" + \".")
      .def_ro("fault", &Suspicion::fault,
              "Id in faults(), or \"\" for a mechanism outside of the catalogue; two joined by \" + \".")
      .def_ro("text", &Suspicion::text, "Completes \"a kernel that ...\".")
      .def_ro("detail", &Suspicion::detail, "The parameters that fit best.")
      .def_ro("scope", &Suspicion::scope, "Where it holds, e.g. \"heads 16-31\"; \"\" for the whole batch.")
      .def_ro("next", &Suspicion::next, "What to look at next if this is the cause.")
      .def_ro("explained", &Suspicion::explained, "Share of the observed error that it explains, in [0, 1].")
      .def_ro("largest_move", &Suspicion::largest_move, "How far it moves any tested element at most.")
      .def_ro("largest_left", &Suspicion::largest_left, "The largest error that it leaves unexplained.")
      .def_ro("certain", &Suspicion::certain, "It explains every dim of every wrong row looked at, and breaks no right one.")
      .def_ro("refutation", &Suspicion::refutation, "Why it is not the cause, with numbers; empty for the cause.")
      .def("__repr__", &suspicion_repr);
}

void bind_diagnosis(nb::module_& m) {
  nb::class_<Diagnosis> diagnosis(
      m, "Diagnosis",
      "What is wrong with an output, where and why; str() says verdict, pattern, cause and next step in a few lines of 80 "
      "columns, text says all, and notebooks show the page.");
  def_literal(diagnosis, "verdict", &Diagnosis::verdict,
              "\"right\", \"cause found\", \"mechanism likely\", \"unknown cause\" or \"broken batch\".");
  diagnosis
      .def_ro("suspicions", &Diagnosis::suspicions,
              "Best first; the first is the cause if one was found. Wrong cells in separate scopes have a cause each.")
      .def_prop_ro("patterns", &pattern_texts, "Which cells are wrong, as rules: one sentence per separate set.")
      .def_ro("observations", &Diagnosis::observations, "At most ten facts that need no hypothesis.")
      .def_ro("wrong_tokens", &Diagnosis::wrong_tokens)
      .def_ro("complete", &Diagnosis::complete, "Every element was compared with the reference.")
      .def_prop_ro(
          "profile", [](const Diagnosis& d) { return quire::to_string(d.profile); },
          "What the tolerance paid for besides f32 arithmetic: \"plain\", \"weights=bf16\", ...; given, or found by itself.")
      .def_ro("problem", &Diagnosis::problem, "The problem line.")
      .def_prop_ro(
          "text", [](const Diagnosis& d) { return to_string(d); },
          "The complete report, as of quire diagnose --verbose; its lines are not broken.")
      .def_prop_ro(
          "html", [](const Diagnosis& d) { return to_html(d); }, "One self-contained page with pictures.")
      .def_prop_ro(
          "json", [](const Diagnosis& d) { return to_json(d); }, "The report as JSON (json.md), made at each access.")
      .def("_repr_html_", &html_frame)
      .def("__bool__", [](const Diagnosis& d) { return d.verdict == quire::DiagnosisVerdict::right; })
      .def("__str__", [](const Diagnosis& d) { return to_string(d, quire::DiagnosisText{}); })
      .def("__repr__", &diagnosis_repr);
}

}  // namespace

void bind_report(nb::module_& m) {
  bind_suspicion(m);
  bind_diagnosis(m);
  m.def("diagnose_case", &diagnose_case, nb::arg("case"), nb::arg("how"), "diagnose() of a case with an observed output.");
  m.def("diagnose_batch", &diagnose_batch, nb::arg("batch"), nb::arg("cache"), nb::arg("options").none(), nb::arg("observed"),
        nb::arg("lse").none(), nb::arg("how"), "diagnose() of an output and the batch that it was made from.");
  m.def("reduce_case", &reduce_case, nb::arg("case"), nb::arg("diagnosis"),
        "The smallest part of a case that still shows the same cause: fewer requests and only the pages that they read.");
  m.def("render_html", &render_html, nb::arg("json"),
        "One self-contained HTML page from Verdict.json or Diagnosis.json. Raises ParseError.");
}

}  // namespace quire_python
