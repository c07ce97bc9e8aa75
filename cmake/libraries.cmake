# SPDX-License-Identifier: Apache-2.0
# The two libraries by the folders of src/ that are compiled into them. libquire is attention: a program that computes needs no more.
# libquire_tools judges attention, and calls libquire; nothing in libquire includes or calls it. tools/check_layers.py reads both lists.
set(QUIRE_CORE_FOLDERS text threads batch contract pool device plan plan/kernels attention shards cascade sparse capi
                       backend/cpu backend/gpu)
# The oracle is a part of every build: attention alone has a reference to be compared with.
set(QUIRE_ORACLE_FOLDERS numerics backend/reference)
set(QUIRE_TOOLS_FOLDERS files cases caches capture faults diagnose diagnose/mechanisms verify report report/text report/json report/html
                        bench bench/ceilings capi/tools)
if(NOT QUIRE_TOOLS)
  set(QUIRE_TOOLS_FOLDERS "")
endif()
if(QUIRE_LEAVE_OUT)
  string(REPLACE ";" "|" left_out "${QUIRE_LEAVE_OUT}")
  list(FILTER QUIRE_CORE_FOLDERS EXCLUDE REGEX "^(${left_out})(/|$)")
  list(FILTER QUIRE_TOOLS_FOLDERS EXCLUDE REGEX "^(${left_out})(/|$)")
endif()

# quire_library(TARGET FOLDERS UNITY...): a library of these folders. A new file in one of them is part of it. UNITY: folders whose files are
# compiled in groups.
function(quire_library target folders)
  set(globs ${folders})
  list(TRANSFORM globs REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/src/\\1/*.cpp")
  file(GLOB sources CONFIGURE_DEPENDS ${globs})
  quire_unity_json(sources ${PROJECT_SOURCE_DIR}/src)
  if(QUIRE_USERS_BUILD)
    # Host code of the CPU backend: compiled as the rest of the library is.
    set(host_side append attend entries roll_call thread_pool)
    list(TRANSFORM host_side REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/src/backend/cpu/\\1.cpp")
    quire_unity_group(sources ${PROJECT_SOURCE_DIR}/src backend_cpu ${host_side})
  endif()
  foreach(folder IN LISTS ARGN)
    quire_unity(sources ${PROJECT_SOURCE_DIR}/src ${folder})
  endforeach()
  add_library(${target} ${sources})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION 0 POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN ON DEFINE_SYMBOL "")
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  # Header-only and private: users of an installed library do not need it.
  target_link_libraries(${target} PUBLIC Threads::Threads PRIVATE $<BUILD_INTERFACE:fmt::fmt-header-only>)
  target_compile_definitions(${target} PRIVATE QUIRE_VERSION="${PROJECT_VERSION}")
  if(BUILD_SHARED_LIBS AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_link_options(${target} PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  endif()
endfunction()
