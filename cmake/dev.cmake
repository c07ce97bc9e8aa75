# SPDX-License-Identifier: Apache-2.0
# Options for developers, not for users of the library: warnings, sanitizers, ccache.
if(PROJECT_IS_TOP_LEVEL)
  find_program(QUIRE_CCACHE ccache)
  if(QUIRE_CCACHE)
    # Debug information names the folder of the build; without it in the hash the packaging tests and the Python tests' wheel are
    # served with the objects of this build. Paths in the source tree are hashed as relative ones, so that another clone is served, too.
    set(launcher env CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${QUIRE_CCACHE})
    set_target_properties(quire quire_tools PROPERTIES CXX_COMPILER_LAUNCHER "${launcher}")
    set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
    set_target_properties(quire PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
  endif()
endif()

if(QUIRE_SANITIZE)
  add_compile_options(-fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
  foreach(target quire quire_tools)
    target_compile_options(${target} PRIVATE -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${QUIRE_SANITIZE})
  endforeach()
endif()

# Call for every target of ours. Designated initialisers leave fields out on purpose, hence no missing-field-initializers.
# In builds for use they only cost time.
function(quire_warnings target)
  if(QUIRE_USERS_BUILD)
    return()
  endif()
  set(flags -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # libstdc++ 12 calls its own deprecated get_temporary_buffer inside stable_sort.
    list(APPEND flags -Wno-deprecated-declarations)
  endif()
  if(QUIRE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumentation confuses GCC's flow analysis, inside std::regex for one.
    list(APPEND flags -Wno-maybe-uninitialized)
  endif()
  if(QUIRE_DEVELOPER_MODE)
    list(APPEND flags -Werror)
  endif()
  # nvcc's generated code satisfies neither -Wpedantic nor -Wconversion.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:${flags}>)
endfunction()
quire_warnings(quire)
quire_warnings(quire_tools)
