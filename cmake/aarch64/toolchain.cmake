# SPDX-License-Identifier: Apache-2.0
# Debian's cross compiler for AArch64, its programs run by qemu-user. Used by ./test arm.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

# The host's packages hold x86 libraries: what is header-only is taken from them by the configurations in this folder, GoogleTest
# is built from Debian's sources.
set(fmt_DIR ${CMAKE_CURRENT_LIST_DIR})
set(nlohmann_json_DIR ${CMAKE_CURRENT_LIST_DIR})
set(GTest_DIR ${CMAKE_CURRENT_LIST_DIR})
