// SPDX-License-Identifier: Apache-2.0
// POSIX file access behind captures.
#include "capture/file_io.h"
#include "text/formatted.h"
#include "threads/on_threads.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace quire::capture {
namespace {

/// Most bytes of one read or write call: 1 GiB. Linux moves at most a little below 2^31 bytes per call.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;
constexpr std::size_t kWorthMapping = std::size_t{1} << 20;   // bytes; smaller tensors are read, not mapped
constexpr std::size_t kWorthAThread = std::size_t{32} << 20;  // bytes; smaller reads use one thread

Status io_error(const std::string& path, const char* what, int error) {
  return {Code::io_error, formatted("{}: {}: {}", path, what, std::generic_category().message(error))};
}

}  // namespace

Status MemorySource::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return {};
}

FileSource::~FileSource() {
  if (fd_ >= 0) ::close(fd_);
}

Status FileSource::open(const std::string& path) {
  path_ = path;
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) return io_error(path_, "cannot open for reading", errno);
  struct stat info{};
  if (::fstat(fd_, &info) != 0) return io_error(path_, "cannot stat", errno);
  if (S_ISDIR(info.st_mode)) return io_error(path_, "cannot read", EISDIR);
  in_memory_ = !S_ISREG(info.st_mode);
  if (in_memory_) return {};
  size_ = static_cast<std::uint64_t>(info.st_size);
  return {};
}

Status FileSource::fill(std::uint64_t size) {
  while (size_ < size) {
    constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;
    const auto wanted = static_cast<std::size_t>(std::min(size - size_, kChunk));
    bytes_.resize(static_cast<std::size_t>(size_) + wanted);
    const ssize_t got = ::read(fd_, bytes_.data() + size_, wanted);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path_, "cannot read", errno);
    if (got == 0) break;
    size_ += static_cast<std::uint64_t>(got);
  }
  return {};
}

Status FileSource::read_part(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), std::min(out.size(), kMaxTransfer), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path_, "cannot read", errno);
    if (got == 0) return {Code::io_error, formatted("{}: the file became shorter than {} bytes while being read", path_, size_)};
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

Status FileSource::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (in_memory_) return MemorySource(bytes_).read(offset, out);
  if (out.size() < kWorthAThread) return read_part(offset, out);
  // A cached file comes in at the speed of memory, which one core does not reach.
  const std::size_t half = out.size() / 2;
  Status parts[2];
  threads::for_each_index(2, 2, [&](std::size_t i) {
    parts[i] = i == 0 ? read_part(offset, out.first(half)) : read_part(offset + half, out.subspan(half));
  });
  return parts[0].ok() ? parts[1] : parts[0];
}

std::shared_ptr<std::byte[]> FileSource::map(std::uint64_t offset, std::size_t bytes) const {
  constexpr std::uint64_t kWidestElement = 8;
  if (!mapping_ || in_memory_ || bytes < kWorthMapping || offset % kWidestElement != 0) return nullptr;
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)), begin = offset / page * page;
  const std::size_t length = bytes + static_cast<std::size_t>(offset - begin);
  void* base = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_, static_cast<off_t>(begin));
  if (base == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(base) + (offset - begin), [base, length](std::byte*) { ::munmap(base, length); }};
}

}  // namespace quire::capture
