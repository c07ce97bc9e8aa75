// SPDX-License-Identifier: Apache-2.0
// See arguments.hpp.
#include "arguments.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "errors.hpp"
#include "quire/tensor.hpp"

namespace quire_python {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw_error(quire::Code::invalid_argument, text); }

nb::object messages(const char* function) { return nb::module_::import_("quire._messages").attr(function); }

[[noreturn]] void refuse_value(const char* name, nb::handle value, const std::string& expected) {
  refuse(nb::cast<std::string>(messages("wrong_value")(name, value, expected)));
}

bool is_instance(nb::handle object, const char* numpy_class) {
  return PyObject_IsInstance(object.ptr(), nb::module_::import_("numpy").attr(numpy_class).ptr()) == 1;
}

bool is_integer(nb::handle object) {
  return !PyBool_Check(object.ptr()) && (PyLong_Check(object.ptr()) || is_instance(object, "integer"));
}

}  // namespace

bool is_number(nb::handle object) {
  if (PyBool_Check(object.ptr())) return false;
  if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) return true;
  return is_instance(object, "floating") || is_instance(object, "integer");
}

bool is_scalar(nb::handle object) {
  return PyBool_Check(object.ptr()) || PyComplex_Check(object.ptr()) || is_number(object) || is_instance(object, "generic");
}

std::string shown(nb::handle object) { return nb::cast<std::string>(messages("shown")(object)); }

std::optional<std::string> dtype_name(nb::handle dtype, const char* name) {
  if (dtype.is_none()) return std::nullopt;
  if (nb::isinstance<nb::str>(dtype)) {
    auto text = nb::cast<std::string>(dtype);
    if (quire::dtype_from_name(text)) return text;
  }
  return nb::cast<std::string>(messages("dtype_name")(dtype, name));
}

quire::CacheLayout layout_named(const std::string& text) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::optional<quire::CacheLayout> known = quire::layout_from_name(lower);
  if (!known) refuse(nb::cast<std::string>(messages("unknown_layout")(text)));
  return *known;
}

Arguments::Arguments(const char* call, std::initializer_list<std::string_view> names, std::size_t positional,
                     const nb::args& args, const nb::kwargs& kwargs)
    : call_(call), names_(names), values_(names.size()) {
  if (args.size() > positional) {
    refuse(std::string(call_) + "(): " + std::to_string(args.size()) + " arguments by position, expected " +
           (positional == 0 ? "all by name: " + std::string(call_) + "(" + std::string(names_.front()) + "=..., ...)"
                            : "at most " + std::to_string(positional)));
  }
  for (std::size_t i = 0; i < args.size(); ++i) values_[i] = args[i];
  for (const auto& [key, value] : kwargs) {
    Py_ssize_t size = 0;
    const char* const name = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
    if (name == nullptr) throw nb::python_error();
    const std::size_t i = index_of({name, static_cast<std::size_t>(size)});
    if (i == names_.size()) refuse_name(name);
    if (values_[i].is_valid()) refuse(std::string(call_) + "(): " + name + " is given twice, by position and by name");
    values_[i] = value;
  }
}

void Arguments::refuse_name(const std::string& name) const {
  nb::list known;
  for (const std::string_view one : names_) known.append(nb::str(one.data(), one.size()));
  refuse(std::string(call_) + "(): " + nb::cast<std::string>(messages("unknown_argument")(name, known)));
}

std::size_t Arguments::index_of(std::string_view name) const {
  return static_cast<std::size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
}

nb::object Arguments::get(const char* name) const {
  const nb::handle value = values_[index_of(name)];
  return value.is_valid() ? nb::borrow(value) : nb::none();
}

nb::object Arguments::required(const char* name) const {
  if (!values_[index_of(name)].is_valid()) refuse(std::string(call_) + "(): argument " + name + " is missing");
  return get(name);
}

std::optional<float> Arguments::number(const char* name) const {
  const nb::object value = get(name);
  if (value.is_none()) return std::nullopt;
  if (!is_number(value)) refuse_value(name, value, "a number or None");
  const nb::object number = nb::steal(PyNumber_Float(value.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  return static_cast<float>(nb::cast<double>(number));
}

std::optional<std::int64_t> Arguments::integer(const char* name) const {
  const nb::object value = get(name);
  if (value.is_none()) return std::nullopt;
  std::int64_t number = 0;
  if (!is_integer(value)) refuse_value(name, value, "an integer or None");
  if (!nb::try_cast(nb::int_(value), number)) refuse_value(name, value, "64 bits at most");
  return number;
}

bool Arguments::flag(const char* name, bool otherwise) const {
  if (!values_[index_of(name)].is_valid()) return otherwise;
  const nb::object value = get(name);
  if (!PyBool_Check(value.ptr()) && !is_instance(value, "bool_")) refuse_value(name, value, "True or False");
  return PyObject_IsTrue(value.ptr()) == 1;
}

std::string Arguments::text(const char* name, const char* otherwise) const {
  if (!values_[index_of(name)].is_valid()) return otherwise;
  const nb::object value = get(name);
  if (!nb::isinstance<nb::str>(value)) refuse_value(name, value, "text");
  return nb::cast<std::string>(value);
}

std::optional<std::string> Arguments::dtype(const char* name) const { return dtype_name(get(name), name); }

}  // namespace quire_python
