// SPDX-License-Identifier: Apache-2.0
// Arguments of a constructor by name. A wrong call gets an error that names the argument and what was expected; nanobind's own
// lists types. (Functions and methods: quire/_messages.py.)
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "batch/fields.h"
#include "quire/batch.hpp"

namespace quire_python {

namespace nb = nanobind;

/// An argument that is given by name, and what a signature says of it: "typing.Any | None = None".
struct Argument {
  std::string name;
  std::string declared;
};

/// The arguments of a call. A signature lives as long as the process.
class Signature {
 public:
  static constexpr std::size_t kMost = 64;
  /// Fewer than kMost arguments. Those called `by_position` may be given by position, too, in this order.
  Signature(const char* call, std::initializer_list<std::string_view> by_position, std::vector<Argument> arguments);

  /// "def __init__(self, k: typing.Any, *, ...) -> None"
  std::string text(const char* function, const char* returned) const;
  /// The place of an argument; size() if there is none of that name.
  std::size_t find(std::string_view name) const;
  std::size_t find(nb::handle name) const;
  std::size_t size() const { return arguments_.size(); }
  /// The place of each tensor of a call (batch/fields.h).
  const std::array<std::size_t, quire::batch::kNumTensors>& tensors() const { return tensors_; }
  const char* call() const { return call_; }
  std::size_t positional() const { return positional_; }
  const std::vector<Argument>& arguments() const { return arguments_; }

 private:
  const char* call_;
  std::size_t positional_;
  std::vector<Argument> arguments_;
  std::vector<PyObject*> interned_;  ///< names that Python code spells are these objects
  std::array<std::size_t, quire::batch::kNumTensors> tensors_;
};

class Arguments {
 public:
  /// Binds a call. Raises ArgumentError for a name that the signature lacks, one given twice, and too many positions. `args` and
  /// `named` must outlive this.
  Arguments(const Signature& of, const nb::args& args, const nb::dict& named);
  Arguments(const Signature& of, const nb::dict& named);
  /// What a function of this package has put together, of any names.
  explicit Arguments(const nb::dict& named) : named_(&named) {}

  /// Returns an argument by name; None if it was not given.
  nb::object get(const char* name) const;
  /// Raises ArgumentError if it was not given.
  nb::object required(const char* name) const;
  std::optional<float> number(const char* name) const;
  std::optional<std::int64_t> integer(const char* name) const;
  bool flag(const char* name, bool otherwise) const;
  std::string text(const char* name, const char* otherwise) const;
  /// A Quire dtype name from that of Quire, NumPy or torch, or a dtype object of theirs; absent if None.
  std::optional<std::string> dtype(const char* name) const;
  /// The tensor of row `row` of the table, whatever its name; None if it was not given.
  nb::handle tensor(std::size_t row) const {
    const std::size_t at = of_->tensors()[row];
    return at < of_->size() && values_[at] != nullptr ? values_[at] : Py_None;
  }

 private:
  void add(const nb::dict& named);
  nb::handle at(const char* name) const {
    return of_ != nullptr ? values_[of_->find(std::string_view(name))] : PyDict_GetItemString(named_->ptr(), name);
  }
  [[noreturn]] void refuse_name(nb::handle name) const;

  const Signature* of_ = nullptr;
  const nb::dict* named_ = nullptr;
  PyObject* values_[Signature::kMost];  ///< set as far as the signature goes; null: not given
};

/// Python and NumPy numbers; neither truth values nor complex ones. An exported NumPy scalar's memory would be gone before it is
/// read.
bool is_number(nb::handle object);
/// Whether an object is a scalar of Python or NumPy, numbers included.
bool is_scalar(nb::handle object);
/// "2.5 (float)": a value for a message.
std::string shown(nb::handle object);
/// See Arguments::dtype().
std::optional<std::string> dtype_name(nb::handle dtype, const char* name);
/// "nhd", in any case of letters. Raises ArgumentError.
quire::CacheLayout layout_named(const std::string& text);

}  // namespace quire_python
