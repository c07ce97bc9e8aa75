// SPDX-License-Identifier: Apache-2.0
// Arrays with an unmapped page on both sides: a read or write outside is a fault at once, and the fault can say of which array.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "text/formatted.h"

namespace quire::amd {

/// Side that touches its guard page exactly. The other side is within 16 bytes of a guard page, because arrays are aligned to 16.
enum class Against { front, back };

class GuardedArray {
 public:
  GuardedArray(std::string name, std::size_t bytes, Against side) : name_(std::move(name)), bytes_(bytes) {
    inner_ = (bytes + kPage - 1) / kPage * kPage;
    void* whole = ::mmap(nullptr, inner_ + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) return;
    whole_ = static_cast<std::byte*>(whole);
    if (inner_ > 0 && ::mprotect(whole_ + kPage, inner_, PROT_READ | PROT_WRITE) != 0) return;
    std::memset(whole_ + kPage, 0xFF, inner_);
    data_ = whole_ + kPage + (side == Against::front ? 0 : (inner_ - bytes) / 16 * 16);
  }
  GuardedArray(GuardedArray&& other) noexcept
      : name_(std::move(other.name_)), bytes_(other.bytes_), inner_(other.inner_), whole_(other.whole_), data_(other.data_) {
    other.whole_ = nullptr;
  }
  GuardedArray& operator=(GuardedArray&&) = delete;
  ~GuardedArray() {
    if (whole_ != nullptr) ::munmap(whole_, inner_ + 2 * kPage);
  }

  std::byte* data() const { return data_; }  ///< null: no memory
  void forbid_writes() const { allow(PROT_READ); }
  /// PROT_NONE: who touches it at all is stopped.
  void allow(int protection) const {
    if (inner_ > 0) ::mprotect(whole_ + kPage, inner_, protection);
  }
  bool holds(const void* address) const { return address >= data_ && address < data_ + bytes_; }
  /// "3 bytes behind cache.v", or nothing if the address is of no concern to this array.
  std::string place_of(std::uint64_t address) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data_), end = begin + bytes_;
    const auto whole = reinterpret_cast<std::uintptr_t>(whole_);
    if (address < whole || address >= whole + inner_ + 2 * kPage) return {};
    if (address >= end) return formatted("{} bytes behind the end of {}", address - end, name_);
    if (address < begin) return formatted("{} bytes before {}", begin - address, name_);
    return formatted("byte {} of {}", address - begin, name_);
  }

 private:
  static constexpr std::size_t kPage = 4096;
  std::string name_;
  std::size_t bytes_ = 0, inner_ = 0;
  std::byte* whole_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace quire::amd
