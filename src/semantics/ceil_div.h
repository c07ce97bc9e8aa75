// SPDX-License-Identifier: Apache-2.0
// Quotients and multiples, rounded up.
#pragma once

#include <type_traits>

#include "semantics/qualifiers.h"

namespace quire::semantics {

/// a / b rounded up, for b > 0. The sum a + b - 1 is not formed: it could overflow.
template <class Int>
constexpr QUIRE_HD Int ceil_div(Int a, std::type_identity_t<Int> b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

/// The smallest multiple of `multiple` that is n or more.
template <class Int>
constexpr QUIRE_HD Int round_up(Int n, std::type_identity_t<Int> multiple) {
  return ceil_div(n, multiple) * multiple;
}

}  // namespace quire::semantics
