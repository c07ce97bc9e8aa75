// SPDX-License-Identifier: Apache-2.0
// The whole quire command as one function, for the program and for the Python package's console script.
#pragma once

#include <string>

#include "quire/tools/verify.hpp"

namespace quire::cli {

/// Runs the command of argv[1..argc): writes to stdout and stderr, and returns the exit code (docs/reference/cli.md).
int run_command_line(int argc, char** argv) noexcept;

/// The JSON that `quire verify --json` prints for one verdict, and that `quire verify --soak --json` prints for a soak with its
/// files in `folder`. Python judges Python's callables and prints the same JSON by these.
std::string verify_json(const Verdict& verdict, int exit_code);
std::string soak_json(const SoakResult& result, const std::string& folder, int exit_code);

}  // namespace quire::cli
