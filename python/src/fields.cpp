// SPDX-License-Identifier: Apache-2.0
// See fields.hpp.
#include "fields.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "types.hpp"

namespace quire_python {
namespace {

using quire::batch::BatchPart;
using quire::batch::CachePart;
using quire::batch::for_each_tensor;
using quire::batch::Kind;
using quire::batch::OptionsPart;
using quire::batch::Presence;
using quire::batch::TensorField;

/// How a signature declares a choice.
std::string declared(const std::optional<float>& /*choice*/) { return "float | None = None"; }
std::string declared(const std::optional<std::int64_t>& /*choice*/) { return "int | None = None"; }
std::string declared(bool otherwise) { return otherwise ? "bool = True" : "bool = False"; }
std::string declared(quire::CacheLayout /*choice*/) {
  return "typing.Literal['nhd', 'hnd', 'packed', 'NHD', 'HND', 'PACKED'] = 'nhd'";
}
std::string declared(quire::Padding /*choice*/) { return "typing.Literal['left', 'zero'] | None = None"; }

/// How a signature declares a tensor. Index tensors, scales and small vectors may be lists and numbers; the other arrays are
/// viewed, whatever library they are of.
std::string declared(const TensorField& f) {
  const bool listed = f.kind == Kind::index || f.kind == Kind::flags || f.kind == Kind::scale ||
                      (f.kind == Kind::floats && access_of(f) == Access::read);
  return std::string(listed ? "numpy.typing.ArrayLike" : "typing.Any") +
         (f.presence == Presence::required ? "" : " | None = None");
}

/// A row of the table, for Python.
struct Row {
  std::string owner;
  Argument argument;
  std::string kind;
  const TensorField* tensor;
};

const std::vector<Row>& rows() {
  static const auto& all = *new std::vector<Row>([] {
    std::vector<Row> made;
    const auto add_tensor = [&](const char* owner, const char* kind) {
      const TensorField& f = quire::batch::kTensors[made.size()];
      made.push_back({owner, {std::string(f.member), declared(f)}, kind, &f});
    };
#define QUIRE_BATCH_TENSOR(member, name, stored_as, kind, ...) add_tensor("Batch", #kind);
#define QUIRE_CACHE_TENSOR(member, name, stored_as, kind, ...) add_tensor("KVCache", #kind);
#define QUIRE_OPTIONS_TENSOR(member, name, stored_as, kind, ...) add_tensor("Options", #kind);
#define QUIRE_BATCH_CHOICE(member) made.push_back({"Batch", {#member, declared(quire::Batch().member)}, "choice", nullptr});
#define QUIRE_CACHE_CHOICE(member) made.push_back({"KVCache", {#member, declared(quire::KVCache().member)}, "choice", nullptr});
#define QUIRE_OPTIONS_CHOICE(member) made.push_back({"Options", {#member, declared(quire::Options().member)}, "choice", nullptr});
#include "batch/fields.inc"
    return made;
  }());
  return all;
}

/// The name of a row among all others: a tensor with the name of an option, which speaks of all requests, is *_per_request.
std::string argument_of(const Row& row) {
  const auto same = [&](const Row& other) { return other.argument.name == row.argument.name; };
  const bool twice = std::count_if(rows().begin(), rows().end(), same) > 1;
  return row.argument.name + (twice && row.tensor != nullptr ? "_per_request" : "");
}

nb::list fields() {
  nb::list all;
  for (const Row& r : rows())
    all.append(nb::make_tuple(r.owner, r.argument.name, argument_of(r), r.argument.declared, r.kind,
                              r.tensor != nullptr && access_of(*r.tensor) == Access::write,
                              r.tensor != nullptr && r.tensor->of_step()));
  return all;
}

}  // namespace

Access access_of(const TensorField& field) {
  return field.access == quire::batch::Access::written ? Access::write : Access::read;
}

Role role_of(Kind kind) {
  switch (kind) {
    case Kind::rows: return Role::rows;
    case Kind::cache: return Role::cache;
    case Kind::floats:
    case Kind::scale: return Role::f32;
    case Kind::index: return Role::index;
    case Kind::flags:
    case Kind::bits: return Role::flags;
    case Kind::block_scale: return Role::any;
  }
  return Role::any;
}

BatchArrays import_batch(const ForBatch<nb::handle>& given, const std::string& dtype, Numbers& numbers) {
  BatchArrays arrays;
  float* number = numbers.data();
  const auto import = [&](const TensorField& f, nb::handle from, ArrayRef& to) {
    if (from.is_none()) return;
    const char* const name = f.member.data();
    switch (f.kind) {
      case Kind::index: to = import_index(from, name, given.query); break;
      case Kind::flags: to = import_flags(from, name, given.query); break;
      case Kind::scale: to = import_scale(from, name, arrays.query, *number++); break;
      default: to = import_array(from, name, access_of(f), f.kind == Kind::rows ? dtype : "", role_of(f.kind));
    }
  };
  for_each_tensor(import, BatchPart{given}, BatchPart{arrays});
  return arrays;
}

CacheArrays import_cache(const ForCache<nb::handle>& given, const std::string& dtype, const std::string& v_dtype,
                         Numbers& numbers) {
  CacheArrays arrays;
  float* number = numbers.data();
  const auto import = [&](const TensorField& f, nb::handle from, ArrayRef& to) {
    if (from.is_none()) return;
    const char* const name = f.member.data();
    const bool of_v = f.member.front() == 'v';  // rows of KVCache come in pairs, for K and for V
    switch (f.kind) {
      case Kind::scale: to = import_scale(from, name, arrays.k, *number++); break;
      case Kind::block_scale: to = import_block_scales(from, name, (of_v ? arrays.v : arrays.k).view.dtype); break;
      default: to = import_array(from, name, access_of(f), of_v ? v_dtype : dtype, role_of(f.kind));
    }
  };
  for_each_tensor(import, CachePart{given}, CachePart{arrays});
  return arrays;
}

OptionsArrays import_options(const ForOptions<nb::handle>& given) {
  OptionsArrays arrays;
  const auto import = [&](const TensorField& f, nb::handle from, ArrayRef& to) { to = import_floats(from, f.member.data()); };
  for_each_tensor(import, OptionsPart{given}, OptionsPart{arrays});
  return arrays;
}

ForCall<nb::handle> tensors_given(const Arguments& given) {
  ForCall<nb::handle> tensors;
  std::size_t row = 0;
  for_each_tensor([&](const TensorField&, nb::handle& to) { to = given.tensor(row++); }, tensors);
  return tensors;
}

void read_choice(const Arguments& given, const char* name, std::optional<float>& to) { to = given.number(name); }
void read_choice(const Arguments& given, const char* name, std::optional<std::int64_t>& to) { to = given.integer(name); }
void read_choice(const Arguments& given, const char* name, bool& to) { to = given.flag(name, to); }
void read_choice(const Arguments& given, const char* name, quire::CacheLayout& to) { to = layout_named(given.text(name, "nhd")); }
void read_choice(const Arguments& given, const char* name, quire::Padding& to) {
  if (!given.get(name).is_none()) to = padding_named(given.text(name, ""));
}

std::vector<Argument> arguments_of(const char* owner, std::vector<Argument> more) {
  std::vector<Argument> all;
  for (const Row& r : rows())
    if (r.owner == owner) all.push_back(r.argument);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<Argument> arguments_of_call(std::vector<Argument> more) {
  // Choices come first: they are looked up by name in each call, and tensors by their rows.
  for (auto r = rows().rbegin(); r != rows().rend(); ++r) more.push_back({argument_of(*r), r->argument.declared});
  return more;
}

std::vector<Argument> arguments_of_layer(std::vector<Argument> more) {
  for (const TensorField& f : quire::batch::kTensors)
    if (!f.of_step()) more.push_back({std::string(f.member), "typing.Any | None = None"});
  return more;
}

void bind_fields(nb::module_& m) {
  m.def("fields", &fields, nb::sig("def fields() -> list[tuple[str, str, str, str, str, bool, bool]]"),
        "The table of a call's tensors and choices: (owner, name, argument of attend_arrays(), its declaration, kind, whether "
        "the call "
        "writes it, whether the layers of a step share it).");
}

}  // namespace quire_python
