# SPDX-License-Identifier: Apache-2.0
# /usr/include itself must not be searched by a cross compiler: a folder of links stands for it.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/headers)
file(CREATE_LINK /usr/include/fmt ${CMAKE_BINARY_DIR}/headers/fmt SYMBOLIC)
if(NOT TARGET fmt::fmt-header-only)
  add_library(fmt::fmt-header-only INTERFACE IMPORTED GLOBAL)
  target_include_directories(fmt::fmt-header-only SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/headers)
  target_compile_definitions(fmt::fmt-header-only INTERFACE FMT_HEADER_ONLY=1)
endif()
