// SPDX-License-Identifier: Apache-2.0
// Key lists: KeyLists, plan_sparse(), prepare_sparse(), attend_sparse() and check_sparse(), which quire.sparse hands out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "errors.hpp"
#include "planned.hpp"
#include "types.hpp"

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
                   const nb::dict& named) {
  const Arguments given(named);
  const BatchForCall call = batch.to_read(cache);
  quire::SparseSettings settings;
  settings.plan = settings_of_plan(settings_given(given), call.views);
  settings.plan.max_seq_len = given.integer("max_keys").value_or(0);
  settings.empty_lists = given.flag("empty_lists", false);
  const KeyLists& l = checked(lists, batch);
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  return unwrap(without_gil([&] { return quire::plan_sparse(call.views, c, o, l, settings); }));
}

quire::Findings check_sparse(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PyLists& lists) {
  const BatchForCall call = batch.to_read(cache);
  const KeyLists& l = checked(lists, batch);
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  const nb::gil_scoped_release unlocked;
  return quire::check_sparse(call.views, c, o, l);
}

constexpr Steps<Sparse, quire::Batch, quire::KVCache, quire::Options, KeyLists> kListSteps{
    quire::prepare_sparse, quire::attend_sparse, quire::sparse_status};

nb::object attend_sparse(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PyLists& lists,
                         const Sparse& plan, const Asked& asked) {
  const BatchForCall call = batch.to_write(cache, asked.stream);
  run_planned(kListSteps, batch.arrays().query, asked, plan, call.views, cache.checked(), options_or_default(options),
              checked(lists, batch));
  return result_of(batch, call);
}

void prepare_sparse(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PyLists& lists,
                    const Sparse& plan, nb::handle workspace, nb::handle stream) {
  run_planned(kListSteps, batch.arrays().query, {workspace, stream, nb::handle(Py_False), false, true}, plan,
              batch.to_read(cache).views, cache.checked(), options_or_default(options), checked(lists, batch));
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
  m.def("plan_sparse", &plan_sparse, nb::arg("batch"), nb::arg("cache"), nb::arg("options").none(), nb::arg("lists"),
        nb::arg("settings"), "quire.sparse.plan().");
  m.def("check_sparse", &check_sparse, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("lists"), "quire.sparse.check().");
  m.def(
      "attend_sparse",
      [](const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PyLists& lists, const Sparse& plan,
         nb::handle workspace, nb::handle stream, nb::handle wait,
         bool prepared) { return attend_sparse(batch, cache, options, lists, plan, {workspace, stream, wait, prepared}); },
      nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(), nb::arg("lists"), nb::arg("plan"),
      nb::arg("workspace") = nb::none(), nb::arg("stream") = nb::none(), nb::arg("wait") = nb::none(),
      nb::arg("prepared") = false, "quire.sparse.attend().");
  m.def("prepare_sparse", &prepare_sparse, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::kw_only(),
        nb::arg("lists"), nb::arg("plan"), nb::arg("workspace") = nb::none(), nb::arg("stream") = nb::none(),
        "quire.sparse.prepare().");
}

}  // namespace quire_python
