// SPDX-License-Identifier: Apache-2.0
// Candidates of a census: slots of one page, rows of this step, or the sink, that a row may have read together; and the equations
// that each of them enters. K and V of a candidate lie in one slot, or one of the two stays where it belongs.
#pragma once

#include <cstdint>
#include <vector>

#include "diagnose/fault_model.h"
#include "diagnose/localise.h"
#include "diagnose/null_vector.h"
#include "diagnose/observed.h"

namespace quire::diagnose_detail {

struct CensusUnit {
  enum class Kind { cached, fresh, sink, every_page } kind = Kind::cached;
  std::int64_t from = 0;              ///< page, or row of key and value at offset 0; every_page: slot, read for `offsets`
  std::vector<std::int64_t> offsets;  ///< slots of the page, or rows counted from `from`; empty for the sink
  std::int64_t position = 0;          ///< position of offset 0, which biases of scores use; every_page: end of its keys
  int right = 0;                      ///< how often the right computation reads the unit

  bool same_keys(const CensusUnit& other) const { return kind == other.kind && from == other.from && offsets == other.offsets; }
};

/// The equations of one row with the columns of all candidates.
struct CensusSystem : NullSystem {
  std::size_t heads = 0;
  std::vector<double> weights;       ///< [candidate][head] its sum of weights, as a share of the head's
  std::vector<std::size_t> head_of;  ///< [equation]

  /// Largest |predicted - observed| in tolerances, if candidates were read as often as `counts` says; infinite if none was.
  double worst(const std::vector<double>& counts) const;
  /// Length of predicted - observed in tolerances.
  double left(const std::vector<double>& counts) const;
  /// Makes weights shares of the sums that `counts` gives. Returns false, and does nothing, if they nearly are.
  bool rescale(const std::vector<double>& counts);

 private:
  std::vector<double> sums(const std::vector<double>& counts) const;    ///< of each head
  std::vector<double> errors(const std::vector<double>& counts) const;  ///< of each equation
};

/// One output row, with some of its heads. `moved` says what of a candidate lies where the candidate says; the other side is
/// that of the right key at the same position.
class CensusRow {
 public:
  CensusRow(const Facts& facts, const Observed& observed, const Localisation& where, const std::vector<const Compared*>& heads,
            Sides moved = {});

  /// The units that the right computation reads: the visible slots of each page, this step's rows in blocks of page_size, the
  /// sink.
  std::vector<CensusUnit> right_units() const;
  /// For a head and dim, a column holds the unit's weighted values less observed output times its weights, in tolerances.
  CensusSystem system(const std::vector<CensusUnit>& units) const;

  const Facts& facts() const { return f_; }
  const Row& row() const { return heads_.front().row; }
  Sides moved() const { return moved_; }
  /// Whether a slot counts otherwise at another position.
  bool places_matter() const { return f_.options.alibi_slopes.present() || !moved_.both(); }
  /// The visible positions of a unit with the slots that it has for them.
  std::vector<std::pair<std::int64_t, Place>> keys_of(const CensusUnit& unit) const;
  std::size_t heads() const { return heads_.size(); }
  std::size_t equations() const { return equations_.size(); }
  /// Multiply-adds of one key, for all heads.
  double work_per_key() const { return static_cast<double>(heads_.size()) * static_cast<double>(f_.head_dim + f_.v_head_dim); }

 private:
  struct Head {
    Row row;
    std::int64_t kv_head = 0;
    std::vector<double> query;
    double max = 0;  ///< subtracted from scores: the right lse, by which weights are shares
  };
  struct Equation {
    std::size_t head, dim;
    double observed, inverse;  ///< inverse: 1 / tolerance
  };

  void add_head(const Compared& cell, const Observed& observed, const Localisation& where);
  void fill(Model& model, const CensusUnit& unit, std::span<double> column, std::span<double> weights) const;

  const Facts& f_;
  Sides moved_;
  Model truth_;
  std::vector<Key> keys_;  ///< visible ones
  std::vector<Head> heads_;
  std::vector<Equation> equations_;
};

}  // namespace quire::diagnose_detail
