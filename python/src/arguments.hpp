// SPDX-License-Identifier: Apache-2.0
// Arguments of a constructor by name. A wrong call gets an error that names the argument and what was expected; nanobind's own
// lists types. (Functions and methods: quire/_messages.py.)
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/batch.hpp"

namespace quire_python {

namespace nb = nanobind;

class Arguments {
 public:
  /// Binds a call to `names`, of which the first `positional` may be given by position. Raises ArgumentError for a name that is
  /// none of them, one given twice, and too many positions. `args` and `kwargs` must outlive this.
  Arguments(const char* call, std::initializer_list<std::string_view> names, std::size_t positional, const nb::args& args,
            const nb::kwargs& kwargs);

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

 private:
  std::size_t index_of(std::string_view name) const;  ///< the number of names if it is none
  [[noreturn]] void refuse_name(const std::string& name) const;

  const char* call_;
  std::vector<std::string_view> names_;
  std::vector<nb::handle> values_;
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
