// SPDX-License-Identifier: Apache-2.0
// See memory.h.
#include "bench/memory.h"

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <sys/mman.h>

namespace quire::benchmark {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

Memory::Memory(std::int64_t bytes) : bytes_(bytes) {
  mapped_ = (static_cast<std::size_t>(bytes) + 2 * kHugePage - 1) / kHugePage * kHugePage;
  void* mapping = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return;
  mapping_ = mapping;
  std::size_t room = mapped_;
  data_ = static_cast<std::byte*>(std::align(kHugePage, static_cast<std::size_t>(bytes), mapping, room));
#if defined(MADV_HUGEPAGE)
  (void)::madvise(data_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // a refusal costs speed, nothing else
#endif
}

Memory::~Memory() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  for (std::string rest; file >> key >> kib; std::getline(file, rest))
    if (key == "MemAvailable:") return kib << 10;
  return std::int64_t{1} << 30;
}

}  // namespace quire::benchmark
