// SPDX-License-Identifier: Apache-2.0
// The scope of each thread, and when it is asked.
#include "quire/interrupt.hpp"

#include <chrono>

namespace quire {
namespace {

// Nanoseconds between two questions. Ctrl-C is to be heard within half a second; a question may take the lock of an interpreter.
constexpr long long kInterval = 20'000'000;

thread_local InterruptScope* scope_of_thread = nullptr;
thread_local char address_of_thread = 0;  // the address tells threads apart

long long now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

InterruptScope::InterruptScope(bool (*wanted)(void* context), void* context) noexcept
    : wanted_(wanted), context_(context), outer_(scope_of_thread), thread_(&address_of_thread), next_ns_(now_ns() + kInterval) {
  scope_of_thread = this;
}

InterruptScope::~InterruptScope() { scope_of_thread = outer_; }

InterruptScope* InterruptScope::current() noexcept { return scope_of_thread; }

InterruptScope* InterruptScope::adopt(InterruptScope* scope) noexcept {
  InterruptScope* const before = scope_of_thread;
  scope_of_thread = scope;
  return before;
}

bool InterruptScope::ended() noexcept {
  if (__atomic_load_n(&ended_, __ATOMIC_RELAXED)) return true;
  if (thread_ != &address_of_thread) return false;
  const long long now = now_ns();
  if (now < next_ns_) return false;
  next_ns_ = now + kInterval;
  if (!(outer_ != nullptr && outer_->ended()) && !wanted_(context_)) return false;
  __atomic_store_n(&ended_, true, __ATOMIC_RELAXED);
  return true;
}

}  // namespace quire
