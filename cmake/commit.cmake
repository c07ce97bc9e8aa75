# SPDX-License-Identifier: Apache-2.0
# Writes the commit of the source tree into a source file: "unknown" outside of a repository, "-dirty" with uncommitted changes.
execute_process(COMMAND git -C ${ROOT} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "// Made by cmake/commit.cmake.
#include \"commit.h\"

const char* quire::cli::commit() { return \"${commit}\"; }
")
