// SPDX-License-Identifier: Apache-2.0
// Writes index tensors, and gives memory of their own to those of cases that are made from others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>

#include "quire/tensor.hpp"
#include "semantics/dtype.h"

namespace quire::semantics {

/// Stores element `index` of an i32 or i64 array.
inline void store_index(void* data, DType dtype, std::int64_t index, std::int64_t value) {
  if (dtype == DType::i64) static_cast<std::int64_t*>(data)[index] = value;
  if (dtype == DType::i32) static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(value);
}

/// Memory of a Case. Throws std::bad_alloc where there is none.
template <class Owner>
std::byte* new_bytes(Owner& owner, std::size_t count) {
  std::byte* const data = owner.allocate(std::max<std::size_t>(count, 1));
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

/// The values as i32 or i64: [values], or with `columns` [values / columns, columns].
template <class Owner>
Tensor index_tensor(Owner& owner, DType dtype, std::span<const std::int64_t> values, std::int64_t columns = 0) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::byte* const data = new_bytes(owner, values.size() * static_cast<std::size_t>(itemsize(dtype)));
  for (std::int64_t i = 0; i < count; ++i) store_index(data, dtype, i, values[static_cast<std::size_t>(i)]);
  return columns == 0 ? Tensor::contiguous(data, dtype, count) : Tensor::contiguous(data, dtype, count / columns, columns);
}

}  // namespace quire::semantics
