# SPDX-License-Identifier: Apache-2.0
# The HIP backend: kernels for AMD GPUs, compiled by clang alone and put into the library as code objects; host code that finds the HIP
# runtime when it is used. Neither needs a ROCm package to build (docs/decisions/0012). Without clang the library is complete for
# CPUs and plans for AMD devices all the same.
set(QUIRE_HIP AUTO CACHE STRING "AMD kernels: AUTO (if a GPU is visible), ON or OFF")
set_property(CACHE QUIRE_HIP PROPERTY STRINGS AUTO ON OFF)
set(QUIRE_HIP_TARGETS gfx90a gfx942 gfx950 gfx1100 gfx1201 CACHE STRING "AMD GPUs to compile for")
set(QUIRE_HIP_FLAGS -x hip --offload-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -O3 -std=c++20 -mcode-object-version=5
    -Wall -Wextra -Iinclude -Isrc)

# Sets `why` to what is missing, or to nothing: a kernel for every target is compiled and linked.
function(quire_try_hip_compiler why)
  set(${why} "" PARENT_SCOPE)
  find_program(QUIRE_HIP_COMPILER NAMES clang++-22 amdclang++ NAMES_PER_DIR HINTS ENV ROCM_PATH PATHS /opt/rocm
               PATH_SUFFIXES bin llvm/bin lib/llvm/bin DOC "clang with the amdgpu target, for AMD kernels")
  if(NOT QUIRE_HIP_COMPILER)
    set(${why} "neither clang-22 (packages clang-22 and lld-22) nor ROCm's amdclang++ was found; QUIRE_HIP_COMPILER names another"
        PARENT_SCOPE)
    return()
  endif()
  set(tried "${QUIRE_HIP_COMPILER} ${QUIRE_HIP_TARGETS}")
  if(tried STREQUAL "${QUIRE_HIP_TRIED}")
    return()
  endif()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/hip)
  file(WRITE ${folder}/try.hip "extern \"C\" __attribute__((global)) void k(int* p) { *p = 1; }\n")
  foreach(target IN LISTS QUIRE_HIP_TARGETS)
    execute_process(COMMAND ${QUIRE_HIP_COMPILER} ${QUIRE_HIP_FLAGS} --offload-arch=${target} ${folder}/try.hip -o ${folder}/try.co
                    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE words)
    if(failed)
      string(STRIP "${words}" words)
      set(${why} "${QUIRE_HIP_COMPILER} makes no code object for ${target}: ${words}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(QUIRE_HIP_TRIED "${tried}" CACHE INTERNAL "the compiler and targets that quire_try_hip_compiler() found to work")
endfunction()

# Sets `found` to ON if the kernel's driver shows an AMD GPU: a node with SIMD units (the CPU is a node without).
function(quire_visible_amd_gpu found)
  set(${found} OFF PARENT_SCOPE)
  file(GLOB nodes /sys/class/kfd/kfd/topology/nodes/*/properties)
  foreach(node IN LISTS nodes)
    file(STRINGS ${node} simds REGEX "^simd_count [1-9]")
    if(simds)
      set(${found} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

set(QUIRE_HAS_HIP OFF)
quire_visible_amd_gpu(visible)
if(QUIRE_HIP STREQUAL "OFF" OR (QUIRE_SANITIZE AND NOT QUIRE_HIP STREQUAL "ON"))
  message(STATUS "AMD kernels: off")
elseif(NOT visible AND NOT QUIRE_HIP STREQUAL "ON")
  message(STATUS "AMD kernels: none, because no AMD GPU is visible here; -DQUIRE_HIP=ON builds them all the same "
                 "(pip: -C cmake.define.QUIRE_HIP=ON)")
else()
  quire_try_hip_compiler(missing)
  if(NOT missing)
    set(QUIRE_HAS_HIP ON)
    message(STATUS "AMD kernels: ${QUIRE_HIP_COMPILER} for ${QUIRE_HIP_TARGETS}; -DQUIRE_HIP=OFF leaves them out "
                   "(pip: -C cmake.define.QUIRE_HIP=OFF)")
  elseif(QUIRE_HIP STREQUAL "ON")
    message(FATAL_ERROR "QUIRE_HIP=ON, but ${missing}")
  else()
    message(STATUS "AMD kernels: none, although an AMD GPU is visible: ${missing}; the CPU build is complete")
  endif()
endif()

# One code object for a source and a target, by way of its assembly, which tools/check_gpu_kernels.py looks into.
function(quire_code_object source target)
  get_filename_component(name ${source} NAME_WE)
  set(made ${CMAKE_CURRENT_BINARY_DIR}/hip/${name}.${target})
  # With relative paths, so that ccache knows the objects of another folder's build.
  add_custom_command(OUTPUT ${made}.s
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${QUIRE_HIP_COMPILER} ${QUIRE_HIP_FLAGS} --offload-arch=${target}
            -S src/backend/hip/${name}.hip -o ${made}.s
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} DEPENDS ${source} ${QUIRE_HIP_HEADERS} COMMENT "Compiling ${name}.hip for ${target}" VERBATIM)
  add_custom_command(OUTPUT ${made}.co
    COMMAND ${QUIRE_HIP_COMPILER} -x assembler --target=amdgcn-amd-amdhsa -mcpu=${target} -mcode-object-version=5 ${made}.s
            -o ${made}.co
    DEPENDS ${made}.s VERBATIM)
endfunction()

if(QUIRE_HAS_HIP)
  file(GLOB QUIRE_HIP_KERNELS CONFIGURE_DEPENDS src/backend/hip/*.hip)
  # clang writes no list of headers for a device alone; ccache knows the objects that a header leaves as they were.
  file(GLOB QUIRE_HIP_HEADERS CONFIGURE_DEPENDS src/backend/hip/*.h src/backend/hip/*.inc src/backend/gpu/*.h
       src/backend/hip/matrix/*.h src/semantics/*.h include/quire/*.hpp)
  set(objects "")
  set(declared "")
  set(listed "")
  foreach(target IN LISTS QUIRE_HIP_TARGETS)
    foreach(source IN LISTS QUIRE_HIP_KERNELS)
      get_filename_component(name ${source} NAME_WE)
      quire_code_object(${source} ${target})
      list(APPEND objects ${CMAKE_CURRENT_BINARY_DIR}/hip/${name}.${target}.co)
      string(APPEND declared "QUIRE_CODE_OBJECT(${name}_${target}, \"${CMAKE_CURRENT_BINARY_DIR}/hip/${name}.${target}.co\")\n")
      string(APPEND listed "    {\"${target}\", \"${name}\", quire_${name}_${target}, quire_${name}_${target}_end},\n")
    endforeach()
  endforeach()
  set(QUIRE_CODE_OBJECTS ${CMAKE_CURRENT_BINARY_DIR}/hip_code_objects.cpp)
  file(CONFIGURE OUTPUT ${QUIRE_CODE_OBJECTS} @ONLY CONTENT [[
// Written by cmake/hip.cmake. See src/backend/hip/code_objects.h.
#include "backend/hip/code_objects.h"

#define QUIRE_CODE_OBJECT(name, path)                                                   \
  asm(".pushsection .rodata\n.balign 4096\n.hidden quire_" #name "\n.globl quire_" #name \
      "\nquire_" #name ":\n.incbin \"" path "\"\n.hidden quire_" #name "_end\n.globl quire_" #name \
      "_end\nquire_" #name "_end:\n.popsection");                                        \
  extern "C" __attribute__((visibility("hidden"))) const unsigned char quire_##name[], quire_##name##_end[];

@declared@
std::span<const quire::hip::CodeObject> quire::hip::code_objects() noexcept {
  static const CodeObject all[] = {
@listed@  };
  return all;
}
]])
  set_source_files_properties(${QUIRE_CODE_OBJECTS} PROPERTIES OBJECT_DEPENDS "${objects}")
  file(GLOB QUIRE_HIP_SOURCES CONFIGURE_DEPENDS src/backend/hip/*.cpp)
  target_sources(quire PRIVATE ${QUIRE_HIP_SOURCES} ${QUIRE_CODE_OBJECTS})
  # Where it is asked for, and nowhere else, as for CUDA.
  file(GLOB QUIRE_HIP_SWITCHES CONFIGURE_DEPENDS src/attention/*.cpp src/device/*.cpp)
  get_target_property(groups quire SOURCES)  # the same files where they are compiled in groups
  list(FILTER groups INCLUDE REGEX "/unity/(attention|device)_[0-9]+.cpp$")
  list(APPEND QUIRE_HIP_SWITCHES ${groups})
  set_property(SOURCE ${QUIRE_HIP_SWITCHES} ${QUIRE_HIP_SOURCES} APPEND PROPERTY COMPILE_DEFINITIONS QUIRE_HAS_HIP=1)
  target_link_libraries(quire PRIVATE $<LINK_ONLY:${CMAKE_DL_LIBS}>)
endif()
