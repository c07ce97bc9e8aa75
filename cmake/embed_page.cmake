# SPDX-License-Identifier: Apache-2.0
# Turns src/report/html/page into one C++ source, so that the library needs no file at run time: styles and scripts go into
# page.html, and the result is split where the data belongs. Included by CMakeLists.txt; runs itself as a script at build time.
set(QUIRE_PAGE_SCRIPTS dom.js table.js grid_map.js pictures.js verify.js suspects.js diagnose.js bench.js main.js)

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(QUIRE_PAGE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/src/report/html/page)
  set(QUIRE_PAGE_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/report_page.cpp)
  # clang's -Wpedantic counts characters: one string holds the whole page.
  set_source_files_properties(${QUIRE_PAGE_SOURCE} PROPERTIES COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:Clang>:-Wno-overlength-strings>")
  set(inputs ${QUIRE_PAGE_SCRIPTS} page.html page.css)
  list(TRANSFORM inputs PREPEND ${QUIRE_PAGE_DIR}/)
  add_custom_command(
    OUTPUT ${QUIRE_PAGE_SOURCE}
    COMMAND ${CMAKE_COMMAND} -DPAGE=${QUIRE_PAGE_DIR} -DOUTPUT=${QUIRE_PAGE_SOURCE} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${inputs} ${CMAKE_CURRENT_LIST_FILE} VERBATIM)
  target_sources(quire_tools PRIVATE ${QUIRE_PAGE_SOURCE})
  return()
endif()

set(script "")
foreach(file ${QUIRE_PAGE_SCRIPTS})
  file(READ ${PAGE}/${file} text)
  string(APPEND script "${text}")
endforeach()
file(READ ${PAGE}/page.css style)
file(READ ${PAGE}/page.html page)
string(REPLACE "{{style}}" "${style}" page "${page}")
string(REPLACE "{{script}}" "${script}" page "${page}")
string(FIND "${page}" "{{data}}" at)
string(LENGTH "{{data}}" skip)
math(EXPR rest "${at} + ${skip}")
string(SUBSTRING "${page}" 0 ${at} before)
string(SUBSTRING "${page}" ${rest} -1 after)
file(WRITE ${OUTPUT} "// Made by cmake/embed_page.cmake from src/report/html/page.
#include \"report/html/page.h\"

namespace quire::report {

std::string_view page_before_data() noexcept { return R\"quire_page(${before})quire_page\"; }
std::string_view page_after_data() noexcept { return R\"quire_page(${after})quire_page\"; }

}  // namespace quire::report
")
