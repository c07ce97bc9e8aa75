// SPDX-License-Identifier: Apache-2.0
// Turns the words after a command into a problem or a batch: one capture file, or a problem line in one or many words.
#pragma once

#include <string>
#include <vector>

#include "quire/contract.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"
#include "quire/tools/capture.hpp"
#include "report.h"

namespace quire::cli {

using Words = std::vector<std::string>;

/// Whether the words name a capture: one word that is an existing file or has no '='. Everything else is a problem line.
bool names_a_file(const Words& words);

/// The words joined by blanks, parsed.
Result<ProblemLine> problem_line_of(const Words& words);

/// A filled batch: read from the capture, or made from the problem line.
Result<Case> case_of(const Words& words, const Terminal& terminal);

/// The problem alone; a capture is read and its metadata and tables checked first.
Result<Problem> problem_of_words(const Words& words);

/// Name of the input in reports: the file name or the words.
std::string title_of(const Words& words);

/// "metadata", "tables" or "contents".
std::string depth_name(Depth depth);

}  // namespace quire::cli
