// SPDX-License-Identifier: Apache-2.0
// The quire program.
#include "command_line.h"

int main(int argc, char** argv) { return quire::cli::run_command_line(argc, argv); }
