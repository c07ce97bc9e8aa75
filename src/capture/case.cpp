// SPDX-License-Identifier: Apache-2.0
// The memory behind a case.
#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "quire/tools/capture.hpp"

namespace quire {
namespace {

/// Asks for huge pages inside a large block: hundreds of thousands of page faults cost more than reading a capture does.
void prefer_huge_pages(std::byte* data, std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t kHuge = std::size_t{2} << 20;  // bytes of a huge page
  const std::size_t past = reinterpret_cast<std::uintptr_t>(data) % kHuge;
  const std::size_t before = (kHuge - past) % kHuge;  // bytes before the first huge page
  if (bytes < before + kHuge) return;
  // Advice only: a refusal changes nothing but speed.
  static_cast<void>(::madvise(data + before, (bytes - before) / kHuge * kHuge, MADV_HUGEPAGE));
#else
  static_cast<void>(data), static_cast<void>(bytes);
#endif
}

}  // namespace

std::byte* Case::allocate(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  // Exactly as many bytes as asked for, so that AddressSanitizer sees the first byte read or written past a tensor.
  auto* data = static_cast<std::byte*>(::operator new[](bytes > 0 ? bytes : 1, kAlignment, std::nothrow));
  if (data == nullptr) return nullptr;
  prefer_huge_pages(data, bytes);
  storage.emplace_back(data, [](std::byte* p) { ::operator delete[](p, kAlignment); });
  return data;
}

}  // namespace quire
