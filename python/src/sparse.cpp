// SPDX-License-Identifier: Apache-2.0
// Key lists: KeyLists, plan_sparse(), prepare_sparse(), attend_sparse() and check_sparse(), which quire.sparse hands out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "deferred.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "quire/workspace.hpp"
#include "types.hpp"
#include "workspace.hpp"

namespace quire_python {
namespace {

using quire::Code;
using quire::KeyLists;
using quire::Sparse;

/// Lists and what keeps their memory.
struct PyLists {
  ArrayRef ids, num_keys, row_starts;
  KeyLists views;
};

template <class Enum>
Enum named(const std::string& text, const char* what, Enum first, Enum second) {
  for (const Enum value : {first, second})
    if (text == name(value)) return value;
  throw_error(Code::invalid_argument, std::string(what) + ": \"" + text + "\" is neither \"" + std::string(name(first)) +
                                          "\" nor \"" + std::string(name(second)) + "\"");
}

void make_lists(PyLists* self, nb::handle ids, nb::handle num_keys, const std::string& unit, const std::string& owner,
                nb::handle row_starts) {
  PyLists made;
  made.ids = import_index(ids, "ids");
  made.num_keys = import_index(num_keys, "num_keys", ids);
  made.row_starts = import_index(row_starts, "row_starts", ids);
  made.views.unit = named(unit, "unit", quire::ListUnit::page, quire::ListUnit::slot);
  made.views.owner = named(owner, "owner", quire::ListOwner::request, quire::ListOwner::row);
  made.views.ids = made.ids.view;
  made.views.num_keys = made.num_keys.view;
  made.views.row_starts = made.row_starts.view;
  new (self) PyLists(std::move(made));
}

const KeyLists& checked(const PyLists& lists, const PyBatch& batch) {
  const auto one = [&](const ArrayRef& array, const char* name) {
    if (!array) return;
    check_still_there(array, name);
    check_same_gpu(batch.arrays().query, "query", array, name);
  };
  one(lists.ids, "ids"), one(lists.num_keys, "num_keys"), one(lists.row_starts, "row_starts");
  return lists.views;
}

Sparse plan_sparse(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PyLists& lists,
                   const std::optional<std::string>& kernel, bool batch_invariant, bool exact_weights, int num_threads,
                   std::int64_t max_query_len, std::int64_t max_keys, bool empty_lists) {
  check_num_threads(num_threads);
  const BatchForCall call = batch.to_read(cache);
  quire::SparseSettings settings;
  settings.plan = settings_of_plan(kernel, batch_invariant, exact_weights, num_threads, call.views);
  settings.plan.max_query_len = max_query_len;
  settings.plan.max_seq_len = max_keys;
  settings.empty_lists = empty_lists;
  const KeyLists& l = checked(lists, batch);
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  quire::Result<Sparse> made = [&] {
    const nb::gil_scoped_release unlocked;
    return quire::plan_sparse(call.views, c, o, l, settings);
  }();
  return unwrap(std::move(made));
}

quire::Findings check_sparse(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PyLists& lists) {
  const BatchForCall call = batch.to_read(cache);
  const KeyLists& l = checked(lists, batch);
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  const nb::gil_scoped_release unlocked;
  return quire::check_sparse(call.views, c, o, l);
}

/// Arguments of one call.
struct Call {
  const quire::Batch& batch;
  const quire::KVCache& cache;
  const quire::Options& options;
  const KeyLists& lists;
  const Sparse& plan;
};

/// One call on a GPU. Without waiting, what the device finds is raised by the next call or synchronize(), without the rule.
void on_gpu(const Call& a, const ArrayRef& query, nb::handle workspace, nb::handle stream, nb::handle wait, bool prepared,
            bool only_prepare) {
  quire::AttendOptions how{.stream = stream_for(stream, query), .prepared = prepared};
  const bool alone = workspace.is_none();
  if (alone && (prepared || only_prepare))
    throw_error(Code::invalid_argument, "workspace: None, expected the one that prepare() filled for the layers of the step");
  const Wait chosen =
      wait_of(wait, alone ? Wait::yes : Wait::no, wait.is_none() ? "workspace" : "wait", a.batch.query.memory, how.stream);
  raise_if_broken(a.batch.query.memory, how.stream);
  const DeviceWorkspace place = device_workspace(query, quire::workspace_bytes(a.plan), workspace, stream);
  if (chosen == Wait::no) how.ticket = defer_untold();
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = only_prepare ? quire::prepare_sparse(a.plan, a.batch, a.cache, a.options, a.lists, place.bytes, how)
                          : quire::attend_sparse(a.plan, a.batch, a.cache, a.options, a.lists, place.bytes, how);
    if (status.ok() && chosen == Wait::yes)
      status = quire::sparse_status(a.plan, a.batch, a.cache, a.options, a.lists, place.bytes, how);
  }
  require_ok(status);
}

void on_host(const Call& a, nb::handle workspace, bool only_prepare) {
  static thread_local quire::Workspace own;
  const ArrayRef given = import_workspace(workspace);
  const std::span<std::byte> bytes = given ? bytes_of(given) : own.at_least(quire::workspace_bytes(a.plan));
  const Threads threads = current_threads();
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    const quire::AttendOptions how{.executor = threads.executor.get()};
    status = only_prepare ? quire::prepare_sparse(a.plan, a.batch, a.cache, a.options, a.lists, bytes, how)
                          : quire::attend_sparse(a.plan, a.batch, a.cache, a.options, a.lists, bytes, how);
  }
  require_ok(status);
}

nb::object attend_sparse(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PyLists& lists,
                         const Sparse& plan, nb::handle workspace, nb::handle stream, nb::handle wait, bool prepared) {
  const BatchForCall call = batch.to_write(cache, stream);
  const Call a{call.views, cache.checked(), options_or_default(options), checked(lists, batch), plan};
  if (call.views.query.memory == quire::Memory::cpu)
    on_host(a, workspace, false);
  else
    on_gpu(a, batch.arrays().query, workspace, stream, wait, prepared, false);
  return result_of(batch, call);
}

void prepare_sparse(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PyLists& lists,
                    const Sparse& plan, nb::handle workspace, nb::handle stream) {
  const BatchForCall call = batch.to_read(cache);
  const Call a{call.views, cache.checked(), options_or_default(options), checked(lists, batch), plan};
  if (call.views.query.memory == quire::Memory::cpu)
    on_host(a, workspace, true);
  else
    on_gpu(a, batch.arrays().query, workspace, stream, nb::bool_(false), false, true);
}

void bind_classes(nb::module_& m) {
  nb::class_<PyLists>(m, "KeyLists", "Lists of the pages or slots that rows see: quire.sparse.key_lists() makes them.")
      .def("__init__", &make_lists, nb::arg("ids"), nb::arg("num_keys") = nb::none(), nb::kw_only(), nb::arg("unit") = "slot",
           nb::arg("owner") = "row", nb::arg("row_starts") = nb::none())
      .def_prop_ro(
          "unit", [](const PyLists& l) { return std::string(name(l.views.unit)); }, "\"slot\" or \"page\".")
      .def_prop_ro(
          "owner", [](const PyLists& l) { return std::string(name(l.views.owner)); }, "\"row\" or \"request\".")
      .def_prop_ro("ids", [](const PyLists& l) { return array_object(l.ids); })
      .def_prop_ro("num_keys", [](const PyLists& l) { return l.num_keys ? array_object(l.num_keys) : nb::none(); })
      .def("__repr__", [](const PyLists& l) {
        return "<KeyLists of " + std::string(name(l.views.unit)) + "s by " + std::string(name(l.views.owner)) + " " +
               quire::to_string(l.views.ids) + ">";
      });
  nb::class_<Sparse>(m, "Sparse", "A planned call over key lists; str() says what it does, and which kernels refuse.")
      .def_prop_ro(
          "reason", [](const Sparse& s) { return s.reason; }, "Form of the lists, and the batches that stand for them.")
      .def_prop_ro(
          "kernels",
          [](const Sparse& s) {
            std::vector<std::string> names;
            for (const quire::Plan& plan : s.plans) names.emplace_back(plan.kernel.name());
            return names;
          },
          "Of each batch: one, or one for each KV head.")
      .def_prop_ro("workspace_bytes", [](const Sparse& s) { return quire::workspace_bytes(s); })
      .def("__str__", [](const Sparse& s) { return quire::to_string(s); })
      .def("__repr__", [](const Sparse& s) { return "<Sparse " + s.reason + ">"; });
}

}  // namespace

void bind_sparse(nb::module_& m) {
  bind_classes(m);
  m.def("plan_sparse", &plan_sparse, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("lists"), nb::arg("kernel") = nb::none(), nb::arg("batch_invariant") = false, nb::arg("exact_weights") = false,
        nb::arg("num_threads") = 0, nb::arg("max_query_len") = 0, nb::arg("max_keys") = 0, nb::arg("empty_lists") = false,
        "quire.sparse.plan().");
  m.def("check_sparse", &check_sparse, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("lists"), "quire.sparse.check().");
  m.def("attend_sparse", &attend_sparse, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("lists"), nb::arg("plan"), nb::arg("workspace") = nb::none(), nb::arg("stream") = nb::none(),
        nb::arg("wait") = nb::none(), nb::arg("prepared") = false, "quire.sparse.attend().");
  m.def("prepare_sparse", &prepare_sparse, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("lists"), nb::arg("plan"), nb::arg("workspace") = nb::none(), nb::arg("stream") = nb::none(),
        "quire.sparse.prepare().");
}

}  // namespace quire_python
