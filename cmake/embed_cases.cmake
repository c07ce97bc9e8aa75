# SPDX-License-Identifier: Apache-2.0
# Turns bench/cases/*.txt into one C++ source, so that `quire bench --workload` needs no file at run time. Included by
# CMakeLists.txt; runs itself as a script at build time.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(QUIRE_CASES_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/bench_cases.cpp)
  file(GLOB inputs CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/bench/cases/*.txt)
  add_custom_command(
    OUTPUT ${QUIRE_CASES_SOURCE}
    COMMAND ${CMAKE_COMMAND} -DCASES=${CMAKE_CURRENT_SOURCE_DIR}/bench/cases -DOUTPUT=${QUIRE_CASES_SOURCE}
            -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${inputs} ${CMAKE_CURRENT_LIST_FILE} VERBATIM)
  target_sources(quire_tools PRIVATE ${QUIRE_CASES_SOURCE})
  return()
endif()

file(GLOB files ${CASES}/*.txt)
list(SORT files COMPARE NATURAL)
set(rows "")
foreach(file ${files})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND rows "    {\"${name}\", R\"quire_case(${text})quire_case\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Made by cmake/embed_cases.cmake from bench/cases.
#include \"bench/workloads.h\"

namespace quire::bench_detail {

std::span<const WorkloadFile> workload_files() noexcept {
  static constexpr WorkloadFile kFiles[] = {
${rows}  };
  return kFiles;
}

}  // namespace quire::bench_detail
")
