// SPDX-License-Identifier: Apache-2.0
// Where an output is wrong: laws over every row, and the fp64 reference over all rows or, in a large batch, over chosen ones.
#pragma once

#include <cstdint>
#include <vector>

#include "diagnose/laws.h"
#include "quire/diagnose.hpp"

namespace quire::diagnose_detail {

/// One (row, head) that was compared with the reference.
struct Compared {
  std::int64_t token = 0, head = 0;
  std::int64_t reference_row = 0;  ///< row of Localisation::reference
  bool wrong = false;
  bool wrong_lse = false;
  std::int64_t wrong_dims = 0, nonfinite = 0;
  std::int64_t first_dim = 0, last_dim = 0;  ///< of the wrong ones
  double largest_error = 0;                  ///< |observed - expected|, finite ones
  double worst_ratio = 0;                    ///< error / tolerance, finite ones
};

struct Localisation {
  Laws laws;
  std::vector<std::int64_t> tokens;           ///< compared rows, ascending; row i of `reference`
  Reference reference;                        ///< its profile is what the tolerance pays for
  bool profile_found = false;                 ///< nobody named that profile: the data did
  double least_factor_in_f32 = 0;             ///< if found: least_factor() of the plain reference
  std::vector<Compared> rows;                 ///< tokens x heads
  std::vector<std::uint64_t> wrong_dim_bits;  ///< of every compared row in turn: a bit per dim, in whole words
  bool complete = false;                      ///< every row was compared
  bool wrong_dim(std::size_t compared_row, std::int64_t dim) const;
  std::vector<std::int64_t> wrong_tokens() const;
  bool any_wrong() const;
};

/// `seconds` bounds the time spent on the reference, as long as something wrong is found within it; an output that looks right
/// everywhere is compared completely.
Result<Localisation> localise(const faults_detail::Facts& facts, const Observed& observed, const DiagnoseOptions& options);

/// Compares these tokens, ascending, under a profile. Laws are left out.
Result<Localisation> compare_tokens(const faults_detail::Facts& facts, const Observed& observed, std::vector<std::int64_t> tokens,
                                    const NumericsProfile& profile);

}  // namespace quire::diagnose_detail
