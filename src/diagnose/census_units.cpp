// SPDX-License-Identifier: Apache-2.0
// Reads the K and V of candidates through the true model, wherever they lie.
#include "diagnose/census_units.h"

#include <algorithm>
#include <cmath>

#include "numerics/tolerance.h"
#include "semantics/ceil_div.h"
#include "threads/on_threads.h"

namespace quire::diagnose_detail {

std::vector<double> CensusSystem::sums(const std::vector<double>& counts) const {
  std::vector<double> sums(heads);
  for (std::size_t i = 0; i < candidates(); ++i)
    for (std::size_t h = 0; counts[i] != 0 && h < heads; ++h) sums[h] += counts[i] * weights[i * heads + h];
  return sums;
}

std::vector<double> CensusSystem::errors(const std::vector<double>& counts) const {
  const std::vector<double> of_head = sums(counts);
  std::vector<double> errors(equations);
  for (std::size_t i = 0; i < candidates(); ++i)
    for (std::size_t e = 0; counts[i] != 0 && e < equations; ++e) errors[e] += counts[i] * columns[i * equations + e];
  for (std::size_t e = 0; e < equations; ++e) errors[e] /= of_head[head_of[e]];
  return errors;
}

double CensusSystem::worst(const std::vector<double>& counts) const {
  double worst = 0;
  for (const double error : errors(counts)) worst = std::fabs(error) <= worst ? worst : std::fabs(error);
  return std::isnan(worst) ? std::numeric_limits<double>::infinity() : worst;
}

double CensusSystem::left(const std::vector<double>& counts) const { return length(errors(counts)); }

bool CensusSystem::rescale(const std::vector<double>& counts) {
  constexpr double kClose = 2;  // a measure this wrong weighs equations a little wrongly and finds the same counts
  const std::vector<double> of_head = sums(counts);
  const auto [least, most] = std::minmax_element(of_head.begin(), of_head.end());
  if (!(*least > 0) || *most <= kClose * *least) return false;
  for (std::size_t i = 0; i < candidates(); ++i) {
    mass[i] = 0;
    for (std::size_t e = 0; e < equations; ++e) columns[i * equations + e] /= of_head[head_of[e]];
    for (std::size_t h = 0; h < heads; ++h) mass[i] += (weights[i * heads + h] /= of_head[h]) / static_cast<double>(heads);
  }
  return true;
}

CensusRow::CensusRow(const Facts& facts, const Observed& observed, const Localisation& where,
                     const std::vector<const Compared*>& heads, Sides moved)
    : f_(facts), moved_(moved), truth_(facts) {
  truth_.keys(truth_.row(heads.front()->token, heads.front()->head), keys_);
  for (const Compared* cell : heads) add_head(*cell, observed, where);
}

void CensusRow::add_head(const Compared& cell, const Observed& observed, const Localisation& where) {
  Head head;
  head.row = truth_.row(cell.token, cell.head);
  head.kv_head = truth_.kv_head(head.row, Side::key);
  for (std::int64_t d = 0; d < f_.head_dim; ++d) head.query.push_back(truth_.query(head.row, d));
  const double lse = where.reference.lse[Facts::at(cell.reference_row)];
  head.max = std::isfinite(lse) ? lse : 0;
  const numerics::OutputType type = numerics::output_type(where.reference, observed.output.dtype);
  const bool saturates = f_.batch.output.dtype == DType::fp8_e4m3fn;
  for (std::int64_t d = 0; d < f_.v_head_dim; ++d) {
    const std::int64_t element = cell.reference_row * f_.v_head_dim + d;
    const double seen = observed.at(cell.token, cell.head, d);
    const double tolerance =
        numerics::output_tolerance(where.reference, cell.reference_row, element, type) + type.roundoff * std::fabs(seen);
    if (!std::isfinite(seen) || !std::isfinite(tolerance) || !(tolerance > 0)) continue;
    if (saturates && std::fabs(seen) >= numerics::kLargestE4m3fn) continue;
    equations_.push_back({heads_.size(), static_cast<std::size_t>(d), seen, 1 / tolerance});
  }
  heads_.push_back(std::move(head));
}

std::vector<CensusUnit> CensusRow::right_units() const {
  std::vector<CensusUnit> units;
  CensusUnit block;
  const auto close = [&] {
    if (block.offsets.empty()) return;
    const auto known = std::find_if(units.begin(), units.end(), [&](const CensusUnit& u) {
      return u.same_keys(block) && (!places_matter() || u.position == block.position);
    });
    if (known != units.end()) {
      ++known->right;
    } else {
      units.push_back(block);
    }
    block.offsets.clear();
  };
  for (const Key& key : keys_) {
    const Place place = truth_.place(truth_, row(), Side::key, key.position);
    const std::int64_t offset = key.position % f_.page_size;
    const bool cached = place.kind == Place::Kind::cache;
    const CensusUnit::Kind kind = cached ? CensusUnit::Kind::cached : CensusUnit::Kind::fresh;
    const std::int64_t from = cached ? place.page : place.token - offset, position = key.position - offset;
    if (block.kind != kind || block.from != from || block.position != position) close();
    block.kind = kind, block.from = from, block.position = position, block.right = 1;
    block.offsets.push_back(offset);
  }
  close();
  if (f_.options.sinks.present()) units.push_back({CensusUnit::Kind::sink, 0, {}, 0, 1});
  return units;
}

std::vector<std::pair<std::int64_t, Place>> CensusRow::keys_of(const CensusUnit& unit) const {
  const bool fresh = unit.kind == CensusUnit::Kind::fresh;
  std::vector<std::pair<std::int64_t, Place>> list;
  if (unit.kind != CensusUnit::Kind::every_page) {
    for (const std::int64_t offset : unit.offsets)
      list.emplace_back(unit.position + offset,
                        Place{fresh ? Place::Kind::new_row : Place::Kind::cache, unit.from, offset, unit.from + offset});
    return list;
  }
  for (const Key& key : keys_) {
    if (key.position >= unit.position || key.position % f_.page_size != unit.offsets.front()) continue;
    Place place = truth_.place(truth_, row(), Side::key, key.position);
    place.offset = unit.from;
    list.emplace_back(key.position, place);
  }
  return list;
}

void CensusRow::fill(Model& model, const CensusUnit& unit, std::span<double> column, std::span<double> weights) const {
  std::vector<double> sums(heads_.size() * Facts::at(f_.v_head_dim)), key(Facts::at(f_.head_dim)),
      value(Facts::at(f_.v_head_dim));
  std::vector<std::int64_t> scratch;
  Place place;
  model.place = [&](const Model&, const Row& row, Side side, std::int64_t k) {
    return moved_.has(side) ? place : truth_.place(truth_, row, side, k);
  };
  for (std::size_t h = 0; h < heads_.size() && unit.kind == CensusUnit::Kind::sink; ++h)
    weights[h] = std::exp(truth_.sink(heads_[h].row) - heads_[h].max);
  for (const auto& [position, slot] : keys_of(unit)) {
    place = slot;
    std::int64_t loaded = -1;
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      const Head& head = heads_[h];
      if (loaded != head.kv_head) {
        load_vector(model, head.row, Side::key, position, scratch, key);
        load_vector(model, head.row, Side::value, position, scratch, value);
        loaded = head.kv_head;
      }
      double dot = 0;
      for (std::size_t d = 0; d < key.size(); ++d) dot += head.query[d] * key[d];
      const double weight = std::exp(truth_.score(truth_, head.row, position, dot) - head.max);
      weights[h] += weight;
      double* sum = sums.data() + h * value.size();
      for (std::size_t d = 0; d < value.size(); ++d) sum[d] += weight * value[d];
    }
  }
  for (std::size_t e = 0; e < equations_.size(); ++e) {
    const Equation& at = equations_[e];
    column[e] = (sums[at.head * value.size() + at.dim] - at.observed * weights[at.head]) * at.inverse;
  }
}

CensusSystem CensusRow::system(const std::vector<CensusUnit>& units) const {
  constexpr std::size_t kUnitsAtOnce = 32;  // units that share one model, which takes longer to make than a column
  CensusSystem s;
  s.equations = equations_.size();
  s.heads = heads_.size();
  for (const Equation& at : equations_) s.head_of.push_back(at.head);
  s.columns.resize(units.size() * s.equations);
  s.weights.resize(units.size() * s.heads);
  threads::for_each_index(semantics::ceil_div(units.size(), kUnitsAtOnce), [&](std::size_t part) {
    Model model(f_);
    for (std::size_t i = part * kUnitsAtOnce; i < std::min(units.size(), (part + 1) * kUnitsAtOnce); ++i) {
      end_if_interrupted();
      fill(model, units[i], std::span(s.columns).subspan(i * s.equations, s.equations),
           std::span(s.weights).subspan(i * s.heads, s.heads));
    }
  });
  for (std::size_t i = 0; i < units.size(); ++i) {
    double sum = 0;
    for (std::size_t h = 0; h < s.heads; ++h) sum += s.weights[i * s.heads + h];
    const double* column = s.columns.data() + i * s.equations;
    const bool finite =
        std::isfinite(sum) && std::all_of(column, column + s.equations, [](double v) { return std::isfinite(v); });
    // A candidate with NaN or infinity would have made the output one: nobody read it.
    if (!finite) std::fill_n(s.columns.begin() + static_cast<std::ptrdiff_t>(i * s.equations), s.equations, 0.0);
    for (std::size_t h = 0; h < s.heads && !finite; ++h) s.weights[i * s.heads + h] = 0;
    s.mass.push_back(finite ? sum / static_cast<double>(s.heads) : 0);
    s.start.push_back(units[i].right);
  }
  return s;
}

}  // namespace quire::diagnose_detail
