// SPDX-License-Identifier: Apache-2.0
// The compared cells as columns: what each row's attributes are, and what evidence each cell gives for or against a rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "diagnose/pattern.h"

namespace quire::diagnose_detail {

/// Evidence in cells: a clear one counts 1.
struct Tally {
  double wrong = 0, right = 0;

  Tally& operator+=(const Tally& o) {
    wrong += o.wrong;
    right += o.right;
    return *this;
  }
  Tally operator-(const Tally& o) const { return {wrong - o.wrong, right - o.right}; }
};

using Mask = std::vector<std::uint8_t>;

/// Values of one attribute, or of its remainder, for every compared row: values[rank[row]], values ascending.
struct Column {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Attribute attribute = Attribute::request;
  std::int64_t modulus = 0;         ///< 0: the attribute itself; else values are 0 .. modulus - 1
  std::size_t multiple_in = kNone;  ///< an earlier column of the same attribute, whose modulus is a multiple
  bool of_request = false;          ///< one value per request: values[rank_of_request[rank of the request]]
  std::vector<std::uint32_t> rank, rank_of_request;
  std::vector<std::int64_t> values;
};

/// Physical pages by the request and the column of its table; rows read a range of columns.
struct PageColumns {
  std::vector<std::size_t> request, first, end;  ///< request and column range [first, end) of every compared row
  std::vector<std::vector<std::uint32_t>> page;  ///< [request][column]: index in ids
  std::vector<std::int64_t> ids;                 ///< ascending
};

struct Columns {
  Columns(const Facts& facts, const Localisation& where);

  const Facts& facts;
  std::size_t rows = 0, heads = 0;
  std::vector<Column> numbers;  ///< the first one is the request
  PageColumns pages;

  /// Evidence per value of every column.
  std::vector<std::vector<Tally>> by_value(const std::vector<Tally>& of_row) const;
  /// The rows for which a condition on the row holds.
  Mask rows_where(const Condition& condition) const;
  Mask heads_where(const Condition& condition) const;
  /// log2 of the number of values that a condition on this column chooses from. A number costs the same whatever attribute of the
  /// row, or of the request, it is of, so that their words alone order equal rules.
  double log_choices(const Column& column) const;
};

/// Evidence of every cell. Cells that a pattern explains are removed before the search for the next pattern.
class Cells {
 public:
  /// With a class, cells of other classes count as right ones.
  Cells(const Localisation& where, std::size_t heads, std::optional<CellBytes> bytes = std::nullopt);

  std::size_t rows() const { return rows_; }
  std::size_t heads() const { return heads_; }
  /// Sums over the cells in both masks: per row, per head, in all.
  std::vector<Tally> by_row(const Mask& in_rows, const Mask& in_heads) const;
  std::vector<Tally> by_head(const Mask& in_rows, const Mask& in_heads) const;
  Tally total(const Mask& in_rows, const Mask& in_heads) const;
  Tally total() const { return total(Mask(rows_, 1), Mask(heads_, 1)); }
  /// Rows with a wrong cell.
  std::size_t wrong_rows() const;
  void remove(const Mask& in_rows, const Mask& in_heads);

 private:
  std::size_t rows_, heads_;
  Mask wrong_, right_;  ///< evidence in quarters of a clear cell; bytes, because sums over them dominate the time
};

}  // namespace quire::diagnose_detail
