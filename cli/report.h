// SPDX-License-Identifier: Apache-2.0
// Result that a command returns to main(): text for people, JSON for programs, and the exit code of both.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "quire/status.hpp"

namespace quire::cli {

using Json = nlohmann::ordered_json;

/// Documented in cli.md and in `quire --help`; never renumbered.
enum ExitCode : int {
  kOk = 0,
  kFindings = 1,     ///< findings, or an output that does not match
  kUsage = 2,        ///< wrong usage, malformed problem line or capture
  kIo = 3,           ///< a file cannot be opened, read or written
  kUnsupported = 4,  ///< valid, but no kernel, device or memory for it here
  kInternal = 70,    ///< Quire broke one of its own promises
};
ExitCode exit_code_of(Code code);

struct Report {
  int exit_code = kOk;
  std::string text;   ///< text for stdout
  Json json;          ///< output for stdout with --json
  std::string error;  ///< message for stderr; set only if the command could not do its work
  std::string hint;   ///< line that helps with `error`

  static Report failure(const Status& status, std::string hint = {});
  static Report usage(std::string message, std::string hint = {});
};

/// Forms of output that suit the user of this process.
struct Terminal {
  bool json = false;          ///< --json was given
  bool color = false;         ///< stdout is a terminal and NO_COLOR is not set
  bool progress = false;      ///< stderr is a terminal and --json was not given
  std::int64_t columns = 80;  ///< width of stdout: the terminal's; else COLUMNS, or 80
};
Terminal detect_terminal(bool json);

/// Writes the report; returns the exit code, which is kIo if stdout does not take the bytes.
int write_report(const Report& report, const Terminal& terminal);

std::string green(std::string_view text, const Terminal& terminal);
std::string red(std::string_view text, const Terminal& terminal);
std::string bold(std::string_view text, const Terminal& terminal);

/// Control characters become \xNN, so that text from a file cannot drive the terminal. Newlines and tabs stay.
std::string printable(std::string_view text);
/// Text that stays on one line: a line break in a file name is escaped, too, or it would begin a line of the report.
std::string printable_line(std::string_view text);

}  // namespace quire::cli
