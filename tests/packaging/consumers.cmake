# SPDX-License-Identifier: Apache-2.0
# Two programs, built once for every way of getting at the library.
add_executable(consumer_cpp ${CMAKE_CURRENT_LIST_DIR}/consumer.cpp)
target_link_libraries(consumer_cpp PRIVATE quire::core quire::tools)
target_compile_options(consumer_cpp PRIVATE -Wall -Wextra -Wpedantic -Werror)

add_executable(consumer_c ${CMAKE_CURRENT_LIST_DIR}/../capi/program.c)
target_link_libraries(consumer_c PRIVATE quire::quire m)
set_target_properties(consumer_c PROPERTIES C_STANDARD 11 C_EXTENSIONS OFF)
