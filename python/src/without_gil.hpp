// SPDX-License-Identifier: Apache-2.0
// Work of the library while other Python threads run. Ctrl-C ends it: KeyboardInterrupt within half a second.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <optional>
#include <utility>

#include "quire/interrupt.hpp"

namespace quire_python {

namespace nb = nanobind;

/// Asks Python for signals, which only its main thread hears; keeps what a handler raised.
inline bool heard_signal(void* raised) {
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() == 0) return false;
  try {
    throw nb::python_error();
  } catch (nb::python_error&) {
    *static_cast<std::exception_ptr*>(raised) = std::current_exception();
  }
  return true;
}

/// Runs work() with the GIL released.
template <typename Work>
auto without_gil(Work&& work) {
  std::exception_ptr raised;
  std::optional<decltype(work())> made;
  try {
    const nb::gil_scoped_release unlocked;
    const quire::InterruptScope scope(&heard_signal, &raised);
    made.emplace(work());
  } catch (const quire::Interrupted&) {
    if (raised == nullptr) throw;
  }
  if (raised != nullptr) std::rethrow_exception(raised);  // also if the work was done by the time that it heard the signal
  return *std::move(made);
}

}  // namespace quire_python
