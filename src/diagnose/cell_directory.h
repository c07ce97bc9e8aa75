// SPDX-License-Identifier: Apache-2.0
// The compared cells by their right answers: which cell's answer another cell holds. A cell is looked up by the projection of its
// output on one random direction.
#pragma once

#include <vector>

#include "diagnose/localise.h"
#include "diagnose/observed.h"

namespace quire::diagnose_detail {

class CellDirectory {
 public:
  CellDirectory(const Facts& facts, const Observed& observed, const Localisation& where);

  /// The cell whose expected output this one holds; nullptr if none. Cells of the same row come first, then of the same head.
  const Compared* holder(const Compared& cell) const;

 private:
  struct Entry {
    double projection;
    const Compared* cell;
  };
  double expected(const Compared& cell, std::size_t d) const;
  double observed(const Compared& cell, std::size_t d) const;
  bool same(const Compared& cell, const Compared& other) const;

  const Facts& facts_;
  const Observed& observed_;
  const Localisation& where_;
  std::vector<double> direction_;
  std::vector<Entry> entries_;
};

}  // namespace quire::diagnose_detail
