// SPDX-License-Identifier: Apache-2.0
// quire completions: what a shell offers behind `quire <Tab>`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "report.h"

namespace quire::cli {

/// The script of bash, zsh or fish, made from the commands and options of `app`.
Report print_completions(const CLI::App& app, const std::string& shell);

}  // namespace quire::cli
