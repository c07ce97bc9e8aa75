// SPDX-License-Identifier: Apache-2.0
// The extension module: types first, then the pipeline in its order.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#if QUIRE_TOOLS
#include "cli/command_line.h"
#endif
#include "deferred.hpp"
#include "errors.hpp"
#include "types.hpp"

namespace {

/// Returns any array as NumPy bits (uint8, uint16) or numbers, with its Quire dtype, for the vLLM shim; copies nothing.
nanobind::tuple bits(nanobind::handle array, const std::string& name, const std::optional<std::string>& dtype) {
  namespace qp = quire_python;
  const qp::ArrayRef ref = qp::import_array(array, name, qp::Access::read, dtype.value_or(""));
  if (!ref) qp::throw_error(quire::Code::invalid_argument, name + ": is None");
  return nanobind::make_tuple(qp::to_numpy_bits(ref), std::string(quire::name(ref.view.dtype)));
}

#if QUIRE_TOOLS
/// The quire command with these words; returns its exit code.
int run_command_line(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const nanobind::gil_scoped_release released;
  return quire::cli::run_command_line(static_cast<int>(words.size()), argv.data());
}

void bind_tools(nanobind::module_& m) {
  quire_python::bind_faults(m);
  quire_python::bind_capture(m);
  quire_python::bind_caches(m);
  quire_python::bind_verify(m);
  quire_python::bind_report(m);
  m.def("run_command_line", &run_command_line, nanobind::arg("words"),
        "Runs the quire command with these words, the first of which is its name; returns the exit code. Writes to the process's "
        "stdout and stderr.");
}
#endif

}  // namespace

NB_MODULE(_quire, m) {
  m.doc() = "C++ core of the quire package.";
  m.attr("version") = QUIRE_VERSION;
  // A library that keeps a reference until the interpreter ends (torch._dynamo) would cause eight lines about our bindings.
  nanobind::set_leak_warnings(false);
  quire_python::bind_errors();
  quire_python::bind_fields(m);
  quire_python::bind_types(m);
  quire_python::bind_contract(m);
  quire_python::bind_pool(m);
  quire_python::bind_plan(m);
  quire_python::bind_attention(m);
  quire_python::bind_bound(m);
  quire_python::bind_deferred(m);
  quire_python::bind_cascade(m);
  quire_python::bind_sparse(m);
  quire_python::bind_shards(m);
  quire_python::bind_diagnose(m);
#if QUIRE_TOOLS
  bind_tools(m);
#endif
  m.def("bits", &bits, nanobind::arg("array"), nanobind::arg("name"), nanobind::arg("dtype") = nanobind::none(),
        nanobind::sig("def bits(array: typing.Any, name: str, dtype: str | None = None) -> tuple[numpy.ndarray, str]"),
        "(NumPy array over the same memory, Quire dtype name); bf16 and f16 as uint16, fp8 as uint8.");
}
