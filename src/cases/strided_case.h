// SPDX-License-Identifier: Apache-2.0
// A case whose inputs are views, as tensors of engines are: the same elements at other addresses, with steps, gaps, other orders
// of dimensions, and other tensors between them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "batch/fields.h"
#include "quire/tools/capture.hpp"
#include "quire/tools/verify.hpp"

namespace quire::cases {

/// Calls visit(name in messages, tensor) for every tensor that a call reads, absent ones too.
template <typename Case, typename Visit>
void for_each_input(Case& c, Visit&& visit) {
  const auto if_read = [&](const batch::TensorField& field, auto& tensor) {
    if (field.access == batch::Access::read) visit(field.name, tensor);
  };
  batch::for_each_tensor(if_read, c);
}

/// An arrangement of memory. Consecutive turns give other arrangements.
struct Views {
  Strides strides = Strides::rows;  ///< rows: as engines have; any: as no engine has; none: the case stays as it is
  std::uint64_t turn = 0;
  PoisonKind between = PoisonKind::nan;  ///< content of the memory between elements
};

/// Whether a tensor, by its name in for_each_input(), becomes a view.
using Chosen = std::function<bool(std::string_view name)>;

/// Returns the case with every chosen input as a view of new memory; null: all inputs. Fresh rows lie in the rows of the query,
/// and V in the pages or the rows of K, if both are chosen and of one type. A contiguous read from the address of a view stays
/// within its memory. Throws std::bad_alloc.
Case with_views(const Case& c, const Views& views, const Chosen& chosen = nullptr);

}  // namespace quire::cases
