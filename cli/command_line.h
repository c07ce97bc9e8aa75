// SPDX-License-Identifier: Apache-2.0
// The whole quire command as one function, for the program and for the Python package's console script.
#pragma once

namespace quire::cli {

/// Runs the command of argv[1..argc): writes to stdout and stderr, and returns the exit code (docs/reference/cli.md).
int run_command_line(int argc, char** argv) noexcept;

}  // namespace quire::cli
