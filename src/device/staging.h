// SPDX-License-Identifier: Apache-2.0
// Device tensors for host eyes: copies in host memory with the same shape, strides and values.
#pragma once

#include <memory>
#include <vector>

#include "quire/status.hpp"
#include "quire/tensor.hpp"

namespace quire::device {

/// Bytes [begin, end) relative to `data` that the elements of a tensor span; empty without elements.
struct ByteSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
/// Sizes and strides must be sound (rules Q-M02, Q-M03).
ByteSpan span_of(const Tensor& t) noexcept;

/// Holds the copies; the tensors handed out live as long as it does.
class Staging {
 public:
  /// Replaces a tensor in device memory, whose sizes and strides are sound, by a host view of its elements. Waits for the device
  /// once.
  Status stage(Tensor& t);

 private:
  bool waited_ = false;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace quire::device
