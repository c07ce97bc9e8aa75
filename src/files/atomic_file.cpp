// SPDX-License-Identifier: Apache-2.0
// Temporary file, flush, rename; POSIX.
#include "files/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "text/formatted.h"

namespace quire::files {
namespace {

/// Most bytes of one write call: 1 GiB. Linux moves at most a little below 2^31 bytes per call.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;
constexpr unsigned kPermissions = 07777;

/// The file to replace: the one that a link leads to, or the path itself.
std::string target_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// A file without a name, of which nothing stays when the process is killed; -1 where the system or the file system has none.
int open_nameless(const std::string& folder, unsigned mode) {
#ifdef O_TMPFILE
  if (::access("/proc/self/fd", X_OK) == 0) return ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
#endif
  static_cast<void>(folder), static_cast<void>(mode);
  return -1;
}

}  // namespace

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::fail(const char* what) const {
  return {Code::io_error, formatted("{}: {}: {}", path_, what, std::generic_category().message(errno))};
}

std::string AtomicFile::free_name() const {
  static std::atomic<unsigned> counter{0};
  return formatted("{}.tmp.{}.{}", target_, ::getpid(), counter++);
}

Status AtomicFile::open(const std::string& path, unsigned new_mode) {
  path_ = path;
  target_ = target_of(path);
  struct stat info{};
  const bool exists = ::stat(target_.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) return {Code::io_error, formatted("{}: exists and is not a regular file", path_)};
  const unsigned mode = exists ? kUserData : new_mode;
  fd_ = open_nameless(folder_of(target_), mode);
  while (fd_ < 0) {
    std::string name = free_name();
    fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd_ >= 0) temporary_ = std::move(name);
    if (fd_ < 0 && errno != EEXIST) return fail("cannot create a temporary file beside it");
  }
  if (exists && ::fchmod(fd_, info.st_mode & kPermissions) != 0) return fail("cannot keep its mode");
  return {};
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), std::min(bytes.size(), kMaxTransfer));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail("cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

/// Gives a nameless file its name.
Status AtomicFile::link() {
  const std::string open_file = formatted("/proc/self/fd/{}", fd_);
  while (temporary_.empty()) {
    std::string name = free_name();
    const bool linked = ::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    if (!linked && errno != EEXIST) return fail("cannot name the temporary file");
    if (linked) temporary_ = std::move(name);
  }
  return {};
}

Status AtomicFile::commit() {
  if (::fsync(fd_) != 0) return fail("cannot flush");
  if (Status s = link(); !s.ok()) return s;
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) return fail("cannot close");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) return fail("cannot rename the temporary file to it");
  temporary_.clear();
  // The rename itself must survive a power cut, too. A file system that cannot sync a directory gives no such guarantee.
  const int folder_fd = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd >= 0) {
    ::fsync(folder_fd);
    ::close(folder_fd);
  }
  return {};
}

Status write_whole(const std::string& path, std::string_view text, unsigned new_mode) {
  AtomicFile file;
  if (Status s = file.open(path, new_mode); !s.ok()) return s;
  if (Status s = file.write(std::as_bytes(std::span(text))); !s.ok()) return s;
  return file.commit();
}

bool is_same_file(const std::string& a, const std::string& b) {
  const auto place = [](const std::string& path) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(path, error);
    return error ? absolute : std::filesystem::weakly_canonical(absolute, error);
  };
  std::error_code error;
  if (a.empty() || b.empty()) return false;
  return std::filesystem::equivalent(a, b, error) || (!place(a).empty() && place(a) == place(b));
}

}  // namespace quire::files
