// SPDX-License-Identifier: Apache-2.0
// Huge pages come by madvise(2): without them a gather over random pages misses the TLB at every page of the cache. A system that
// refuses costs speed and nothing else, so a refusal is remembered, not reported as an error.
#include "pool/cache_memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace quire::pool {

#if defined(__linux__)

Block allocate(std::int64_t bytes) {
  // Reserve one huge page more than needed, so that the range contains an aligned block. Anonymous memory is zero.
  const auto size = static_cast<std::size_t>(bytes), reserved = size + kHugePageBytes;
  void* base = ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return {};
  auto* first = static_cast<std::byte*>(base);
  const std::size_t skip = (kHugePageBytes - reinterpret_cast<std::uintptr_t>(base) % kHugePageBytes) % kHugePageBytes;
  Block block;
  block.huge_pages_asked = ::madvise(first + skip, size, MADV_HUGEPAGE) == 0;
  block.data = std::shared_ptr<std::byte>(first + skip, [base, reserved](std::byte*) { ::munmap(base, reserved); });
  return block;
}

std::int64_t huge_page_bytes(const void* data, std::int64_t bytes) {
  std::FILE* smaps = std::fopen("/proc/self/smaps", "re");
  if (smaps == nullptr) return -1;
  const auto first = reinterpret_cast<std::uintptr_t>(data), last = first + static_cast<std::uintptr_t>(bytes);
  std::uintptr_t begin = 0, end = 0;
  std::int64_t kib = 0, total = 0;
  char line[512];
  while (std::fgets(line, sizeof line, smaps) != nullptr) {
    std::uintptr_t b = 0, e = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &b, &e) == 2) begin = b, end = e;
    // A mapping counts if it lies within the block: its neighbours' flags differ, so the system keeps it apart.
    if (std::sscanf(line, "AnonHugePages: %" SCNd64 " kB", &kib) == 1 && begin >= first && end <= last) total += kib * 1024;
  }
  std::fclose(smaps);
  return total;
}

#else

Block allocate(std::int64_t bytes) {
  void* data = std::aligned_alloc(static_cast<std::size_t>(kHugePageBytes), static_cast<std::size_t>(bytes));
  if (data == nullptr) return {};
  std::memset(data, 0, static_cast<std::size_t>(bytes));
  return {std::shared_ptr<std::byte>(static_cast<std::byte*>(data), [](std::byte* p) { std::free(p); }), false};
}

std::int64_t huge_page_bytes(const void*, std::int64_t) { return -1; }

#endif

}  // namespace quire::pool
