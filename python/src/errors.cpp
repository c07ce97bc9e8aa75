// SPDX-License-Identifier: Apache-2.0
// Builds the exception instances; the classes themselves are Python (quire/errors.py), so that they can mix in ValueError.
#include "errors.hpp"

#include <nanobind/stl/string.h>

#include <exception>
#include <new>
#include <stdexcept>

#include "quire/interrupt.hpp"

namespace quire_python {
namespace {

const char* class_name(quire::Code code) {
  switch (code) {
    case quire::Code::invalid_argument: return "ArgumentError";
    case quire::Code::contract_violation: return "ContractError";
    case quire::Code::unsupported: return "UnsupportedError";
    case quire::Code::parse_error: return "ParseError";
    case quire::Code::io_error: return "FileError";
    case quire::Code::out_of_pages: return "OutOfPagesError";
    case quire::Code::out_of_memory: return "OutOfMemoryError";
    case quire::Code::device_error: return "DeviceError";
    case quire::Code::ok:
    case quire::Code::internal_error: break;
  }
  return "InternalError";
}

void set_error(const quire::Status& status) {
  nb::object cls = nb::module_::import_("quire.errors").attr(class_name(status.code()));
  nb::object error = cls(status.message());
  error.attr("rule") = status.rule();
  PyErr_SetObject(cls.ptr(), error.ptr());
}

}  // namespace

void throw_status(const quire::Status& status) {
  set_error(status);
  throw nb::python_error();
}

void bind_errors() {
  nb::register_exception_translator([](const std::exception_ptr& exception, void*) {
    try {
      std::rethrow_exception(exception);
    } catch (const std::bad_alloc&) {
      set_error({quire::Code::out_of_memory, "out of memory"});
    } catch (const std::length_error&) {  // a size that no memory has
      set_error({quire::Code::out_of_memory, "out of memory"});
    } catch (const quire::Interrupted&) {  // a call inside of another: the outer one raises what the signal's handler raised
      PyErr_SetNone(PyExc_KeyboardInterrupt);
    }
  });
}

void throw_error(quire::Code code, std::string message) { throw_status(quire::Status(code, std::move(message))); }

}  // namespace quire_python
