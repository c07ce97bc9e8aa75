# One translation unit per instruction set: the flags follow the file name, nothing else in the library gets them.
function(quire_isa_flags file)
  if(EXISTS ${PROJECT_SOURCE_DIR}/src/backend/cpu/${file})
    set_source_files_properties(src/backend/cpu/${file} PROPERTIES COMPILE_OPTIONS "${ARGN}")
  endif()
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  quire_isa_flags(x86_avx2.cpp -mavx2 -mfma -mf16c)
  # GCC 12's own AVX-512 headers trip these two warnings (GCC bug 105593).
  quire_isa_flags(x86_avx512.cpp $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized$<SEMICOLON>-Wno-maybe-uninitialized>
                  -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c)
endif()
