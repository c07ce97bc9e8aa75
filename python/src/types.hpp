// SPDX-License-Identifier: Apache-2.0
// The Python side of Batch, KVCache and Options: the C++ views plus references to the arrays behind them.
//
// The objects are immutable and address-stable: nanobind constructs them in place, and views may point into them.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "fields.hpp"
#include "quire/quire.hpp"
#include "quire/tools/tools.hpp"

namespace quire_python {

/// "left" or "zero"; raises for other names.
quire::Padding padding_named(const std::string& text);

/// A batch for one call: views with an output, and what keeps that output alive.
struct BatchForCall {
  quire::Batch views;
  ArrayRef output;
};

/// A tensor whose memory `owner` keeps alive.
ArrayRef owned_view(const quire::Tensor& view, nb::handle owner);

/// A part of a call, and the arrays behind its views.
template <template <typename> class Part, typename Views, typename Arrays>
class Held {
 public:
  Held() = default;
  Held(const Held&) = delete;
  /// Views that `owner` keeps alive (a capture).
  Held(const Views& views, nb::handle owner) : views_(views) {
    const auto own = [&](const auto&, const quire::Tensor& view, ArrayRef& array) { array = owned_view(view, owner); };
    quire::batch::for_each_tensor(own, Part<const Views>{views_}, Part<Arrays>{arrays_});
  }

  /// The views; raises if a torch storage moved meanwhile.
  const Views& checked() const {
    const auto check = [](const auto& f, const ArrayRef& array) { check_still_there(array, f.member.data()); };
    quire::batch::for_each_tensor(check, Part<const Arrays>{arrays_});
    return views_;
  }
  const Views& views() const { return views_; }
  const Arrays& arrays() const { return arrays_; }

 protected:
  /// Sets the views: those of the arrays, and the choices that were given.
  void set(const Arguments& given) {
    set_views(Part<const Arrays>{arrays_}, Part<Views>{views_});
    read_choices(given, Part<Views>{views_});
  }
  Arrays arrays_;
  Numbers numbers_{};
  Views views_;
};

class PyCache : public Held<quire::batch::CachePart, quire::KVCache, CacheArrays> {
 public:
  using Held::Held;
  explicit PyCache(const Arguments& given);
  /// Returns checked() for a call that writes; raises if k or v is read-only.
  const quire::KVCache& checked_for_write() const;
  const ArrayRef& k() const { return arrays_.k; }
};

/// The output is absent if none was given.
class PyBatch : public Held<quire::batch::BatchPart, quire::Batch, BatchArrays> {
 public:
  using Held::Held;
  explicit PyBatch(const Arguments& given);

  /// Batch for calls that write no output. The rules require an output, so a batch without one gets memory for this call alone.
  BatchForCall to_read(const PyCache& cache) const;
  /// Batch for calls that write, with the caller's output or a new array. Two results never share memory. `stream`: the caller's
  /// stream, on which a GPU will write the output.
  BatchForCall to_write(const PyCache& cache, nb::handle stream = nb::none()) const;
  /// The views with a new, uninitialised output: like the query, with the head_dim of the cache's V.
  BatchForCall with_new_output(const PyCache& cache, nb::handle stream = nb::none()) const;
  bool output_given() const { return output_given_; }
  /// The ticket of the last such call with this batch; settle() forgets it.
  std::uint64_t defer(std::uint64_t ticket) const { return deferred_ = ticket; }
  void settle() const;

 private:
  mutable std::uint64_t deferred_ = 0;
  bool output_given_ = false;  ///< false for a case, too: its output is for kernels that write in place
};

class PyOptions : public Held<quire::batch::OptionsPart, quire::Options, OptionsArrays> {
 public:
  using Held::Held;
  explicit PyOptions(const Arguments& given);
};

/// New, uninitialised memory like the query's, for rows with the head_dim of the cache's V.
nb::object new_rows(const ArrayRef& query, const quire::KVCache& cache, nb::handle stream);
/// A scale as an array: numbers, which lie in `storage`, become one where `beside` is.
ArrayRef import_scale(nb::handle scale, const char* name, const ArrayRef& beside, float& storage);
/// Imports the scales of blocks of 4-bit codes. Raw bytes get the type that the codes ask for.
ArrayRef import_block_scales(nb::handle scales, const char* name, quire::DType codes);
/// Refuses arrays of a cache that append() could not write.
void check_writable(const CacheArrays& cache);

/// The arrays of a call; null options mean defaults.
CallArrays arrays_of(const PyBatch& batch, const PyCache& cache, const PyOptions* options);
/// Raises ArgumentError if arrays lie on several GPUs.
void check_one_gpu(const CallArrays& arrays);

/// Options of a call; null options mean defaults.
const quire::Options& options_or_default(const PyOptions* options);

/// The array behind a reference as Python sees it: what the caller passed, or a NumPy view.
nb::object array_object(const ArrayRef& array);

/// NaN in every element of a new output in host memory.
void fill_with_nan(const BatchForCall& made);
/// Result of a call that wrote `written`: the caller's own array, or a new one in the library of the query.
nb::object result_of(const PyBatch& batch, const BatchForCall& written);

void bind_fields(nb::module_& m);
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
