// SPDX-License-Identifier: Apache-2.0
// The table of a call's fields (batch/fields.inc) as Python meets it: arguments by name, arrays in, choices in.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "arrays.hpp"
#include "batch/fields.h"
#include "quire/batch.hpp"

namespace quire_python {

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

/// Memory for scales that were given as Python numbers.
using Numbers = std::array<float, std::count_if(std::begin(quire::batch::kTensors), std::end(quire::batch::kTensors),
                                                [](const auto& f) { return f.kind == quire::batch::Kind::scale; })>;

/// Sets each tensor of `views` to the view of the array in `arrays` that has its name. Both are parts of a call.
template <typename Arrays, typename Views>
void set_views(const Arrays& arrays, Views&& views) {
  quire::batch::for_each_tensor([](const auto&, const ArrayRef& array, quire::Tensor& view) { view = array.view; }, arrays,
                                views);
}

/// What an import of the tensor asks of an array.
Access access_of(const quire::batch::TensorField& field);
Role role_of(quire::batch::Kind kind);
BatchArrays import_batch(const ForBatch<nb::handle>& given, const std::string& dtype, Numbers& numbers);
CacheArrays import_cache(const ForCache<nb::handle>& given, const std::string& dtype, const std::string& v_dtype,
                         Numbers& numbers);
OptionsArrays import_options(const ForOptions<nb::handle>& given);

/// What was given for each tensor; None where nothing was, or where the call has no such argument.
ForCall<nb::handle> tensors_given(const Arguments& given);
void read_choice(const Arguments& given, const char* name, std::optional<float>& to);
void read_choice(const Arguments& given, const char* name, std::optional<std::int64_t>& to);
void read_choice(const Arguments& given, const char* name, bool& to);
void read_choice(const Arguments& given, const char* name, quire::CacheLayout& to);
void read_choice(const Arguments& given, const char* name, quire::Padding& to);
/// Sets the members of these parts of a call that are no tensors, as far as they were given.
template <typename Part>
void read_choices(const Arguments& given, Part&& part) {
  quire::batch::for_each_choice([&](std::string_view name, auto& to) { read_choice(given, name.data(), to); }, part);
}

/// Arguments that set the members of Batch, KVCache or Options, as their rows say, and `more`.
std::vector<Argument> arguments_of(const char* owner, std::vector<Argument> more = {});
/// Arguments of attend_arrays() and of BoundCall.__call__(): all rows, and the tensors that each layer of a step has of its own.
std::vector<Argument> arguments_of_call(std::vector<Argument> more);
std::vector<Argument> arguments_of_layer(std::vector<Argument> more);

/// Gives a class its constructor from `Arguments`. Returns the signature, which is kept.
template <typename T>
const Signature& def_init(nb::class_<T>& type, Signature signature) {
  const auto& kept = *new Signature(std::move(signature));
  type.def(
      "__init__", [&kept](T* self, const nb::args& args, const nb::kwargs& named) { new (self) T(Arguments(kept, args, named)); },
      nb::sig(kept.text("__init__", "None").c_str()));
  return kept;
}

}  // namespace quire_python
