// SPDX-License-Identifier: Apache-2.0
// How a caller ends a long call on the CPU early: for Ctrl-C of an interpreter, for a deadline.
//
// Loops that share out work, and loops that may run long, ask the scope of the thread that made the call. Without a scope they
// ask nothing.
#pragma once

namespace quire {

/// Thrown out of a call that ended early: the one exception of calls that return a Status or a Result. No call throws it without
/// a scope. What the call writes (output, lse, cache) is then partly written, and none of it counts.
struct Interrupted {};

/// While a scope lives, calls from its thread ask `wanted` whether to end. They ask on that thread alone, between pieces of work,
/// about every 20 ms. Scopes nest: the end of an outer scope ends the inner ones. Calls on GPUs do not ask.
class InterruptScope {
 public:
  /// `wanted` must not throw.
  InterruptScope(bool (*wanted)(void* context), void* context) noexcept;
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  /// Whether the call shall end. Any thread that works for the call may ask. `wanted` is called on the scope's thread alone.
  bool ended() noexcept;
  const InterruptScope* outer() const noexcept { return outer_; }

  /// The scope of the calls of this thread, or null.
  static InterruptScope* current() noexcept;
  /// Makes `scope` the scope of this thread, which works for another thread's call. Returns the scope that this thread had.
  static InterruptScope* adopt(InterruptScope* scope) noexcept;

 private:
  bool (*wanted_)(void* context);
  void* context_;
  InterruptScope* outer_;
  const void* thread_;  ///< an address that only the thread of the scope has
  long long next_ns_;   ///< time of the steady clock before which `wanted` is not called
  bool ended_ = false;  ///< read and written atomically
};

/// Throws Interrupted if the scope of this thread has ended.
inline void end_if_interrupted() {
  if (InterruptScope* const scope = InterruptScope::current(); scope != nullptr && scope->ended()) throw Interrupted{};
}

}  // namespace quire
