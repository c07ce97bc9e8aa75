# The CUDA backend: found if it can be, asked for with QUIRE_CUDA=ON. Without it the library is complete for CPUs, plans for CUDA
# devices all the same, and says "this build has no CUDA kernels" where one would be needed.
set(QUIRE_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (if there is a toolkit), ON or OFF")
set_property(CACHE QUIRE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(QUIRE_CUDA_ARCHITECTURES 90a CACHE STRING "CUDA architectures to compile for, e.g. 90a or 80;90a")

set(QUIRE_HAS_CUDA OFF)
if(QUIRE_CUDA STREQUAL "OFF" OR QUIRE_SANITIZE)
  message(STATUS "CUDA kernels: off")
else()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(QUIRE_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin)
    if(QUIRE_NVCC)
      set(CMAKE_CUDA_COMPILER ${QUIRE_NVCC})
    endif()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${QUIRE_CUDA_ARCHITECTURES})
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit)
    # CMake 3.25 does not know that nvcc 12 and later speak C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
    set(QUIRE_HAS_CUDA ON)
    message(STATUS "CUDA kernels: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${QUIRE_CUDA_ARCHITECTURES}")
  elseif(QUIRE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUIRE_CUDA=ON, but no CUDA toolkit was found: put nvcc on PATH, or set CMAKE_CUDA_COMPILER")
  else()
    message(STATUS "CUDA kernels: none, no CUDA toolkit was found (nvcc on PATH or CMAKE_CUDA_COMPILER); the CPU build is complete")
  endif()
endif()

if(QUIRE_HAS_CUDA)
  file(GLOB QUIRE_CUDA_SOURCES CONFIGURE_DEPENDS src/backend/cuda/*.cpp src/backend/cuda/*.cu src/backend/cuda/mma/*.cu
       src/backend/cuda/mma/*.cpp src/backend/cuda/sm90/*.cu src/backend/cuda/sm90/*.cpp)
  target_sources(quire PRIVATE ${QUIRE_CUDA_SOURCES})
  # Where it is asked for, and nowhere else: other objects are those of a build without CUDA, and ccache knows them (tests/packaging).
  file(GLOB QUIRE_CUDA_SWITCHES CONFIGURE_DEPENDS src/attention/*.cpp src/device/*.cpp)
  set_property(SOURCE ${QUIRE_CUDA_SWITCHES} ${QUIRE_CUDA_SOURCES} APPEND PROPERTY COMPILE_DEFINITIONS QUIRE_HAS_CUDA=1)
  set(cuda_cpp_sources ${QUIRE_CUDA_SOURCES})
  list(FILTER cuda_cpp_sources INCLUDE REGEX "\\.cpp$")
  set_source_files_properties(${cuda_cpp_sources} PROPERTIES COMPILE_OPTIONS "-isystem;${CUDAToolkit_INCLUDE_DIRS}")
  # The runtime is linked statically: a program with Quire in it needs the driver and nothing else.
  target_link_libraries(quire PRIVATE $<LINK_ONLY:CUDA::cudart_static>)
  set_target_properties(quire PROPERTIES CUDA_ARCHITECTURES "${QUIRE_CUDA_ARCHITECTURES}" CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
    CUDA_RUNTIME_LIBRARY Static CUDA_VISIBILITY_PRESET default)
  target_compile_options(quire PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --threads 1 -Xcompiler=-Wall>)
  # Expressions are contracted into fma only where the source says so, as on the CPU; not so beside tensor cores, which fuse anyway.
  file(GLOB QUIRE_PORTABLE_CUDA_SOURCES CONFIGURE_DEPENDS src/backend/cuda/*.cu)
  set_source_files_properties(${QUIRE_PORTABLE_CUDA_SOURCES} PROPERTIES COMPILE_OPTIONS --fmad=false)
endif()

# Tools for the device at hand; part of developer builds so that they keep compiling: attend_cuda times attend() and checks repeats and
# replays, functions_cuda measures errors of hardware functions.
if(QUIRE_HAS_CUDA AND QUIRE_BUILD_TESTS)
  foreach(tool attend_cuda functions_cuda)
    add_executable(${tool} bench/gpu/${tool}.cu)
    target_include_directories(${tool} PRIVATE src)
    target_link_libraries(${tool} PRIVATE quire CUDA::cudart_static)
    set_target_properties(${tool} PROPERTIES CUDA_ARCHITECTURES "${QUIRE_CUDA_ARCHITECTURES}" CUDA_STANDARD 20
      CUDA_STANDARD_REQUIRED ON)
    target_compile_options(${tool} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  endforeach()
endif()
