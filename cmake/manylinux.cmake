# SPDX-License-Identifier: Apache-2.0
# A toolchain for wheels that run on every Linux with glibc 2.28 (manylinux_2_28): the compiler of this machine, as tested, and zig's linker,
# which knows the symbols of older glibcs. libstdc++ is linked statically; libgcc_s, which unwinds exceptions, is everywhere.
# QUIRE_ZIG in the environment: a Python with the package ziglang. tools/build_wheels.sh uses this.
set(CMAKE_CXX_COMPILER g++)
execute_process(COMMAND g++ -print-file-name=libstdc++.a OUTPUT_VARIABLE libstdcxx OUTPUT_STRIP_TRAILING_WHITESPACE)
execute_process(COMMAND g++ -print-file-name=libgcc_s.so.1 OUTPUT_VARIABLE libgcc OUTPUT_STRIP_TRAILING_WHITESPACE)
set(CMAKE_CXX_CREATE_SHARED_MODULE "$ENV{QUIRE_ZIG} -m ziglang c++ -target ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu.2.28 -shared -s -nostdlib++ \
-Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/../python/exports.map -o <TARGET> <OBJECTS> <LINK_LIBRARIES> ${libstdcxx} ${libgcc} \
-lpthread -ldl -lrt -lm")
