// SPDX-License-Identifier: Apache-2.0
// The catalogue of known faults, and batches computed as a kernel with one of them would.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.hpp"
#include "types.hpp"

namespace quire_python {
namespace {

using quire::FaultInfo;

/// Rows that the faulty kernel leaves show what a case's output held, or NaN.
void what_the_rows_held(const PyBatch& batch, const BatchForCall& made) {
  if (!batch.views().output.present()) return fill_with_nan(made);
  array_object(made.output)[nb::ellipsis()] = array_object(batch.arrays().output);
}

nb::object attend_with_fault(const PyBatch& batch, const PyCache& cache, const std::string& fault, const PyOptions* options) {
  const BatchForCall call = batch.to_write(cache);
  if (!batch.output_given()) what_the_rows_held(batch, call);
  const quire::Batch& b = call.views;
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = quire::attend_with_fault(b, c, o, fault);
  }
  require_ok(status);
  return result_of(batch, call);
}

constexpr const char* kFaultDoc =
    R"(What a kernel with one known fault would write, computed in fp64 and rounded once: batch.output if the caller gave one, else a new
array; and batch.lse.

Rows that such a kernel never writes keep the bytes of that output; in a new array they hold what a case's output held, or NaN. fault: an id of faults(). Raises ArgumentError for an unknown id,
UnsupportedError if the fault cannot show on this batch (the text says why), ContractError for a broken batch.)";

}  // namespace

void bind_faults(nb::module_& m) {
  nb::class_<FaultInfo>(m, "Fault", "One entry of the catalogue of faults (faults.md); `a kernel that {text}`.")
      .def_ro("id", &FaultInfo::id, "Stable name: \"query_start_loc_as_int32\".")
      .def_ro("family", &FaultInfo::family)
      .def_ro("text", &FaultInfo::text, "Completes \"a kernel that ...\".")
      .def_ro("seen", &FaultInfo::seen, "Where it was seen in the field, or empty.")
      .def_ro("next", &FaultInfo::next, "What to look at next if this is the cause.")
      .def("__repr__", [](const FaultInfo& f) { return "Fault(" + f.id + ": a kernel that " + f.text + ")"; });
  m.def("faults", &quire::faults, "The catalogue of known faults, ordered by family.");
  m.def("attend_with_fault", &attend_with_fault, nb::arg("batch"), nb::arg("cache"), nb::arg("fault"),
        nb::arg("options") = nb::none(),
        nb::sig("def attend_with_fault(batch: Batch, cache: KVCache, fault: str, options: Options | None = None) -> typing.Any"),
        kFaultDoc);
}

}  // namespace quire_python
