// SPDX-License-Identifier: Apache-2.0
// Localisation of wrong cells: laws over every row, and the fp64 reference over all rows or, in a large batch, over chosen rows.
#pragma once

#include <cstdint>
#include <vector>

#include "diagnose/laws.h"
#include "diagnose/time_limit.h"
#include "quire/tools/diagnose.hpp"

namespace quire::diagnose_detail {

/// Comparison of an output with what the buffer held before the call. Unknown: nobody knows what it held, or the kernel may have
/// computed the same.
enum class Before : std::uint8_t { unknown, same, other };

/// Contents of an output, without a hypothesis: numbers, its bytes from before the call, zeros alone, no finite number.
enum class CellBytes : std::uint8_t { numbers, kept, zeros, nonfinite };

/// A (row, head) that was compared with the reference.
struct Compared {
  std::int64_t token = 0, head = 0;
  std::int64_t reference_row = 0;  ///< row of Localisation::reference
  bool wrong = false;
  bool wrong_lse = false;
  bool unmoved = false;             ///< right, and the cause that was found changes it by less than its tolerance (unmoved.h)
  Before before = Before::unknown;  ///< of a wrong cell; classify() finds it
  CellBytes bytes = CellBytes::numbers;  ///< of a wrong output; classify() finds it
  std::int64_t wrong_dims = 0, nonfinite = 0;
  std::int64_t first_dim = 0, last_dim = 0;  ///< range of the wrong dims
  double largest_error = 0;                  ///< largest finite |observed - expected|
  double worst_ratio = 0;                    ///< largest finite error / tolerance
};

struct Localisation {
  Laws laws;
  std::vector<std::int64_t> tokens;           ///< compared rows, ascending; row i of `reference`
  Reference reference;                        ///< reference whose profile the tolerance allows
  bool profile_found = false;                 ///< the profile was found in the data, not given
  double least_factor_in_f32 = 0;             ///< least_factor() of the plain reference, if a profile was found
  std::vector<Compared> rows;                 ///< tokens x heads
  std::vector<std::uint64_t> wrong_dim_bits;  ///< a bit per dim, in whole words, for each of `rows` in turn
  bool complete = false;                      ///< every row was compared
  bool profiles_tried = true;                 ///< false: time was up before all profiles were tried
  bool wrong_dim(std::size_t compared_row, std::int64_t dim) const;
  std::vector<std::int64_t> wrong_tokens() const;
  bool any_wrong() const;
};

/// `reference_seconds` bounds the time spent on the reference, as long as something wrong is found within it; an output that
/// looks right everywhere is compared completely.
Result<Localisation> localise(const Facts& facts, const Observed& observed, const DiagnoseOptions& options,
                              const TimeLimit& limit = TimeLimit(-1));

/// Compares these tokens, ascending, under a profile. Laws are left out.
Result<Localisation> compare_tokens(const Facts& facts, const Observed& observed, std::vector<std::int64_t> tokens,
                                    const NumericsProfile& profile);

}  // namespace quire::diagnose_detail
