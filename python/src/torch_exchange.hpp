// SPDX-License-Identifier: Apache-2.0
// Tensors and streams of torch through C functions: the exchange API of DLPack 1.3 (dlpack.h, DLPackExchangeAPI), which torch has
// since 2.10. One C call reads what ten attributes say, each of which costs a tenth of a microsecond.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <memory>
#include <optional>

#include "quire/tensor.hpp"

namespace quire_python {

namespace nb = nanobind;

/// Reads torch's DLPack description of a tensor of exactly the class torch.Tensor. Shape and strides belong to the tensor. Empty,
/// without a Python error, if torch is older, the class is another, or DLPack cannot describe the tensor.
std::optional<nb::dlpack::dltensor> read_torch(nb::handle tensor);

/// torch's current stream of a GPU. Empty, and no Python error is set, if torch is older.
std::optional<void*> current_torch_stream(quire::Memory memory, int ordinal);

/// Bytes of torch's allocator, as torch.empty() would give them on torch's current stream. Freed when this goes: who writes them
/// by then has enqueued it.
class TorchBytes {
 public:
  TorchBytes() = default;
  explicit TorchBytes(struct ManagedTensor* tensor) : tensor_(tensor) {}
  explicit operator bool() const { return tensor_ != nullptr; }
  std::byte* data() const;

 private:
  struct Release {
    void operator()(struct ManagedTensor* tensor) const;
  };
  std::unique_ptr<struct ManagedTensor, Release> tensor_;
};

/// Uninitialised. Empty, and no Python error is set, if torch is older or has no such memory.
TorchBytes new_torch_bytes(quire::Memory memory, int ordinal, std::size_t count);

}  // namespace quire_python
