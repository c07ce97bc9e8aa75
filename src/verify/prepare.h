// SPDX-License-Identifier: Apache-2.0
// An entry with data and with what it is judged against: the fp64 reference of all rows, or of chosen rows where all of them
// would take too long.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "quire/status.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/verify.hpp"
#include "verify/matrix.h"

namespace quire::verify_detail {

struct Prepared {
  Entry entry;
  Case c;
  Reference expected;
  std::vector<std::int64_t> tokens;  ///< rows that `expected` holds, ascending; empty: all of them
  bool sparse = false;               ///< most memory of the case does not exist: it is too large to poison
};

/// visible pairs x query heads x head_dim up to which every row is compared; beyond, a sample of about this cost.
inline constexpr std::int64_t kReferenceBudget = 10'000'000'000;

/// Makes the data and computes the reference. unsupported if this machine has no room for it.
Result<Prepared> prepare(const Entry& entry, std::int64_t budget = kReferenceBudget);

/// Returns, for every query row of a case, whether its softmax weights are rounded to the type of the query.
using RoundedRows = std::function<std::vector<bool>(const Case&)>;

/// Returns the rounding that a target declares; null if it rounds no weights.
RoundedRows rounded_rows_of(const Target& target);

/// Judges these rows by the wider tolerance of allow_rounded_weights().
Result<Prepared> with_tolerance(Result<Prepared> prepared, const RoundedRows& rounded);

/// Computes the reference for data that the caller brings.
Result<Prepared> prepare_case(Entry entry, Case c, std::int64_t budget = kReferenceBudget);

/// Computes the reference of these rows of the data; of all if there are none.
Result<Prepared> prepare_rows(Entry entry, Case c, std::vector<std::int64_t> tokens);

/// Changes the values of a made case as the special says. False if there is no memory for it.
bool apply(Special special, Case& c);

}  // namespace quire::verify_detail
