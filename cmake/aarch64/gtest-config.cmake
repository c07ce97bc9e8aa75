# SPDX-License-Identifier: Apache-2.0
# Debian's libgtest-dev and libgmock-dev ship their sources here.
if(NOT TARGET gmock)
  add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
endif()
