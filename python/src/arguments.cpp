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

Signature::Signature(const char* call, std::initializer_list<std::string_view> by_position, std::vector<Argument> arguments)
    : call_(call), positional_(by_position.size()), arguments_(std::move(arguments)) {
  if (arguments_.size() >= kMost) throw_error(quire::Code::internal_error, std::string(call) + ": more than kMost arguments");
  auto place = arguments_.begin();
  for (const std::string_view name : by_position) {
    const auto found = std::find_if(place, arguments_.end(), [&](const Argument& a) { return a.name == name; });
    std::rotate(place++, found, found + 1);
  }
  for (const Argument& a : arguments_) interned_.push_back(PyUnicode_InternFromString(a.name.c_str()));
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::string name(quire::batch::kTensors[i].member);
    tensors_[i] = find(name + "_per_request") < size() ? find(name + "_per_request") : find(name);
  }
}

std::string Signature::text(const char* function, const char* returned) const {
  std::string text = "def " + std::string(function) + "(self";
  for (std::size_t i = 0; i < size(); ++i)
    text += (i == positional_ ? ", *, " : ", ") + arguments_[i].name + ": " + arguments_[i].declared;
  return text + ") -> " + returned;
}

std::size_t Signature::find(std::string_view name) const {
  const auto found = std::find_if(arguments_.begin(), arguments_.end(), [&](const Argument& a) { return a.name == name; });
  return static_cast<std::size_t>(found - arguments_.begin());
}

std::size_t Signature::find(nb::handle name) const {
  const auto found = std::find(interned_.begin(), interned_.end(), name.ptr());
  return found != interned_.end() ? static_cast<std::size_t>(found - interned_.begin()) : find(nb::cast<std::string>(name));
}

Arguments::Arguments(const Signature& of, const nb::dict& named) : of_(&of) {
  std::fill_n(values_, of.size() + 1, nullptr);
  add(named);
}

Arguments::Arguments(const Signature& of, const nb::args& args, const nb::dict& named) : of_(&of) {
  std::fill_n(values_, of.size() + 1, nullptr);
  if (args.size() > of.positional()) {
    refuse(std::string(of.call()) + "(): " + std::to_string(args.size()) + " arguments by position, expected " +
           (of.positional() == 0 ? "all by name: " + std::string(of.call()) + "(" + of.arguments().front().name + "=..., ...)"
                                 : "at most " + std::to_string(of.positional())));
  }
  for (std::size_t i = 0; i < args.size(); ++i) values_[i] = nb::handle(args[i]).ptr();
  add(named);
}

void Arguments::add(const nb::dict& named) {
  for (const auto& [name, value] : named) {
    const std::size_t i = of_->find(name);
    if (i == of_->size()) refuse_name(name);
    if (values_[i] != nullptr)
      refuse(std::string(of_->call()) + "(): " + of_->arguments()[i].name + " is given twice, by position and by name");
    values_[i] = value.ptr();
  }
}

void Arguments::refuse_name(nb::handle name) const {
  nb::list known;
  for (const Argument& one : of_->arguments()) known.append(one.name);
  refuse(std::string(of_->call()) + "(): " + nb::cast<std::string>(messages("unknown_argument")(name, known)));
}

nb::object Arguments::get(const char* name) const {
  const nb::handle value = at(name);
  return value.is_valid() ? nb::borrow(value) : nb::none();
}

nb::object Arguments::required(const char* name) const {
  if (!at(name).is_valid()) refuse(std::string(of_->call()) + "(): argument " + name + " is missing");
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
  const nb::handle value = at(name);
  if (!value.is_valid()) return otherwise;
  if (!PyBool_Check(value.ptr()) && !is_instance(value, "bool_")) refuse_value(name, value, "True or False");
  return PyObject_IsTrue(value.ptr()) == 1;
}

std::string Arguments::text(const char* name, const char* otherwise) const {
  const nb::handle value = at(name);
  if (!value.is_valid()) return otherwise;
  if (!nb::isinstance<nb::str>(value)) refuse_value(name, value, "text");
  return nb::cast<std::string>(value);
}

std::optional<std::string> Arguments::dtype(const char* name) const { return dtype_name(get(name), name); }

}  // namespace quire_python
