// SPDX-License-Identifier: Apache-2.0
// The Python side of Batch, KVCache and Options: the C++ views plus references to the arrays behind them.
//
// The objects are immutable and address-stable: nanobind constructs them in place, and views may point into them.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <string>

#include "arguments.hpp"
#include "arrays.hpp"
#include "batch/fields.h"
#include "quire/quire.hpp"

namespace quire_python {

/// "left" or "zero"; raises for other names.
quire::Padding padding_named(const std::string& text);

/// A T for each tensor of a call. T is an array, or a handle of what the caller gave.
template <typename T>
struct ForBatch {
#define QUIRE_BATCH_TENSOR(member, ...) T member;
#include "batch/fields.inc"
};
template <typename T>
struct ForCache {
#define QUIRE_CACHE_TENSOR(member, ...) T member;
#include "batch/fields.inc"
};
template <typename T>
struct ForOptions {
#define QUIRE_OPTIONS_TENSOR(member, ...) T member;
#include "batch/fields.inc"
};
template <typename T>
struct ForCall {
  ForBatch<T> batch;
  ForCache<T> cache;
  ForOptions<T> options;
};
using BatchArrays = ForBatch<ArrayRef>;
using CacheArrays = ForCache<ArrayRef>;
using OptionsArrays = ForOptions<ArrayRef>;
using CallArrays = ForCall<ArrayRef>;

/// Sets each tensor of `views` to the view of the array in `arrays` that has its name. Both are parts of a call.
template <typename Arrays, typename Views>
void set_views(const Arrays& arrays, const Views& views) {
  quire::batch::for_each_tensor([](const auto&, const ArrayRef& array, quire::Tensor& view) { view = array.view; }, arrays,
                                views);
}

/// A batch for one call: views with an output, and what keeps that output alive.
struct BatchForCall {
  quire::Batch views;
  ArrayRef output;
};

class PyCache;

class PyBatch {
 public:
  explicit PyBatch(const Arguments& given);
  /// Views that `owner` keeps alive (a capture).
  PyBatch(const quire::Batch& batch, nb::handle owner);
  PyBatch(const PyBatch&) = delete;

  /// The views; raises if a torch storage moved meanwhile. The output is absent if none was given.
  const quire::Batch& checked() const;
  /// Batch for calls that write no output. The rules require an output, so a batch without one gets memory for this call alone.
  BatchForCall to_read(const PyCache& cache) const;
  /// Batch for calls that write, with the caller's output or a new array. Two results never share memory. `stream`: the caller's
  /// stream, on which a GPU will write the output.
  BatchForCall to_write(const PyCache& cache, nb::handle stream = nb::none()) const;
  /// The views with a new, uninitialised output: like the query, with the head_dim of the cache's V.
  BatchForCall with_new_output(const PyCache& cache, nb::handle stream = nb::none()) const;
  bool output_given() const { return output_given_; }
  const quire::Batch& views() const { return views_; }
  const BatchArrays& arrays() const { return arrays_; }
  /// The ticket of the last such call with this batch; settle() forgets it.
  std::uint64_t defer(std::uint64_t ticket) const { return deferred_ = ticket; }
  void settle() const;

 private:
  mutable std::uint64_t deferred_ = 0;
  BatchArrays arrays_;
  std::array<float, 2> scalars_{};  ///< scales given as Python numbers
  bool output_given_ = false;       ///< false for a case, too: its output is for kernels that write in place
  quire::Batch views_;
};

class PyCache {
 public:
  explicit PyCache(const Arguments& given);
  PyCache(const quire::KVCache& cache, nb::handle owner);
  PyCache(const PyCache&) = delete;

  const quire::KVCache& checked() const;
  /// Returns checked() for a call that writes; raises if k or v is read-only.
  const quire::KVCache& checked_for_write() const;
  const quire::KVCache& views() const { return views_; }
  const CacheArrays& arrays() const { return arrays_; }
  const ArrayRef& k() const { return arrays_.k; }

 private:
  CacheArrays arrays_;
  std::array<float, 2> scalars_{};  ///< scales given as Python numbers
  quire::KVCache views_;
};

class PyOptions {
 public:
  PyOptions() = default;
  explicit PyOptions(const Arguments& given);
  PyOptions(const quire::Options& options, nb::handle owner);
  PyOptions(const PyOptions&) = delete;

  const quire::Options& checked() const;
  const quire::Options& views() const { return views_; }
  const OptionsArrays& arrays() const { return arrays_; }

 private:
  OptionsArrays arrays_;
  quire::Options views_;
};

/// New, uninitialised memory like the query's, for rows with the head_dim of the cache's V.
nb::object new_rows(const ArrayRef& query, const quire::KVCache& cache, nb::handle stream);
/// A scale as an array: numbers, which lie in `storage`, become one where `beside` is.
ArrayRef import_scale(nb::handle scale, const char* name, const ArrayRef& beside, float& storage);
/// Imports the scales of blocks of 4-bit codes. Raw bytes get the type that the codes ask for.
ArrayRef import_block_scales(nb::handle scales, const char* name, quire::DType codes);
/// Refuses scales of tokens that append() could not write.
void check_scale_writable(const ArrayRef& scale, const char* name);

/// The arrays of a call; null options mean defaults.
CallArrays arrays_of(const PyBatch& batch, const PyCache& cache, const PyOptions* options);
/// Raises ArgumentError if arrays lie on several GPUs.
void check_one_gpu(const CallArrays& arrays);

/// Options of a call; null options mean defaults.
const quire::Options& options_or_default(const PyOptions* options);

/// A tensor whose memory `owner` keeps alive.
ArrayRef owned_view(const quire::Tensor& view, nb::handle owner);
/// The array behind a reference as Python sees it: what the caller passed, or a NumPy view.
nb::object array_object(const ArrayRef& array);

/// NaN in every element of a new output in host memory.
void fill_with_nan(const BatchForCall& made);
/// Result of a call that wrote `written`: the caller's own array, or a new one in the library of the query.
nb::object result_of(const PyBatch& batch, const BatchForCall& written);

void bind_types(nb::module_& m);
void bind_contract(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_bound(nb::module_& m);
void bind_shards(nb::module_& m);
void bind_cascade(nb::module_& m);
void bind_sparse(nb::module_& m);
void bind_faults(nb::module_& m);
void bind_diagnose(nb::module_& m);
void bind_caches(nb::module_& m);
void bind_verify(nb::module_& m);
void bind_report(nb::module_& m);
void bind_capture(nb::module_& m);

}  // namespace quire_python
