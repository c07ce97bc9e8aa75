// SPDX-License-Identifier: Apache-2.0
// C ABI, the wall: nothing thrown gets past guarded(), and every failure leaves its text in the calling thread's slot.
#pragma once

#include <exception>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>

#include "quire/quire.h"
#include "quire/status.hpp"

namespace quire::capi {

/// Stores the status as this thread's last one and returns its code.
quire_code remember(const Status& status) noexcept;
/// Stores a code and a static text, without allocating memory, as this thread's last status and returns the code.
quire_code remember(Code code, const char* text) noexcept;

struct NamedPointer {
  template <typename T>
  NamedPointer(const T* pointer, const char* pointer_name) : is_null(pointer == nullptr), name(pointer_name) {}
  bool is_null;
  const char* name;
};
/// invalid_argument naming the first NULL.
Status require(std::initializer_list<NamedPointer> pointers);

/// Runs `call` (returning Status) and reports what it returns or throws.
template <typename Call>
quire_code guarded(Call&& call) noexcept {
  try {
    return remember(std::forward<Call>(call)());
  } catch (const std::bad_alloc&) {
    return remember(Code::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    return remember(Code::internal_error, error.what());
  } catch (...) {
    return remember(Code::internal_error, "unknown exception");
  }
}

/// Likewise, unless one of the pointers is NULL.
template <typename Call>
quire_code guarded(std::initializer_list<NamedPointer> pointers, Call&& call) noexcept {
  return guarded([&]() -> Status {
    if (Status s = require(pointers); !s.ok()) return s;
    return std::forward<Call>(call)();
  });
}

/// snprintf's way of handing out a text: see the conventions of quire.h.
Status copy_text(const std::string& text, char* buffer, std::size_t capacity, std::size_t* length);

}  // namespace quire::capi
