// SPDX-License-Identifier: Apache-2.0
// diagnose_ranks(): the search for a cause over one capture per rank; and the faults of ranks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "case.hpp"
#include "errors.hpp"
#include "literal.hpp"
#include "quire/rank_diagnosis.hpp"
#include "quire/rank_faults.hpp"
#include "quire/report.hpp"
#include "types.hpp"
#include "without_gil.hpp"

namespace quire_python {
namespace {

using quire::RankDiagnosis;
using quire::RankSuspicion;

RankDiagnosis diagnose_ranks(const std::vector<const PyCase*>& captures, bool full, double seconds) {
  std::vector<quire::Case> cases;
  for (const PyCase* const c : captures) cases.push_back(c->data);
  return unwrap(without_gil(
      [&] { return quire::diagnose_ranks(cases, {.full = full, .seconds = seconds, .profile = {}, .progress = {}}); }));
}

/// (who, fault, detail) of everything that explains all elements.
std::vector<std::tuple<std::string, std::string, std::string>> causes_of(const RankDiagnosis& d) {
  std::vector<std::tuple<std::string, std::string, std::string>> causes;
  const auto add = [&](const std::string& who, const std::vector<RankSuspicion>& list) {
    for (const RankSuspicion& s : list)
      if (s.explains) causes.emplace_back(who, s.fault, s.detail);
  };
  for (const quire::RankPart& part : d.parts) {
    const std::string who = "part of rank " + std::to_string(part.rank);
    add(who, part.suspicions);
    if (part.own && part.own->verdict == quire::DiagnosisVerdict::cause_found)
      causes.emplace_back(who, part.own->suspicions.front().fault, part.own->suspicions.front().detail);
  }
  for (const quire::RankResult& result : d.results) {
    std::string ranks;
    for (const std::int32_t rank : result.ranks) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    add((result.ranks.size() > 1 ? "result of ranks " : "result of rank ") + ranks, result.suspicions);
  }
  return causes;
}

}  // namespace

void bind_rank_diagnosis(nb::module_& m) {
  nb::class_<RankDiagnosis> diagnosis(
      m, "RankDiagnosis",
      "What is wrong with the result of ranks that share a context; str() says it in ten lines, text all of it.");
  def_literal(diagnosis, "verdict", &RankDiagnosis::verdict,
              "\"right\", \"cause found\", \"unknown cause\" or \"broken batch\" (ranks disagree, or a rank breaks a rule).");
  diagnosis
      .def_prop_ro(
          "causes", &causes_of,
          "(\"result of ranks 0, 1\" or \"part of rank 2\", fault, detail) of each fault that explains every element, best "
          "first.")
      .def_ro("disagreements", &RankDiagnosis::disagreements, "What ranks do not agree on, with values.")
      .def_prop_ro(
          "text", [](const RankDiagnosis& d) { return quire::to_string(d); }, "The complete report.")
      .def_prop_ro(
          "json", [](const RankDiagnosis& d) { return quire::to_json(d); }, "The report as JSON, made at each access.")
      .def("__bool__", [](const RankDiagnosis& d) { return d.verdict == quire::DiagnosisVerdict::right; })
      .def("__str__", [](const RankDiagnosis& d) { return quire::to_string(d, quire::DiagnosisText{}); })
      .def("__repr__", [](const RankDiagnosis& d) { return "<RankDiagnosis " + std::string(name(d.verdict)) + ">"; });
  m.def("diagnose_ranks", &diagnose_ranks, nb::arg("captures"), nb::arg("full"), nb::arg("seconds"),
        "The search for a cause over one capture per rank.");
  m.def("rank_faults", &quire::rank_faults, "The catalogue of faults of ranks that share a context.");
}

}  // namespace quire_python
