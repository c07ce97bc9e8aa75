// SPDX-License-Identifier: Apache-2.0
// The lines of a short report: labels, and texts that are broken between words and cut until all fit.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "quire/tools/diagnose.hpp"

namespace quire::report {

inline constexpr std::size_t kLabel = 9;  ///< width of a label

/// A label, and the text behind it.
struct Entry {
  std::string label, text;
  std::size_t most;  ///< lines
  std::vector<std::string> lines = {};
};

/// The entries as at most ten lines, the longest ones cut until all fit.
std::string fitted(std::vector<Entry> entries, std::size_t columns);

/// Entries of the short text of a diagnosis.
std::vector<Entry> entries_of(const Diagnosis& diagnosis);

}  // namespace quire::report
