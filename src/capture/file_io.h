// SPDX-License-Identifier: Apache-2.0
// Bytes of files: reads at an offset, with full error texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/status.hpp"

namespace quire::capture {

/// Source of a capture's bytes.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const noexcept = 0;
  /// Exactly `out.size()` bytes from `offset`; the caller stays within size().
  virtual Status read(std::uint64_t offset, std::span<std::byte> out) const = 0;
  /// Maps the bytes in place, private to the caller; null if this source cannot map, or if mapping is not worth its cost.
  virtual std::shared_ptr<std::byte[]> map(std::uint64_t offset, std::size_t bytes) const {
    static_cast<void>(offset), static_cast<void>(bytes);
    return nullptr;
  }
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const noexcept override { return bytes_.size(); }
  Status read(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::span<const std::byte> bytes_;
};

/// An open file. A pipe, or any file without a size, may never end: only the bytes that fill() read can be accessed.
class FileSource final : public ByteSource {
 public:
  FileSource() = default;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override;
  Status open(const std::string& path);
  /// map() gives something from now on.
  void allow_mapping() { mapping_ = true; }
  /// Whether the file has no size.
  bool is_stream() const noexcept { return in_memory_; }
  /// Reads a stream on, until size() is `size` or the stream ends.
  Status fill(std::uint64_t size);
  std::uint64_t size() const noexcept override { return size_; }
  Status read(std::uint64_t offset, std::span<std::byte> out) const override;
  std::shared_ptr<std::byte[]> map(std::uint64_t offset, std::size_t bytes) const override;

 private:
  Status read_part(std::uint64_t offset, std::span<std::byte> out) const;
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
  bool in_memory_ = false, mapping_ = false;
  std::vector<std::byte> bytes_;
};

}  // namespace quire::capture
