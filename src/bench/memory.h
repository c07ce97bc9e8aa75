// SPDX-License-Identifier: Apache-2.0
// Memory as a serving engine allocates it, aligned to 2 MiB, and copies of a cache in it. Calls take the copies in turn, so that
// K and V are no warmer than in serving, where the calls of all other layers come between two calls of one layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/tools/capture.hpp"

namespace quire::bench_detail {

/// A block of memory, on huge pages if the system grants them.
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

/// Copies of the cache in turn: K and V, and their scales of tokens and of blocks. A V in K's rows is in the rows of each copy.
/// One copy if the visible bytes are few: such a case is measured in cache, and says so.
class Rotation {
 public:
  /// Copies until `copies` or the machine's memory is used up; at least one, in memory of its own.
  Rotation(const KVCache& cache, std::int64_t copies);

  /// The copy that was used longest ago.
  const KVCache& next() { return caches_[turn_++ % caches_.size()]; }
  /// Whether there was memory for at least one copy.
  bool ok() const { return !caches_.empty(); }
  std::int64_t copies() const { return static_cast<std::int64_t>(caches_.size()); }

 private:
  std::vector<Memory> memory_;
  std::vector<KVCache> caches_;
  std::size_t turn_ = 0;
};

/// Number of copies that make up `cold` bytes, for a case larger than min(16 MiB, half of L3), which no cache holds in serving.
std::int64_t copies_for(std::int64_t visible_bytes, std::int64_t l3_bytes, std::int64_t cold);

}  // namespace quire::bench_detail
