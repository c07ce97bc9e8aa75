// SPDX-License-Identifier: Apache-2.0
// Reads and writes index tensors, and gives memory of their own to those of cases that are made from others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <vector>

#include "quire/tensor.hpp"
#include "semantics/dtype.h"

namespace quire::semantics {

/// The value of an i32 or i64 tensor at an index along each of its axes, or along the first of them.
template <class... Indices>
std::int64_t index_at(const Tensor& t, Indices... at) {
  std::size_t axis = 0;
  std::int64_t element = 0;
  ((element += at * t.stride[axis++]), ...);
  return load_index(t.data, t.dtype, element);
}

/// The values of a tensor of one axis; none if it is absent.
inline std::vector<std::int64_t> indices_of(const Tensor& t) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; t.present() && i < t.shape[0]; ++i) values.push_back(index_at(t, i));
  return values;
}

/// Stores the element of an i32 or i64 tensor that lies `element` elements behind its first.
inline void store_index(const Tensor& t, std::int64_t element, std::int64_t value) {
  if (t.dtype == DType::i64) static_cast<std::int64_t*>(t.data)[element] = value;
  if (t.dtype == DType::i32) static_cast<std::int32_t*>(t.data)[element] = static_cast<std::int32_t>(value);
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
  const Tensor made =
      columns == 0 ? Tensor::contiguous(data, dtype, count) : Tensor::contiguous(data, dtype, count / columns, columns);
  for (std::int64_t i = 0; i < count; ++i) store_index(made, i, values[static_cast<std::size_t>(i)]);
  return made;
}

}  // namespace quire::semantics
