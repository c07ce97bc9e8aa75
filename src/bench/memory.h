// SPDX-License-Identifier: Apache-2.0
// Memory as a serving engine would take it: page-aligned to 2 MiB, with huge pages asked for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::benchmark {

class Memory {
 public:
  /// `data()` is null if the system has no more. Contents are zeros.
  explicit Memory(std::int64_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  std::int64_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::int64_t bytes_ = 0;
};

/// Bytes that this process may still take without swapping; a guess of 1 GiB where the system does not say.
std::int64_t available_memory();

}  // namespace quire::benchmark
