// SPDX-License-Identifier: Apache-2.0
// Status to exception: every failure of the library becomes one of the classes of quire/errors.py, with the same text.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "quire/status.hpp"

namespace quire_python {

namespace nb = nanobind;

/// Throws the Python exception for a failed status: class by code, `.code` and `.rule` set, str() == status.message().
[[noreturn]] void throw_status(const quire::Status& status);
/// Throws the Python exception for a failure that the bindings found themselves.
[[noreturn]] void throw_error(quire::Code code, std::string message);

/// Makes Quire's exceptions of C++'s: memory that ran out becomes an OutOfMemoryError.
void bind_errors();

inline void require_ok(const quire::Status& status) {
  if (!status.ok()) throw_status(status);
}

template <typename T>
T unwrap(quire::Result<T>&& result) {
  if (!result.ok()) throw_status(result.status());
  return std::move(result).value();
}

}  // namespace quire_python
