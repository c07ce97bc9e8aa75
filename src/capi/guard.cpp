// SPDX-License-Identifier: Apache-2.0
// C ABI: the per-thread error slot, and the functions that read it.
#include "capi/guard.h"

#include <algorithm>
#include <cstring>

namespace quire::capi {
namespace {

struct LastError {
  std::string message;
  std::string rule;
  const char* fixed = nullptr;  // wins over `message`; for texts that must not allocate
};
thread_local LastError last_error;

static_assert(QUIRE_OK == static_cast<int>(Code::ok));
static_assert(QUIRE_INVALID_ARGUMENT == static_cast<int>(Code::invalid_argument));
static_assert(QUIRE_CONTRACT_VIOLATION == static_cast<int>(Code::contract_violation));
static_assert(QUIRE_UNSUPPORTED == static_cast<int>(Code::unsupported));
static_assert(QUIRE_PARSE_ERROR == static_cast<int>(Code::parse_error));
static_assert(QUIRE_IO_ERROR == static_cast<int>(Code::io_error));
static_assert(QUIRE_OUT_OF_PAGES == static_cast<int>(Code::out_of_pages));
static_assert(QUIRE_OUT_OF_MEMORY == static_cast<int>(Code::out_of_memory));
static_assert(QUIRE_INTERNAL_ERROR == static_cast<int>(Code::internal_error));

}  // namespace

quire_code remember(const Status& status) noexcept {
  try {
    last_error.message = status.message();
    last_error.rule = status.rule();
    last_error.fixed = nullptr;
  } catch (const std::exception&) {
    last_error.fixed = "(no memory left for the text)";
  }
  return static_cast<quire_code>(status.code());
}

quire_code remember(Code code, const char* text) noexcept {
  try {
    last_error.rule.clear();
    last_error.message = text;  // exception texts die with the exception
    last_error.fixed = nullptr;
  } catch (const std::exception&) {
    last_error.fixed = "out of memory";
  }
  return static_cast<quire_code>(code);
}

Status require(std::initializer_list<NamedPointer> pointers) {
  for (const NamedPointer& p : pointers)
    if (p.is_null) return {Code::invalid_argument, std::string(p.name) + ": NULL, expected a pointer"};
  return {};
}

Status copy_text(const std::string& text, char* buffer, std::size_t capacity, std::size_t* length) {
  if (buffer == nullptr && capacity > 0) return {Code::invalid_argument, "buffer: NULL, expected room for capacity bytes"};
  if (length != nullptr) *length = text.size();
  if (capacity == 0) return {};
  const std::size_t count = std::min(text.size(), capacity - 1);
  std::memcpy(buffer, text.data(), count);
  buffer[count] = '\0';
  return {};
}

}  // namespace quire::capi

extern "C" {

const char* quire_version(void) { return QUIRE_VERSION; }

const char* quire_code_name(quire_code code) { return quire::name(static_cast<quire::Code>(code)); }

const char* quire_last_message(void) {
  const auto& last = quire::capi::last_error;
  return last.fixed != nullptr ? last.fixed : last.message.c_str();
}

const char* quire_last_rule(void) { return quire::capi::last_error.rule.c_str(); }

}  // extern "C"
