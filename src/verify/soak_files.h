// SPDX-License-Identifier: Apache-2.0
// The folder of a soak: a state that a later run goes on from, a log for people, and findings as a case file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/tools/verify.hpp"

namespace quire::verify_detail {

/// The state that a run leaves to the next one.
struct SoakState {
  std::uint64_t seed = 1;
  std::int64_t next = 0;  ///< the first line that was not asked
  double seconds = 0;     ///< time of all runs
  std::vector<SoakCounts> counts;
  std::string running;                   ///< the line that is asked at the moment; empty in a state that was left by a clean stop
  std::vector<std::string> interrupted;  ///< lines that ran when their process ended
};

/// Does nothing at all without a folder.
class SoakFiles {
 public:
  /// Makes the folder. io_error if that fails.
  static Result<SoakFiles> open(const std::string& directory);

  /// Replaces `state` by the one in the folder, if there is one. parse_error for a file that is no state.
  Status load(SoakState& state) const;
  /// Writes a new file and renames it over the old one: the folder always holds a complete state.
  Status save(const SoakState& state) const;
  /// Adds one line to the log, with the time in front.
  Status log(const std::string& text) const;
  /// Adds the finding as a comment, then the smallest failing line or the whole one: a file for `python -m quire verify --lines`.
  Status add(const SoakFinding& finding) const;

 private:
  explicit SoakFiles(std::string directory) : directory_(std::move(directory)) {}
  Status append(const char* file, const std::string& text) const;
  std::string directory_;
};

}  // namespace quire::verify_detail
