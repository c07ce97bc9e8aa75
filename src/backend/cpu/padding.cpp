// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/padding.h"

#include <cstring>
#include <limits>

namespace quire::cpu {
namespace {

/// All bits 0 are the number 0 in every type that an output may have.
void zero_row(const Tensor& output, std::int64_t row, std::int64_t head) {
  const auto size = itemsize(output.dtype);
  std::byte* at = static_cast<std::byte*>(output.data) + (row * output.stride[0] + head * output.stride[1]) * size;
  if (output.stride[2] == 1) {
    std::memset(at, 0, static_cast<std::size_t>(output.shape[2] * size));
    return;
  }
  for (std::int64_t d = 0; d < output.shape[2]; ++d)
    std::memset(at + d * output.stride[2] * size, 0, static_cast<std::size_t>(size));
}

}  // namespace

void zero_rows(const Tensor& output, const Tensor& lse, std::int64_t first) {
  for (std::int64_t row = first; row < output.shape[0]; ++row)
    for (std::int64_t head = 0; head < output.shape[1]; ++head) {
      zero_row(output, row, head);
      if (lse.present())
        static_cast<float*>(lse.data)[row * lse.stride[0] + head * lse.stride[1]] = -std::numeric_limits<float>::infinity();
    }
}

}  // namespace quire::cpu
