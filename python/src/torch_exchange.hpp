// SPDX-License-Identifier: Apache-2.0
// Tensors and streams of torch through C functions: the exchange API of DLPack 1.3 (dlpack.h, DLPackExchangeAPI), which torch has
// since 2.10. One C call reads what ten attributes say, each of which costs a tenth of a microsecond.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>

#include "quire/tensor.hpp"

namespace quire_python {

namespace nb = nanobind;

/// What torch says of a tensor of exactly the class torch.Tensor. Shape and strides belong to the tensor. Empty, and no Python
/// error is set, if torch is older, the class is another, or DLPack cannot describe the tensor.
std::optional<nb::dlpack::dltensor> read_torch(nb::handle tensor);

/// torch's current stream of a GPU. Empty, and no Python error is set, if torch is older.
std::optional<void*> current_torch_stream(quire::Memory memory, int ordinal);

}  // namespace quire_python
