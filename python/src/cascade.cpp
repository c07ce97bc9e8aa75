// SPDX-License-Identifier: Apache-2.0
// Shared prefixes: plan_cascade(), prepare_cascade() and attend_cascade(), which quire.cascade hands out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "errors.hpp"
#include "planned.hpp"
#include "types.hpp"

namespace quire_python {
namespace {

using quire::Cascade;
using quire::Code;
using quire::SharedRun;

/// A run as Python has it: (first request, end of requests, first page, end of pages).
nb::tuple tuple_of(const SharedRun& run) { return nb::make_tuple(run.req_begin, run.req_end, run.page_begin, run.page_end); }

std::vector<SharedRun> runs_of(nb::handle runs) {
  std::vector<SharedRun> made;
  const nb::object list = nb::steal(PySequence_Tuple(runs.ptr()));
  if (!list.is_valid()) {
    PyErr_Clear();
    throw_error(Code::invalid_argument,
                "runs: " + shown(runs) + ", expected a list of (req_begin, req_end, page_begin, page_end)");
  }
  for (const nb::handle run : list) {
    const nb::object numbers = nb::steal(PySequence_Tuple(run.ptr()));
    if (!numbers.is_valid() || nb::len(numbers) != 4) {
      PyErr_Clear();
      throw_error(Code::invalid_argument,
                  "runs[" + std::to_string(made.size()) + "]: expected (req_begin, req_end, page_begin, page_end)");
    }
    std::int64_t n[4];
    for (std::size_t i = 0; i < 4; ++i)
      if (!nb::try_cast(numbers[i], n[i]))
        throw_error(Code::invalid_argument,
                    "runs[" + std::to_string(made.size()) + "][" + std::to_string(i) + "]: expected an integer");
    made.push_back({n[0], n[1], n[2], n[3]});
  }
  return made;
}

Cascade plan_cascade(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const nb::dict& named) {
  const Arguments given(named);
  const BatchForCall call = batch.to_read(cache);
  quire::CascadeSettings settings;
  settings.plan = settings_of_plan(settings_given(given), call.views);
  const nb::object runs = given.get("runs");
  settings.find = runs.is_none();
  if (!settings.find) settings.runs = runs_of(runs);
  settings.always = given.flag("always", false);
  if (const std::string partials = given.text("partials", ""); !partials.empty()) {
    const std::optional<quire::DType> known = quire::dtype_from_name(partials);
    if (!known)
      throw_error(Code::invalid_argument, "partials: \"" + partials + "\" is no dtype; expected \"f32\" or the query's");
    settings.partials = *known;
  }
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  return unwrap(without_gil([&] { return quire::plan_cascade(call.views, c, o, settings); }));
}

constexpr Steps<Cascade, quire::Batch, quire::KVCache, quire::Options> kSteps{quire::prepare_cascade, quire::attend_cascade,
                                                                              quire::cascade_status};

nb::object attend_cascade(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Cascade& cascade,
                          nb::handle workspace, nb::handle stream, nb::handle wait, bool prepared) {
  const BatchForCall call = batch.to_write(cache, stream);
  run_planned(kSteps, batch.arrays().query, {workspace, stream, wait, prepared}, cascade, call.views, cache.checked(),
              options_or_default(options));
  return result_of(batch, call);
}

void prepare_cascade(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Cascade& cascade,
                     nb::handle workspace, nb::handle stream) {
  run_planned(kSteps, batch.arrays().query, {workspace, stream, nb::handle(Py_False), false, true}, cascade,
              batch.to_read(cache).views, cache.checked(), options_or_default(options));
}

std::string described(const Cascade& c) {
  std::string text = quire::to_string(c.shared, c.problem);
  for (std::size_t l = 0; l < c.levels.size(); ++l) {
    text += (c.levels[l].own ? "own keys  " : "level " + std::to_string(l) + "   ") + quire::to_string(c.levels[l].plan);
    text += c.levels[l].beside ? ", beside own keys\n" : "\n";
  }
  if (c.levels.empty()) text += "all keys  " + quire::to_string(c.plain) + "\n";
  return text;
}

void bind_class(nb::module_& m) {
  nb::class_<Cascade>(m, "Cascade",
                      "A step whose requests read shared pages once; str() says what is shared, and why or why not.")
      .def_prop_ro(
          "runs",
          [](const Cascade& c) {
            nb::list levels;
            for (const std::vector<SharedRun>& level : c.shared.levels) {
              nb::list runs;
              for (const SharedRun& run : level) runs.append(tuple_of(run));
              levels.append(runs);
            }
            return levels;
          },
          "Shared runs, level by level: (req_begin, req_end, page_begin, page_end) each.")
      .def_prop_ro(
          "pages", [](const Cascade& c) { return c.shared.pages; }, "Leading pages of each request that runs hold.")
      .def_prop_ro(
          "reason", [](const Cascade& c) { return c.shared.reason; }, "Why pages are shared, or why not.")
      .def_prop_ro("shares", [](const Cascade& c) { return c.shared.shares(); })
      .def_prop_ro("saved_bytes", [](const Cascade& c) { return c.shared.saved_bytes; })
      .def_prop_ro("added_bytes", [](const Cascade& c) { return c.shared.added_bytes; })
      .def_prop_ro(
          "kernels",
          [](const Cascade& c) {
            std::vector<std::string> names;
            for (const quire::CascadeLevel& level : c.levels) names.emplace_back(level.plan.kernel.name());
            if (c.levels.empty()) names.emplace_back(c.plain.kernel.name());
            return names;
          },
          "Of each level, own keys last.")
      .def_prop_ro("workspace_bytes", [](const Cascade& c) { return quire::workspace_bytes(c); })
      .def("__str__", &described)
      .def("__repr__", [](const Cascade& c) { return "<Cascade " + c.shared.reason + ">"; });
}

}  // namespace

void bind_cascade(nb::module_& m) {
  bind_class(m);
  m.def("plan_cascade", &plan_cascade, nb::arg("batch"), nb::arg("cache"), nb::arg("options").none(), nb::arg("settings"),
        "quire.cascade.plan().");
  m.def("attend_cascade", &attend_cascade, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("plan"), nb::arg("workspace") = nb::none(), nb::arg("stream") = nb::none(), nb::arg("wait") = nb::none(),
        nb::arg("prepared") = false, "quire.cascade.attend().");
  m.def("prepare_cascade", &prepare_cascade, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("plan"), nb::arg("workspace") = nb::none(), nb::arg("stream") = nb::none(), "quire.cascade.prepare().");
}

}  // namespace quire_python
