// SPDX-License-Identifier: Apache-2.0
// The compiled kernels that this library carries: one ELF code object for each source (*.hip) and target, put into a generated
// file by cmake/hip.cmake.
#pragma once

#include <span>
#include <string_view>

namespace quire::hip {

struct CodeObject {
  std::string_view target;  ///< "gfx942"
  std::string_view source;  ///< "kernels", "matrix_f16", "matrix_bf16"
  const unsigned char* begin;
  const unsigned char* end;
};

std::span<const CodeObject> code_objects() noexcept;

}  // namespace quire::hip
