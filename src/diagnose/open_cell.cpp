// SPDX-License-Identifier: Apache-2.0
// Reads the K and V of one (row, head) through the true model.
#include "diagnose/open_cell.h"

#include <algorithm>
#include <cmath>

#include "numerics/tolerance.h"
#include "semantics/ceil_div.h"

namespace quire::diagnose_detail {
namespace {

/// Positions that memory holds for this row: up to the end of its last page, or of the table.
std::int64_t open_end(const Facts& f, const Row& row) {
  const std::int64_t last_page = semantics::round_up(row.seq_len, f.page_size);
  if (row.cached_len < row.seq_len) return row.seq_len;
  return std::min(last_page, f.max_pages_per_req * f.page_size);
}

void read_keys(const Model& truth, OpenCell& cell) {
  const std::size_t dims = cell.dims();
  std::vector<double> query(Facts::at(truth.facts->head_dim)), key(query.size());
  std::vector<std::int64_t> scratch;
  for (std::size_t d = 0; d < query.size(); ++d) query[d] = truth.query(cell.row, static_cast<std::int64_t>(d));
  cell.values.resize(static_cast<std::size_t>(cell.end) * dims);
  for (std::int64_t k = 0; k < cell.end; ++k) {
    load_vector(truth, cell.row, Side::key, k, scratch, key);
    load_vector(truth, cell.row, Side::value, k, scratch,
                std::span(cell.values).subspan(static_cast<std::size_t>(k) * dims, dims));
    double dot = 0;
    for (std::size_t d = 0; d < query.size(); ++d) dot += query[d] * key[d];
    cell.dots.push_back(dot);
    cell.scores.push_back(truth.score(truth, cell.row, k, dot));
  }
}

void weigh(const Model& truth, OpenCell& cell) {
  const double sink = truth.sink(cell.row);
  cell.max = sink;
  for (std::int64_t k = cell.from; k < cell.to; ++k)
    if (cell.sees(k)) cell.max = std::max(cell.max, cell.scores[Facts::at(k)]);
  if (!std::isfinite(cell.max)) cell.max = 0;
  cell.sink_weight = std::isfinite(sink) ? std::exp(sink - cell.max) : 0;
  cell.denominator = cell.sink_weight;
  for (std::int64_t k = 0; k < cell.end; ++k) {
    cell.weights.push_back(std::exp(cell.scores[Facts::at(k)] - cell.max));
    if (cell.sees(k)) cell.denominator += cell.weights.back();
  }
}

void read_numbers(const Observed& observed, const Localisation& where, OpenCell& cell) {
  const auto dims = static_cast<std::size_t>(where.reference.v_head_dim);
  const numerics::OutputType type = numerics::output_type(where.reference, observed.output.dtype);
  for (std::size_t d = 0; d < dims; ++d) {
    const std::int64_t element = cell.reference_row * where.reference.v_head_dim + static_cast<std::int64_t>(d);
    const double expected = where.reference.out[Facts::at(element)];
    const double seen = observed.at(cell.at.token, cell.at.head, static_cast<std::int64_t>(d));
    const double tolerance =
        numerics::output_tolerance(where.reference, cell.reference_row, element, type) + type.roundoff * std::fabs(seen);
    cell.expected.push_back(expected);
    cell.observed.push_back(seen);
    cell.inverse.push_back(
        std::isfinite(seen) && std::isfinite(expected) && tolerance > 0 && std::isfinite(tolerance) ? 1 / tolerance : 0);
  }
  cell.lse = where.reference.lse[Facts::at(cell.reference_row)];
  cell.has_lse = observed.lse.present();
  if (cell.has_lse) cell.observed_lse = observed.lse_at(cell.at.token, cell.at.head);
}

}  // namespace

double OpenCell::distance(std::span<const double> out) const {
  double sum = 0;
  for (std::size_t d = 0; d < out.size(); ++d) {
    if (inverse[d] == 0) continue;
    const double error = (observed[d] - out[d]) * inverse[d];
    sum += error * error;
  }
  return sum;
}

bool OpenCell::explained_by(double distance) const {
  // kMostLeft: the share of the squared error that a prediction may leave. kMostLeftOfNoise: likewise, if what is left is no more
  // than rounding. kRounding: the squared error per dim, in squared tolerances, that rounding may leave. All were found by trial
  // on the development captures (tests/diagnose/foreign). Larger values let more wrong predictions into the contest, which takes
  // longer and can crowd out the cause. Smaller values drop a cause whose error is small against rounding.
  constexpr double kMostLeft = 0.02, kMostLeftOfNoise = 0.2, kRounding = 0.3;
  const double all = error();
  return distance < kMostLeft * all || (distance < kRounding * static_cast<double>(dims()) && distance < kMostLeftOfNoise * all);
}

OpenCell open_cell(const Facts& facts, const Observed& observed, const Localisation& where, const Compared& compared,
                   std::int64_t most_keys) {
  const Model truth(facts);
  OpenCell cell;
  cell.at = {compared.token, compared.head};
  cell.row = truth.row(compared.token, compared.head);
  cell.reference_row = compared.reference_row;
  const std::vector<Span> seen = facts.seen_by(cell.row.req, cell.row.q_pos);
  cell.from = seen.empty() ? 0 : seen.front().begin;
  cell.to = seen.empty() ? 0 : seen.back().end;
  read_numbers(observed, where, cell);
  if (cell.to > most_keys) return cell;
  cell.end = std::max(cell.to, std::min(open_end(facts, cell.row), most_keys));
  cell.seen.resize(Facts::at(cell.end));
  for (const Span& range : seen) std::fill(cell.seen.begin() + range.begin, cell.seen.begin() + range.end, true);
  read_keys(truth, cell);
  weigh(truth, cell);
  return cell;
}

OneCoefficient fit_coefficient(const OpenCell& cell, std::span<const double> part, double weight) {
  // (N + x part) / (D + x weight) = observed  <=>  x (part - observed weight) = observed D - N, linear in x in each dim.
  double top = 0, bottom = 0;
  for (std::size_t d = 0; d < part.size(); ++d) {
    const double a = (part[d] - cell.observed[d] * weight) * cell.inverse[d];
    const double b = (cell.observed[d] - cell.expected[d]) * cell.denominator * cell.inverse[d];
    if (cell.inverse[d] == 0) continue;
    top += a * b;
    bottom += a * a;
  }
  OneCoefficient fit;
  const double before = cell.error();
  if (!(bottom > 0) || !(before > 0)) return fit;
  const double x = top / bottom, sum = cell.denominator + x * weight;
  if (!std::isfinite(x) || !(std::fabs(sum) > 0)) return fit;
  double left = 0;
  for (std::size_t d = 0; d < part.size(); ++d) {
    const double out = (cell.expected[d] * cell.denominator + x * part[d]) / sum;
    const double error = (cell.observed[d] - out) * cell.inverse[d];
    if (cell.inverse[d] != 0) left += error * error;
  }
  return {x, left / before};
}

Partial partial(const OpenCell& cell, std::int64_t from, std::int64_t to) {
  Partial sum{std::vector<double>(cell.dims(), 0.0), 0};
  for (std::int64_t k = from; k < to; ++k) {
    if (!cell.sees(k)) continue;
    const double weight = cell.weights[Facts::at(k)];
    const double* v = cell.value(k);
    sum.weight += weight;
    for (std::size_t d = 0; d < sum.out.size(); ++d) sum.out[d] += weight * v[d];
  }
  return sum;
}

}  // namespace quire::diagnose_detail
