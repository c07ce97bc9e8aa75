# SPDX-License-Identifier: Apache-2.0
# The CUDA backend: built where a GPU is visible, or where QUIRE_CUDA=ON asks for it. Without it the library is complete for CPUs, plans
# for CUDA devices all the same, and says "this build has no CUDA kernels" where one would be needed.
set(QUIRE_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (if a GPU is visible), ON or OFF")
set_property(CACHE QUIRE_CUDA PROPERTY STRINGS AUTO ON OFF)
# Compiled for Ampere, Ada, Hopper, Blackwell and, as PTX, whatever comes after them. A GPU that is not covered is not listed
# (src/device/images.h).
set(QUIRE_ALL_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 100-real 120)
set(QUIRE_CUDA_ARCHITECTURES "" CACHE STRING "CUDA architectures, e.g. 90a or 80;90a; default: of the GPUs here (AUTO), or all (ON)")

# Sets `found` to the architectures of the GPUs here: a list, "unknown" if there are GPUs that nobody can describe, or nothing.
function(quire_visible_cuda_architectures found)
  set(${found} "" PARENT_SCOPE)
  find_program(QUIRE_NVIDIA_SMI nvidia-smi HINTS /usr/lib/wsl/lib DOC "lists the NVIDIA GPUs of this machine")
  if(QUIRE_NVIDIA_SMI)
    execute_process(COMMAND ${QUIRE_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE words RESULT_VARIABLE failed ERROR_QUIET TIMEOUT 20)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${words}")
    if(NOT failed AND capabilities)
      list(TRANSFORM capabilities REPLACE "\\." "")
      list(TRANSFORM capabilities REPLACE "^90$" "90a")
      list(REMOVE_DUPLICATES capabilities)
      set(${found} ${capabilities} PARENT_SCOPE)
      return()
    endif()
  endif()
  file(GLOB devices /dev/nvidia[0-9]* /proc/driver/nvidia/gpus/*)
  if(devices)
    set(${found} unknown PARENT_SCOPE)
  endif()
endfunction()

# Enables CUDA and sets `why` to what is missing, or to nothing.
macro(quire_try_cuda_compiler why)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(QUIRE_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin)
    if(QUIRE_NVCC)
      set(CMAKE_CUDA_COMPILER ${QUIRE_NVCC})
    endif()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${QUIRE_CUDA_CHOSEN})
  include(CheckLanguage)
  check_language(CUDA)
  set(${why} "no CUDA toolkit was found: put nvcc on PATH, or set CMAKE_CUDA_COMPILER")
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit)
    # CMake 3.25 does not know that nvcc 12 and later speak C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
      set(${why} "")
    endif()
  endif()
endmacro()

set(QUIRE_HAS_CUDA OFF)
set(QUIRE_CUDA_CHOSEN ${QUIRE_CUDA_ARCHITECTURES})
if(QUIRE_CUDA STREQUAL "OFF" OR QUIRE_SANITIZE)
  message(STATUS "CUDA kernels: off")
else()
  if(QUIRE_CUDA STREQUAL "ON")
    set(visible unknown)
  else()
    quire_visible_cuda_architectures(visible)
  endif()
  if(NOT QUIRE_CUDA_CHOSEN)
    set(QUIRE_CUDA_CHOSEN ${visible})
    if(visible STREQUAL "unknown")
      set(QUIRE_CUDA_CHOSEN ${QUIRE_ALL_CUDA_ARCHITECTURES})
    endif()
  endif()
  if(NOT visible)
    message(STATUS "CUDA kernels: none, because no NVIDIA GPU is visible here; -DQUIRE_CUDA=ON builds them all the same "
                   "(pip: -C cmake.define.QUIRE_CUDA=ON)")
  else()
    quire_try_cuda_compiler(missing)
    if(NOT missing)
      set(QUIRE_HAS_CUDA ON)
      message(STATUS "CUDA kernels: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${QUIRE_CUDA_CHOSEN}; -DQUIRE_CUDA=OFF leaves them out "
                     "(pip: -C cmake.define.QUIRE_CUDA=OFF)")
    elseif(QUIRE_CUDA STREQUAL "ON")
      message(FATAL_ERROR "QUIRE_CUDA=ON, but ${missing}")
    else()
      message(STATUS "CUDA kernels: none, although an NVIDIA GPU is visible: ${missing}; the CPU build is complete")
    endif()
  endif()
endif()

if(QUIRE_HAS_CUDA)
  file(GLOB QUIRE_CUDA_SOURCES CONFIGURE_DEPENDS src/backend/cuda/*.cpp src/backend/cuda/*.cu src/backend/cuda/mma/*.cu
       src/backend/cuda/mma/*.cpp src/backend/cuda/sm90/*.cpp src/backend/cuda/sm90/cluster/*.cu src/backend/cuda/sm90/decode/*.cu src/backend/cuda/sm90/prefill/*.cu
       src/backend/cuda/sm90/mla/*.cu src/backend/cuda/sm90/mla/*.cpp)
  target_sources(quire PRIVATE ${QUIRE_CUDA_SOURCES})
  # Where it is asked for, and nowhere else: other objects are those of a build without CUDA, and ccache knows them (tests/packaging).
  file(GLOB QUIRE_CUDA_SWITCHES CONFIGURE_DEPENDS src/attention/*.cpp src/device/*.cpp)
  get_target_property(groups quire SOURCES)  # the same files where they are compiled in groups
  list(FILTER groups INCLUDE REGEX "/unity/(attention|device)_[0-9]+.cpp$")
  list(APPEND QUIRE_CUDA_SWITCHES ${groups})
  set_property(SOURCE ${QUIRE_CUDA_SWITCHES} ${QUIRE_CUDA_SOURCES} APPEND PROPERTY COMPILE_DEFINITIONS QUIRE_HAS_CUDA=1)
  string(REPLACE ";" " " words "${QUIRE_CUDA_CHOSEN}")
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/backend/cuda/runtime.cpp APPEND PROPERTY COMPILE_DEFINITIONS
               QUIRE_CUDA_ARCHITECTURES="${words}")
  set(cuda_cpp_sources ${QUIRE_CUDA_SOURCES})
  list(FILTER cuda_cpp_sources INCLUDE REGEX "\\.cpp$")
  set_source_files_properties(${cuda_cpp_sources} PROPERTIES COMPILE_OPTIONS "-isystem;${CUDAToolkit_INCLUDE_DIRS}")
  # The runtime is linked statically: a program with Quire in it needs the driver and nothing else.
  target_link_libraries(quire PRIVATE $<LINK_ONLY:CUDA::cudart_static>)
  set_target_properties(quire PROPERTIES CUDA_ARCHITECTURES "${QUIRE_CUDA_CHOSEN}" CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
    CUDA_RUNTIME_LIBRARY Static CUDA_VISIBILITY_PRESET default)
  target_compile_options(quire PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --threads 1 -Xcompiler=-Wall>)
  # Expressions are contracted into fma only where the source says so, as on the CPU; not so beside tensor cores, which fuse anyway.
  file(GLOB QUIRE_PORTABLE_CUDA_SOURCES CONFIGURE_DEPENDS src/backend/cuda/*.cu)
  set_source_files_properties(${QUIRE_PORTABLE_CUDA_SOURCES} PROPERTIES COMPILE_OPTIONS --fmad=false)
endif()

# A tool for the device at hand; part of developer builds so that it keeps compiling: attend_cuda times attend() and checks repeats and
# replays.
if(QUIRE_HAS_CUDA AND QUIRE_BUILD_TESTS)
  add_executable(attend_cuda bench/gpu/attend_cuda.cu)
  target_include_directories(attend_cuda PRIVATE src)
  target_link_libraries(attend_cuda PRIVATE quire CUDA::cudart_static)
  set_target_properties(attend_cuda PROPERTIES CUDA_ARCHITECTURES "${QUIRE_CUDA_CHOSEN}" CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON)
  target_compile_options(attend_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
endif()
