// SPDX-License-Identifier: Apache-2.0
// Captures and generated cases: a batch that owns its memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arguments.hpp"
#include "case.hpp"
#include "errors.hpp"
#include "src/files/atomic_file.h"
#include "src/text/duration.h"
#include "types.hpp"
#include "without_gil.hpp"

namespace quire_python {
namespace {

using quire::Case;
using Notes = std::map<std::string, std::string>;

std::string path_text(nb::handle path) {
  if (!nb::isinstance<nb::str>(path) && !nb::isinstance<nb::bytes>(path) && !nb::hasattr(path, "__fspath__"))
    throw_error(quire::Code::invalid_argument, "path: " + shown(path) + ", expected text or a path");
  return nb::cast<std::string>(nb::module_::import_("os").attr("fsdecode")(path));
}

PyCase read_capture(nb::handle path) {
  const std::string text = path_text(path);
  return {unwrap(without_gil([&] { return quire::read_capture(text); }))};
}

PyCase make_case(nb::handle problem) {
  if (!nb::isinstance<nb::str>(problem) && !nb::isinstance<quire::ProblemLine>(problem))
    throw_error(quire::Code::invalid_argument, "problem: " + shown(problem) + ", expected a problem line");
  const quire::ProblemLine line = nb::isinstance<quire::ProblemLine>(problem)
                                      ? nb::cast<const quire::ProblemLine&>(problem)
                                      : unwrap(quire::parse_problem_line(nb::cast<std::string>(problem)));
  return {unwrap(without_gil([&] { return quire::make_case(line); }))};
}

void poison_case(PyCase& c, const std::string& kind) {
  const std::pair<const char*, quire::PoisonKind> kinds[] = {
      {"nan", quire::PoisonKind::nan}, {"garbage", quire::PoisonKind::finite_garbage}, {"zero", quire::PoisonKind::zero}};
  for (const auto& [name, value] : kinds) {
    if (kind != name) continue;
    quire::Status status;
    {
      const nb::gil_scoped_release unlocked;
      status = quire::poison_case(c.data, value);
    }
    return require_ok(status);
  }
  throw_error(quire::Code::invalid_argument, "kind: \"" + kind + "\" is none of nan, garbage, zero");
}

void write(const std::string& path, const Case& c) {
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = quire::write_capture(path, c);
  }
  require_ok(status);
}

void write_batch(nb::handle path, const PyBatch& batch, const PyCache& cache, const PyOptions* options, nb::handle observed,
                 nb::handle observed_lse, const std::optional<Notes>& notes, const std::optional<std::string>& dtype) {
  const ArrayRef out = import_array(observed, "observed", Access::read, dtype.value_or(""));
  const ArrayRef lse = import_array(observed_lse, "observed_lse");
  Case c;
  c.batch = batch.checked();
  c.cache = cache.checked();
  c.options = options_or_default(options);
  c.observed = out.view;
  c.observed_lse = lse.view;
  if (notes) c.notes = *notes;
  write(path_text(path), c);
}

template <typename Wrapper, typename View>
auto part(View Case::* member) {
  return [member](nb::handle self) {
    const Case& c = nb::cast<const PyCase&>(self).data;
    return nb::cast(new Wrapper(c.*member, self), nb::rv_policy::take_ownership);
  };
}

}  // namespace

void bind_capture(nb::module_& m) {
  nb::class_<PyCase>(
      m, "Case",
      "A batch with its cache and options that owns its memory: from make_case() or read_capture(). batch.output is "
      "for kernels that write in place; attend() leaves it alone and returns a new array.")
      .def_prop_ro("batch", part<PyBatch>(&Case::batch), nb::sig("def batch(self) -> Batch"))
      .def_prop_ro("cache", part<PyCache>(&Case::cache), nb::sig("def cache(self) -> KVCache"))
      .def_prop_ro("options", part<PyOptions>(&Case::options), nb::sig("def options(self) -> Options"))
      .def_prop_ro(
          "observed", [](nb::handle self) { return to_numpy(nb::cast<const PyCase&>(self).data.observed, self); },
          nb::sig("def observed(self) -> typing.Any"), "The output that somebody's kernel produced, or None.")
      .def_prop_ro(
          "observed_lse", [](nb::handle self) { return to_numpy(nb::cast<const PyCase&>(self).data.observed_lse, self); },
          nb::sig("def observed_lse(self) -> typing.Any"))
      .def_prop_ro(
          "notes", [](const PyCase& c) { return c.data.notes; }, "Free metadata carried by the file.")
      .def("__repr__", [](nb::handle self) {
        std::string text = "<Case batch=" + nb::cast<std::string>(nb::repr(self.attr("batch")));
        text += " cache=" + nb::cast<std::string>(nb::repr(self.attr("cache")));
        return text + " options=" + nb::cast<std::string>(nb::repr(self.attr("options"))) + ">";
      });
  m.def("make_case", &make_case, nb::arg("problem"),
        "Fills a problem line with data: N(0,1) with some peaky heads, shuffled pages, NaN in everything that must not be read, "
        "NaN-filled output. Deterministic in the seed. Raises ParseError.");
  m.def("poison_case", &poison_case, nb::arg("case"), nb::arg("kind"),
        "Overwrites everything that no correct kernel reads, the output included: \"nan\", \"garbage\" (finite: +-1e4, valid but "
        "wrong "
        "page ids) or \"zero\". A correct kernel gives the same bits for all three. Raises ContractError for a broken batch.");
  m.def(
      "write_file",
      [](nb::handle path, const std::string& text) { require_ok(quire::files::write_whole(path_text(path), text)); },
      nb::arg("path"), nb::arg("text"),
      "Writes a text as a whole or not at all; a file that is replaced keeps its mode. Raises FileError.");
  m.def(
      "duration_error", [](double value, double least) { return quire::duration_error(value, least); }, nb::arg("value"),
      nb::arg("least") = 0.0, "Empty for a finite number of at least `least`, or else what is wrong.");
  m.def("read_capture", &read_capture, nb::arg("path"),
        "Reads a .safetensors capture. Raises ParseError or FileError, saying where.");
  m.def(
      "write_capture", [](nb::handle path, const PyCase& c) { write(path_text(path), c.data); }, nb::arg("path"),
      nb::arg("case"));
  m.def("write_capture", &write_batch, nb::arg("path"), nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(),
        nb::arg("observed") = nb::none(), nb::arg("observed_lse") = nb::none(), nb::arg("notes") = nb::none(),
        nb::arg("dtype") = nb::none(),
        "Writes a capture atomically: batch, cache, options and, optionally, an observed output to be diagnosed.");
}

}  // namespace quire_python
