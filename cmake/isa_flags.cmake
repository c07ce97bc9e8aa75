# SPDX-License-Identifier: Apache-2.0
# One translation unit per instruction set: the flags follow the file name, nothing else in the library gets them.
# -O3 whatever the build type: at -O2 GCC keeps the loops over a block's registers, and with them the registers in memory.
# A product is contracted with a sum only where the source says fma: combine() of softmax states is commutative to the bit.
set(QUIRE_KERNEL_FLAGS -O3 -ffp-contract=off)
if(QUIRE_SANITIZE)
  set(QUIRE_KERNEL_FLAGS -O1 -ffp-contract=off)  # instrumented and unrolled, they were a fifth of the time that such a build takes
endif()
set(QUIRE_AVX2_FLAGS ${QUIRE_KERNEL_FLAGS} -mavx2 -mfma -mf16c)
set(QUIRE_AVX512_FLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq ${QUIRE_AVX2_FLAGS})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12's own AVX-512 headers trip these two warnings (GCC bug 105593).
  list(APPEND QUIRE_AVX512_FLAGS -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

set(QUIRE_AVX512BF16_FLAGS -mavx512bf16 -mavx512vbmi ${QUIRE_AVX512_FLAGS})

set_source_files_properties(src/backend/cpu/scalar.cpp src/backend/cpu/arm_neon.cpp PROPERTIES COMPILE_OPTIONS "${QUIRE_KERNEL_FLAGS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(src/backend/cpu/x86_avx2.cpp PROPERTIES COMPILE_OPTIONS "${QUIRE_AVX2_FLAGS}")
  set_source_files_properties(src/backend/cpu/x86_avx512.cpp PROPERTIES COMPILE_OPTIONS "${QUIRE_AVX512_FLAGS}")
  set_source_files_properties(src/backend/cpu/x86_avx512bf16.cpp PROPERTIES COMPILE_OPTIONS "${QUIRE_AVX512BF16_FLAGS}")
  set_source_files_properties(src/backend/cpu/x86_amx.cpp PROPERTIES COMPILE_OPTIONS "${QUIRE_AVX512_FLAGS};-mavx512vbmi")
endif()

# The oracle's loops give the same bits for every vector width: no product may be contracted with a sum.
set_source_files_properties(src/backend/reference/lanes.cpp PROPERTIES COMPILE_OPTIONS "-ffp-contract=off")
# merge() gives the same bits whichever side comes first; GCC contracts wherever the target has the instruction.
set_source_files_properties(src/backend/cpu/merge.cpp PROPERTIES COMPILE_OPTIONS "-ffp-contract=off")

# The ceilings of `quire bench`: a multiply and an add must become one instruction where there is one.
set(QUIRE_CEILING_FLAGS -O3 -ffp-contract=fast)
set_source_files_properties(src/bench/ceilings/generic.cpp PROPERTIES COMPILE_OPTIONS "${QUIRE_CEILING_FLAGS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(src/bench/ceilings/x86_avx2.cpp PROPERTIES COMPILE_OPTIONS "${QUIRE_AVX2_FLAGS};${QUIRE_CEILING_FLAGS}")
  set_source_files_properties(src/bench/ceilings/x86_avx512.cpp PROPERTIES COMPILE_OPTIONS "${QUIRE_AVX512_FLAGS};${QUIRE_CEILING_FLAGS}")
  set_source_files_properties(src/bench/ceilings/x86_bf16_dot.cpp PROPERTIES
    COMPILE_OPTIONS "${QUIRE_AVX512_FLAGS};${QUIRE_CEILING_FLAGS};-mavx512bf16")
  set_source_files_properties(src/bench/ceilings/x86_amx.cpp PROPERTIES COMPILE_OPTIONS "${QUIRE_CEILING_FLAGS};-mamx-tile;-mamx-bf16")
endif()
