// SPDX-License-Identifier: Apache-2.0
// Names of the stable codes, and exceptions as statuses. value() of a failed Result prints its message and aborts.
#include "quire/status.hpp"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "batch/caught.h"
#include "quire/interrupt.hpp"

namespace quire {

const char* name(Code code) noexcept {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid_argument: return "invalid_argument";
    case Code::contract_violation: return "contract_violation";
    case Code::unsupported: return "unsupported";
    case Code::parse_error: return "parse_error";
    case Code::io_error: return "io_error";
    case Code::out_of_pages: return "out_of_pages";
    case Code::out_of_memory: return "out_of_memory";
    case Code::device_error: return "device_error";
    case Code::internal_error: return "internal_error";
  }
  return "unknown";
}

Status batch::caught(std::string_view call) {
  constexpr const char* kShort = "out of memory";  // a std::string holds it without an allocation
  try {
    const std::string what(call);
    try {
      throw;
    } catch (const Interrupted&) {
      throw;
    } catch (const std::bad_alloc&) {
    } catch (const std::length_error&) {
    } catch (const std::exception& e) {
      return {Code::internal_error, what + ": " + e.what()};
    } catch (...) {
      return {Code::internal_error, what + ": an exception of an unknown type"};
    }
    return {Code::out_of_memory, what + ": " + kShort};
  } catch (const Interrupted&) {
    throw;
  } catch (...) {
    return {Code::out_of_memory, kShort};
  }
}

void detail::abort_without_value(const Status& status) noexcept {
  std::fprintf(stderr, "quire: value() of a failed Result (%s): %s\n", name(status.code()), status.message().c_str());
  std::abort();
}

}  // namespace quire
