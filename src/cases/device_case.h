// SPDX-License-Identifier: Apache-2.0
// A case on a device: every tensor copied there with its strides, the outputs copied back, with guards round what is written.
#pragma once

#include <memory>
#include <vector>

#include "device/runtime.h"
#include "quire/tools/capture.hpp"

namespace quire::cases {

/// One allocation, freed with it.
class DeviceBytes {
 public:
  static Result<DeviceBytes> make(const device::Runtime& runtime, std::size_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(address_.get()); }

 private:
  std::shared_ptr<void> address_;
};

/// Whether all bytes of `view` are bytes of `of`, as those of V in K's rows are.
bool is_within(const Tensor& view, const Tensor& of);
/// `view` where it lies if `of` becomes `moved`.
Tensor moved_with(const Tensor& view, const Tensor& of, const Tensor& moved);

class DeviceCase {
 public:
  /// Uploads all tensors of the case, what lies between their elements included.
  static Result<DeviceCase> upload(const Case& c, Memory memory);

  const Batch& batch() const { return batch_; }
  const KVCache& cache() const { return cache_; }
  const Options& options() const { return options_; }

  /// Device bytes that hold nothing but NaN.
  Result<DeviceBytes> poisoned(std::size_t bytes) const;

  /// Copies output and lse back over those of the case that was uploaded, gaps included. internal_error if a guard was
  /// overwritten.
  Status download(const Case& c) const;

 private:
  Status place(Tensor& t);
  Status fetch(const Tensor& from, const Tensor& to) const;

  const device::Runtime* runtime_ = nullptr;
  Memory memory_ = Memory::cpu;
  Batch batch_;
  KVCache cache_;
  Options options_;
  std::vector<DeviceBytes> bytes_;
};

}  // namespace quire::cases
