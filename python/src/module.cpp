// The extension module: types first, then the pipeline in its order.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "deferred.hpp"
#include "errors.hpp"
#include "types.hpp"

namespace {

/// What the vLLM shim needs: any array as NumPy bits (uint8, uint16) or numbers, with its Quire dtype; nothing is copied.
nanobind::tuple bits(nanobind::handle array, const std::string& name, const std::optional<std::string>& dtype) {
  namespace qp = quire_python;
  const qp::ArrayRef ref = qp::import_array(array, name, qp::Access::read, dtype.value_or(""));
  if (!ref) qp::throw_error(quire::Code::invalid_argument, name + ": is None");
  return nanobind::make_tuple(qp::to_numpy_bits(ref), std::string(quire::name(ref.view.dtype)));
}

}  // namespace

NB_MODULE(_quire, m) {
  m.doc() = "C++ core of the quire package.";
  m.attr("version") = QUIRE_VERSION;
  quire_python::bind_types(m);
  quire_python::bind_contract(m);
  quire_python::bind_pool(m);
  quire_python::bind_plan(m);
  quire_python::bind_attention(m);
  quire_python::bind_bound(m);
  quire_python::bind_deferred(m);
  quire_python::bind_faults(m);
  quire_python::bind_diagnose(m);
  quire_python::bind_capture(m);
  quire_python::bind_verify(m);
  quire_python::bind_report(m);
  m.def("bits", &bits, nanobind::arg("array"), nanobind::arg("name"), nanobind::arg("dtype") = nanobind::none(),
        nanobind::sig("def bits(array: typing.Any, name: str, dtype: str | None = None) -> tuple[numpy.ndarray, str]"),
        "(NumPy array over the same memory, Quire dtype name); bf16 and f16 as uint16, fp8 as uint8.");
}
