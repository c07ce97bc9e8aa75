// SPDX-License-Identifier: Apache-2.0
// Stacks that take turns on one thread: x86-64 by a switch of a dozen instructions, other machines by ucontext. AddressSanitizer
// is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if defined(__x86_64__) && !defined(QUIRE_SIMT_UCONTEXT)
#define QUIRE_SIMT_SWITCH
#else
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace quire::simt {

/// A place to switch from and to. Default-constructed: the place of whoever switches away from it.
struct Context {
#if defined(QUIRE_SIMT_SWITCH)
  void* sp = nullptr;
#else
  ucontext_t saved{};
#endif
  const void* stack = nullptr;  ///< lowest address, for AddressSanitizer
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;
};

#if defined(QUIRE_SIMT_SWITCH)
extern "C" void quire_simt_switch(void** save_sp, void* to_sp);
__asm__(R"(
.text
.weak quire_simt_switch
.type quire_simt_switch, @function
quire_simt_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size quire_simt_switch, . - quire_simt_switch
)");
#endif

/// Runs `to`; returns when somebody switches back to `from`. `from_ends`: nobody will.
inline void switch_context(Context& from, Context& to, [[maybe_unused]] bool from_ends = false) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(QUIRE_SIMT_SWITCH)
  quire_simt_switch(&from.sp, to.sp);
#else
  swapcontext(&from.saved, &to.saved);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

/// The first words of a stack's function. `launcher` learns where its own stack lies, if it did not know.
inline void begin_on_own_stack([[maybe_unused]] Context& launcher) {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (launcher.stack == nullptr) {
    launcher.stack = stack;
    launcher.stack_bytes = bytes;
  }
#endif
}

class Stack {
 public:
  explicit Stack(std::size_t bytes) : bytes_(bytes), memory_(new(std::align_val_t{64}) std::byte[bytes]) {}

  /// A context that begins with `function`, which must not return. The stack's last user, if any, must have come to its end.
  void prepare(Context& context, void (*function)()) {
#if defined(__SANITIZE_ADDRESS__)
    // The last user left all frames but its outermost ones: it switched away from there for good.
    constexpr std::size_t left_open = 16 << 10;
    __asan_unpoison_memory_region(memory_.get() + bytes_ - left_open, left_open);
#endif
    context.stack = memory_.get();
    context.stack_bytes = bytes_;
#if defined(QUIRE_SIMT_SWITCH)
    // Six registers to pop, then the address to return to; the callee expects an odd multiple of 8 below 16-byte alignment.
    void** top = reinterpret_cast<void**>(memory_.get() + bytes_ - 64);
    *top = reinterpret_cast<void*>(function);
    context.sp = static_cast<void*>(top - 6);
#else
    getcontext(&context.saved);
    context.saved.uc_stack.ss_sp = memory_.get();
    context.saved.uc_stack.ss_size = bytes_;
    makecontext(&context.saved, function, 0);
#endif
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace quire::simt
