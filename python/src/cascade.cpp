// SPDX-License-Identifier: Apache-2.0
// Shared prefixes: plan_cascade(), prepare_cascade() and attend_cascade(), which quire.cascade hands out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "deferred.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "quire/workspace.hpp"
#include "types.hpp"
#include "workspace.hpp"

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

Cascade plan_cascade(const PyBatch& batch, const PyCache& cache, const PyOptions* options, nb::handle runs, bool always,
                     const std::optional<std::string>& kernel, bool batch_invariant, bool exact_weights, int num_threads,
                     const std::optional<std::string>& partials) {
  check_num_threads(num_threads);
  const BatchForCall call = batch.to_read(cache);
  quire::CascadeSettings settings;
  settings.plan = settings_of_plan(kernel, batch_invariant, exact_weights, num_threads, call.views);
  settings.find = runs.is_none();
  if (!settings.find) settings.runs = runs_of(runs);
  settings.always = always;
  if (partials) {
    const std::optional<quire::DType> known = quire::dtype_from_name(*partials);
    if (!known)
      throw_error(Code::invalid_argument, "partials: \"" + *partials + "\" is no dtype; expected \"f32\" or the query's");
    settings.partials = *known;
  }
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  quire::Result<Cascade> made = [&] {
    const nb::gil_scoped_release unlocked;
    return quire::plan_cascade(call.views, c, o, settings);
  }();
  return unwrap(std::move(made));
}

/// One call on a GPU. Without waiting, what the device finds is raised by the next call or synchronize(), without the rule.
void on_gpu(const PyBatch& batch, const quire::Batch& b, const quire::KVCache& c, const quire::Options& o, const Cascade& cascade,
            nb::handle workspace, nb::handle stream, nb::handle wait, bool prepared, bool only_prepare) {
  quire::AttendOptions how{.stream = stream_for(stream, batch.arrays().query), .prepared = prepared};
  const bool alone = workspace.is_none();
  if (alone && (prepared || only_prepare))
    throw_error(Code::invalid_argument, "workspace: None, expected the one that prepare() filled for the layers of the step");
  const Wait chosen =
      wait_of(wait, alone ? Wait::yes : Wait::no, wait.is_none() ? "workspace" : "wait", b.query.memory, how.stream);
  raise_if_broken(b.query.memory, how.stream);
  const DeviceWorkspace place = device_workspace(batch.arrays().query, quire::workspace_bytes(cascade), workspace, stream);
  if (chosen == Wait::no) how.ticket = defer_untold();
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = only_prepare ? quire::prepare_cascade(cascade, b, c, o, place.bytes, how)
                          : quire::attend_cascade(cascade, b, c, o, place.bytes, how);
    if (status.ok() && chosen == Wait::yes) status = quire::cascade_status(cascade, b, c, o, place.bytes, how);
  }
  require_ok(status);
}

void on_host(const quire::Batch& b, const quire::KVCache& c, const quire::Options& o, const Cascade& cascade,
             nb::handle workspace, bool only_prepare) {
  static thread_local quire::Workspace own;
  const ArrayRef given = import_workspace(workspace);
  const std::span<std::byte> bytes = given ? bytes_of(given) : own.at_least(quire::workspace_bytes(cascade));
  const Threads threads = current_threads();
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    const quire::AttendOptions how{.executor = threads.executor.get()};
    status =
        only_prepare ? quire::prepare_cascade(cascade, b, c, o, bytes, how) : quire::attend_cascade(cascade, b, c, o, bytes, how);
  }
  require_ok(status);
}

nb::object attend_cascade(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Cascade& cascade,
                          nb::handle workspace, nb::handle stream, nb::handle wait, bool prepared) {
  const BatchForCall call = batch.to_write(cache, stream);
  const quire::Options& o = options_or_default(options);
  if (call.views.query.memory == quire::Memory::cpu)
    on_host(call.views, cache.checked(), o, cascade, workspace, false);
  else
    on_gpu(batch, call.views, cache.checked(), o, cascade, workspace, stream, wait, prepared, false);
  return result_of(batch, call);
}

void prepare_cascade(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Cascade& cascade,
                     nb::handle workspace, nb::handle stream) {
  const BatchForCall call = batch.to_read(cache);
  const quire::Options& o = options_or_default(options);
  if (call.views.query.memory == quire::Memory::cpu)
    on_host(call.views, cache.checked(), o, cascade, workspace, true);
  else
    on_gpu(batch, call.views, cache.checked(), o, cascade, workspace, stream, nb::bool_(false), false, true);
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
  m.def("plan_cascade", &plan_cascade, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("runs") = nb::none(), nb::arg("always") = false, nb::arg("kernel") = nb::none(),
        nb::arg("batch_invariant") = false, nb::arg("exact_weights") = false, nb::arg("num_threads") = 0,
        nb::arg("partials") = nb::none(), "quire.cascade.plan().");
  m.def("attend_cascade", &attend_cascade, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("plan"), nb::arg("workspace") = nb::none(), nb::arg("stream") = nb::none(), nb::arg("wait") = nb::none(),
        nb::arg("prepared") = false, "quire.cascade.attend().");
  m.def("prepare_cascade", &prepare_cascade, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("plan"), nb::arg("workspace") = nb::none(), nb::arg("stream") = nb::none(), "quire.cascade.prepare().");
}

}  // namespace quire_python
