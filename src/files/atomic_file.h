// SPDX-License-Identifier: Apache-2.0
// Files that appear as a whole or not at all. The library, the command and the Python package write every file that replaces
// another through this.
//
// Guarantee: readers see the old file or the new one. A file that is replaced keeps its mode, and a link keeps its target.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "quire/status.hpp"

namespace quire::files {

/// Modes of a file that did not exist, in octal; the umask of the process takes bits away. A wrong mode shows users' data to
/// other accounts of the machine, or keeps a report from them.
inline constexpr unsigned kReport = 0666;    ///< mode of a report: whomever the umask admits
inline constexpr unsigned kUserData = 0600;  ///< mode of a capture, which holds users' data: the owner alone

/// Writes a file beside `path`, which takes the place of `path` on commit(). Without commit() nothing remains. Where the file
/// system has nameless files, nothing remains of a process that is killed, either.
class AtomicFile {
 public:
  AtomicFile() = default;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  /// `new_mode` is the mode of a file that did not exist.
  Status open(const std::string& path, unsigned new_mode);
  Status write(std::span<const std::byte> bytes);
  Status commit();

 private:
  Status fail(const char* what) const;
  std::string free_name() const;
  Status link();
  std::string path_, target_;  ///< the path as the caller wrote it, and the path behind links
  std::string temporary_;      ///< name of the file that is written; empty while the file has none
  int fd_ = -1;
};

/// Writes a text by an AtomicFile.
Status write_whole(const std::string& path, std::string_view text, unsigned new_mode = kReport);

/// Whether two paths name one file, by links and other spellings too. The file need not exist.
bool is_same_file(const std::string& a, const std::string& b);

}  // namespace quire::files
