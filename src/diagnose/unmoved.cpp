// SPDX-License-Identifier: Apache-2.0
// See unmoved.h. Only heads of rows with a wrong cell are asked if all right cells would take long.
#include "diagnose/unmoved.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "numerics/tolerance.h"
#include "threads/on_threads.h"

namespace quire::diagnose_detail {
namespace {

// Elements of K and V that may be read, about half a second of one core. More makes large batches slow; fewer leave insensitive
// cells in their patterns as if the cause did not hold there.
constexpr double kMostWork = 2e7;
// Scores are divided by this where it is asked whether a cause touches a cell at all: a key that is lost shows if all weigh
// alike.
constexpr double kFlatter = 64;
constexpr double kTouched = 1e-9;  // change / largest output; below lies the rounding of fp64 sums in another order

Model flat(Model m) {
  m.softmax_scale = [exact = m.softmax_scale](const Row& row) { return exact(row) / kFlatter; };
  return m;
}

/// Whether the prediction for a right cell is right, too.
bool is_right(const Facts& f, const Observed& observed, const Reference& r, std::int64_t row, const RowResult& predicted) {
  const numerics::OutputType type = numerics::output_type(r, observed.output.dtype);
  for (std::int64_t d = 0; d < f.v_head_dim; ++d) {
    const std::int64_t e = row * f.v_head_dim + d;
    const double stored = faults_detail::rounded(observed.output.dtype, predicted.out[Facts::at(d)]);
    const double tolerance = numerics::output_tolerance(r, row, e, type);
    if (numerics::judge(stored, r.out[Facts::at(e)], tolerance, type.overflow) != numerics::ElementVerdict::fine) return false;
  }
  const double lse = r.lse[Facts::at(row)];
  return !observed.lse.present() || predicted.lse == lse || std::fabs(predicted.lse - lse) <= numerics::lse_tolerance(r, row);
}

bool touches(const Model& cause, const Model& truth, const RowHead& at) {
  const std::vector<double> other = evaluate(cause, std::span(&at, 1)).front().out;
  const std::vector<double> exact = evaluate(truth, std::span(&at, 1)).front().out;
  double largest = 0, change = 0;
  for (std::size_t d = 0; d < exact.size(); ++d) {
    largest = std::max(largest, std::fabs(exact[d]));
    change = std::max(change, std::fabs(other[d] - exact[d]));
  }
  return change > kTouched * largest;
}

}  // namespace

std::vector<std::size_t> unmoved_cells(const Facts& f, const Observed& observed, const Localisation& where, const Model& cause,
                                       Untouched untouched) {
  const auto work = [&](std::size_t i) {
    return static_cast<double>(where.reference.num_keys[i]) * static_cast<double>(f.head_dim + f.v_head_dim);
  };
  std::set<std::int64_t> wrong_rows;
  for (const Compared& cell : where.rows)
    if (cell.wrong) wrong_rows.insert(cell.token);
  std::vector<std::size_t> asked;
  for (const bool few : {false, true}) {
    asked.clear();
    double all = 0;
    for (std::size_t i = 0; i < where.rows.size(); ++i) {
      if (where.rows[i].wrong || (few && !wrong_rows.contains(where.rows[i].token))) continue;
      asked.push_back(i);
      all += work(i);
    }
    if (all <= kMostWork) break;
    if (few) return {};
  }
  std::vector<char> unmoved(asked.size());
  const Model flat_cause = flat(cause), flat_truth = flat(Model(f));
  threads::for_each_index(asked.size(), [&](std::size_t i) {
    const Compared& cell = where.rows[asked[i]];
    const RowHead at{cell.token, cell.head};
    const RowResult predicted = evaluate(cause, std::span(&at, 1)).front();
    const bool right = predicted.written && is_right(f, observed, where.reference, cell.reference_row, predicted);
    unmoved[i] = right && (untouched == Untouched::listed || touches(flat_cause, flat_truth, at)) ? 1 : 0;
  });
  std::vector<std::size_t> list;
  for (std::size_t i = 0; i < asked.size(); ++i)
    if (unmoved[i] != 0) list.push_back(asked[i]);
  return list;
}

}  // namespace quire::diagnose_detail
