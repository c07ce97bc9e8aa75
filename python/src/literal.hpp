// SPDX-License-Identifier: Apache-2.0
// Enumerations of results as text in Python, which type checkers know as typing.Literal: the names come from the table that
// name() reads.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

namespace quire_python {

/// "def verdict(self) -> typing.Literal['pass', 'fail']": the signature of a property in the stub. The text lives as long as the
/// module does.
template <typename Enum>
const char* literal_signature(const std::string& property) {
  static std::string text;
  text = "def " + property + "(self) -> typing.Literal[";
  for (int i = 0; !name(static_cast<Enum>(i)).empty(); ++i)
    text += (i == 0 ? "'" : ", '") + std::string(name(static_cast<Enum>(i))) + "'";
  text += "]";
  return text.c_str();
}

/// A property that gives the name of an enumerator.
template <typename Enum, typename Result, typename Class>
void def_literal(Class& bound, const char* property, Enum Result::* field, const char* doc) {
  bound.def_prop_ro(
      property,
      [field](const Result& result) {
        const std::string_view text = name(result.*field);
        return nanobind::str(text.data(), text.size());
      },
      nanobind::for_getter(nanobind::sig(literal_signature<Enum>(property))), doc);
}

}  // namespace quire_python
