// SPDX-License-Identifier: Apache-2.0
// Takes memory out of every cache, so that reading it again reads from memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::benchmark {

/// Writes back and drops the lines of [data, data + bytes). Where user code has no instruction for it, lines stay.
inline void flush(const std::byte* data, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  for (std::int64_t at = 0; at < bytes; at += kLine) {
#if defined(__x86_64__)
    __builtin_ia32_clflush(data + at);
#elif defined(__aarch64__)
    asm volatile("dc civac, %0" : : "r"(data + at) : "memory");
#endif
  }
#if defined(__x86_64__)
  __builtin_ia32_mfence();
#elif defined(__aarch64__)
  asm volatile("dsb sy" : : : "memory");
#endif
}

}  // namespace quire::benchmark
