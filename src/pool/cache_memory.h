// SPDX-License-Identifier: Apache-2.0
// Memory for the caches that a page pool owns: zeroed, aligned to 2 MiB, huge pages asked for. Knows bytes, not pages or
// requests.
#pragma once

#include <cstdint>
#include <memory>

namespace quire::pool {

/// The size of a huge page on x86-64 and on aarch64 with 4 KiB pages; also the alignment of every block.
inline constexpr std::int64_t kHugePageBytes = 2 << 20;

struct Block {
  std::shared_ptr<std::byte> data;  ///< null if the system has no memory of that size
  bool huge_pages_asked = false;
};

/// `bytes` > 0, a multiple of kHugePageBytes.
Block allocate(std::int64_t bytes);

/// Number of bytes of [data, data + bytes) that huge pages back now; -1 if the system does not tell.
std::int64_t huge_page_bytes(const void* data, std::int64_t bytes);

}  // namespace quire::pool
