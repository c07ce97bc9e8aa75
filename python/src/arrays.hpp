// SPDX-License-Identifier: Apache-2.0
// Arrays of any library in, views out: nothing is copied, and a view keeps its array alive.
//
// NumPy (ml_dtypes included) and torch tensors are read through their own attributes, because DLPack refuses some of their
// types; everything else comes through DLPack, the NumPy array interface or the buffer protocol. Arrays on a GPU are viewed
// in GPU memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <vector>

#include "quire/tensor.hpp"

namespace quire_python {

namespace nb = nanobind;

/// A view and what keeps its memory alive. Default-constructed: absent.
struct ArrayRef {
  nb::object object;                 ///< object that the caller passed
  nb::object owner;                  ///< keeps the memory alive ...
  nb::ndarray<nb::ro> dlpack;        ///< ... or this does, for arrays that came through DLPack
  quire::Tensor view;                ///< strides in elements, whatever they are
  bool writable = false;             ///< false for read-only NumPy arrays, JAX arrays, ...
  const void* torch_data = nullptr;  ///< set for torch tensors, whose storage can be resized behind a view
  int ordinal = -1;                  ///< ordinal of the GPU that holds the array; -1 for host memory

  explicit operator bool() const { return view.present(); }
};

enum class Access { read, write };

/// Purpose of an array: gives the dtypes to name in an error if the array's own dtype is none that Quire knows.
enum class Role { any, rows, cache, index, f32, flags };

/// Views `object` (None = absent) as the tensor called `name`.
///
/// `dtype` (may be empty) names the element type of arrays that hold raw bits: uint8 for fp8, uint16 for bf16 and f16. `dtype`
/// must agree with typed arrays. Raises ArgumentError (type, dtype, byte order, rank, read-only with Access::write) or
/// UnsupportedError (memory that this build does not compute in); both name the tensor.
ArrayRef import_array(nb::handle object, const std::string& name, Access access = Access::read, const std::string& dtype = {},
                      Role role = Role::any);

/// Views an index tensor. Lists and tuples of integers are copied into an int64 array on the device of `like`.
ArrayRef import_index(nb::handle object, const std::string& name, nb::handle like = nb::none());

/// f32 numbers, as scales are. Lists and tuples of numbers are copied into an f32 array where `like` is.
ArrayRef import_floats(nb::handle object, const std::string& name, nb::handle like = nb::none());

/// Flags, one byte each: bool or uint8. Lists and tuples of True and False are copied into an array where `like` is.
ArrayRef import_flags(nb::handle object, const std::string& name, nb::handle like);

/// The values of a 1-D index tensor in host memory, lists included; empty if None.
std::vector<std::int64_t> index_list(nb::handle values, const char* name);

/// Raises ArgumentError, naming `name`, if both arrays are on GPUs and not on the same one.
void check_same_gpu(const ArrayRef& first, const char* first_name, const ArrayRef& array, const char* name);

/// Raises ArgumentError if a torch tensor's storage moved since it was imported (resize_, set_).
void check_still_there(const ArrayRef& array, const char* name);

/// The array as NumPy: numbers as they are, 16-bit floats as uint16, fp8 as uint8; read-only if the source is. UnsupportedError
/// if it is on a GPU.
nb::object to_numpy_bits(const ArrayRef& array);

/// A NumPy array over `view`, kept alive by `owner`; None if absent. bf16 and fp8 are ml_dtypes types if that package is
/// installed, raw uint16 / uint8 otherwise.
nb::object to_numpy(const quire::Tensor& view, nb::handle owner);

/// A function of quire/_arrays.py, which knows the array libraries.
nb::object arrays_function(const char* name);

}  // namespace quire_python
