// SPDX-License-Identifier: Apache-2.0
// Failure reports of all Quire calls. No call throws, but Interrupted where an InterruptScope ended it (interrupt.hpp); only
// value() of a Result without a value aborts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "quire/version.hpp"

namespace quire {

/// Stable failure classes. The numbers are part of the C ABI (`quire.h`) and never change meaning.
enum class Code : std::int32_t {
  ok = 0,
  invalid_argument = 1,    ///< an argument outside its documented range that no contract rule covers
  contract_violation = 2,  ///< a rule of contract.md is broken; `Status::rule` names it
  unsupported = 3,         ///< valid, but this build, device or forced kernel refuses it; the message says why
  parse_error = 4,         ///< malformed text or file (problem line, capture)
  io_error = 5,            ///< the operating system refused to open, read or write
  out_of_pages = 6,        ///< the page pool cannot serve the request now; preempt or wait
  out_of_memory = 7,       ///< the host's or a device's memory is used up
  device_error = 8,        ///< a GPU or its driver reported a failure; the message names the call and the driver's words
  internal_error = 99,     ///< Quire broke one of its own promises; please report it
};

/// Lower-case name of a code, e.g. "contract_violation".
const char* name(Code code) noexcept;

/// Success, or one failure: what is wrong, where, the expected and the found value, and the contract rule's id if there is one.
///
///     if (Status s = quire::append(cache, key, value, slots); !s.ok()) report(s.message());
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, std::string rule = {})
      : code_(code), message_(std::move(message)), rule_(std::move(rule)) {}

  bool ok() const noexcept { return code_ == Code::ok; }
  Code code() const noexcept { return code_; }
  /// Full text, starting with the rule id if there is one: `Q-T03 block_table[5][2]: page 913 outside [0, 512)`.
  const std::string& message() const noexcept { return message_; }
  /// Contract rule id such as "Q-T03", or empty.
  const std::string& rule() const noexcept { return rule_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
  std::string rule_;
};

namespace detail {
/// Prints the failure to stderr and aborts.
[[noreturn]] void abort_without_value(const Status& status) noexcept;
}  // namespace detail

/// A value, or the Status that says why there is none. `value()` and `->` of a failure print its message to stderr and abort the
/// process: ask ok() first.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return value_.has_value(); }
  const Status& status() const noexcept { return status_; }
  T& value() & noexcept { return demand(), *value_; }
  const T& value() const& noexcept { return demand(), *value_; }
  /// Moves the value out, so that `for (x : f().value())` iterates over a living object.
  T value() && { return demand(), std::move(*value_); }
  T* operator->() noexcept { return &value(); }
  const T* operator->() const noexcept { return &value(); }

 private:
  void demand() const noexcept {
    if (!value_.has_value()) [[unlikely]]
      detail::abort_without_value(status_);
  }

  std::optional<T> value_;
  Status status_;
};

}  // namespace quire
