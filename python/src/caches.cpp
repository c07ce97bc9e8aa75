// SPDX-License-Identifier: Apache-2.0
// compare_caches(): captures, cases, or caches with their tables.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <deque>

#include "arguments.hpp"
#include "case.hpp"
#include "errors.hpp"
#include "quire/tools/compare_caches.hpp"
#include "types.hpp"
#include "without_gil.hpp"

namespace quire_python {
namespace {

using quire::CacheComparison;
using quire::CacheContents;
using quire::CachePart;

/// One cache of a comparison: its contents, and the Python objects and arrays that hold their memory.
struct Side {
  CacheContents contents;
  nb::object object;
  std::deque<ArrayRef> arrays;
};

/// Reads (cache, block_table, lengths), (cache, block_table, lengths, request_ids) or (batch, cache) into `side`.
void read_tuple(Side& side, const nb::tuple& given, const char* name) {
  if (given.size() == 2 && nb::isinstance<PyBatch>(given[0]) && nb::isinstance<PyCache>(given[1])) {
    side.contents =
        quire::contents_of(nb::cast<const PyBatch&>(given[0]).checked(), nb::cast<const PyCache&>(given[1]).checked());
    return;
  }
  if (given.size() < 3 || given.size() > 4 || !nb::isinstance<PyCache>(given[0]))
    throw_error(quire::Code::invalid_argument,
                std::string(name) + ": a tuple of " + std::to_string(given.size()) +
                    ", expected (batch, cache), (cache, block_table, lengths) or (cache, block_table, lengths, request_ids)");
  side.contents.cache = nb::cast<const PyCache&>(given[0]).checked();
  const auto index = [&](std::size_t i, const char* part) {
    return side.arrays.emplace_back(import_index(given[i], std::string(name) + "." + part)).view;
  };
  side.contents.block_table = index(1, "block_table");
  side.contents.lengths = index(2, "lengths");
  if (given.size() == 4) side.contents.request_ids = index(3, "request_ids");
}

Side side_of(nb::handle given, const char* name, nb::handle heads) {
  Side side;
  side.object = nb::borrow(given);
  if (nb::isinstance<nb::tuple>(given)) {
    read_tuple(side, nb::cast<nb::tuple>(given), name);
  } else {
    if (!nb::isinstance<PyCase>(given)) side.object = nb::module_::import_("quire").attr("read_capture")(given);
    const quire::Case& c = nb::cast<const PyCase&>(side.object).data;
    side.contents = quire::contents_of(c.batch, c.cache);
  }
  side.contents.heads = index_list(heads, name);
  return side;
}

CacheComparison compare_caches(nb::handle a, nb::handle b, nb::handle heads_of_a, nb::handle heads_of_b) {
  const Side of_a = side_of(a, "a", heads_of_a), of_b = side_of(b, "b", heads_of_b);
  return unwrap(without_gil([&] { return quire::compare_caches(of_a.contents, of_b.contents); }));
}

nb::dict counts(const CacheComparison& c) {
  nb::dict counts;
  for (std::size_t i = 0; i < c.counts.size(); ++i)
    counts[nb::str(name(static_cast<quire::RowFate>(i)).data())] = nb::int_(c.counts[i]);
  return counts;
}

}  // namespace

void bind_caches(nb::module_& m) {
  nb::class_<CachePart>(m, "CachePart", "A run of positions and heads of some requests that fared alike.")
      .def_ro("requests", &CachePart::requests)
      .def_ro("first_head", &CachePart::first_head)
      .def_ro("last_head", &CachePart::last_head)
      .def_ro("k", &CachePart::k)
      .def_ro("v", &CachePart::v)
      .def_ro("first", &CachePart::first)
      .def_ro("last", &CachePart::last, "The last position; -1: to the end of each request.")
      .def_prop_ro("fate", [](const CachePart& p) { return std::string(name(p.fate)); })
      .def_ro("text", &CachePart::text)
      .def_ro("rows", &CachePart::rows)
      .def("__repr__", [](const CachePart& p) { return "<CachePart " + p.text + ">"; });
  nb::class_<CacheComparison>(m, "CacheComparison", "What became of each row of a cache; str() is a report for people.")
      .def_ro("same", &CacheComparison::same)
      .def_ro("a", &CacheComparison::a)
      .def_ro("b", &CacheComparison::b)
      .def_ro("rows", &CacheComparison::rows)
      .def_prop_ro("counts", &counts, nb::sig("def counts(self) -> dict[str, int]"), "Rows by fate.")
      .def_ro("summary", &CacheComparison::summary, "The shortest words for what happened.")
      .def_ro("parts", &CacheComparison::parts)
      .def_prop_ro("text", [](const CacheComparison& c) { return to_string(c); })
      .def_prop_ro(
          "json", [](const CacheComparison& c) { return to_json(c); }, "The report as JSON (json.md), made at each access.")
      .def("__bool__", [](const CacheComparison& c) { return c.same; })
      .def("__str__", [](const CacheComparison& c) { return to_string(c); })
      .def("__repr__", [](const CacheComparison& c) {
        return std::string("<CacheComparison ") + (c.same ? "same" : "differs") + ": " + std::to_string(c.rows) + " rows>";
      });
  m.def(
      "compare_caches", &compare_caches, nb::arg("a"), nb::arg("b"), nb::kw_only(), nb::arg("heads_of_a") = nb::none(),
      nb::arg("heads_of_b") = nb::none(),
      nb::sig("def compare_caches(a: str | os.PathLike[str] | Case | tuple[typing.Any, ...], "
              "b: str | os.PathLike[str] | Case | tuple[typing.Any, ...], *, heads_of_a: numpy.typing.ArrayLike | None = None, "
              "heads_of_b: numpy.typing.ArrayLike | None = None) -> CacheComparison"),
      R"(What became of each position of each KV head of cache `a` in cache `b`, in words: K and V rows are looked up by their bytes.

a, b: a capture (path or Case), (batch, cache), or (cache, block_table, lengths[, request_ids]). Requests are matched by their ids.
heads_of_a, heads_of_b: the model's numbers of the KV heads of a rank's cache. Types may differ: a is then rounded as append()
rounds. Host memory only. The GIL is released.)");
}

}  // namespace quire_python
