// SPDX-License-Identifier: Apache-2.0
// Chooses the rows that are worth computing again, and judges them.
#include "diagnose/localise.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "diagnose/find_profile.h"
#include "numerics/tolerance.h"
#include "semantics/ceil_div.h"
#include "threads/on_threads.h"

namespace quire::diagnose_detail {
namespace {

using numerics::ElementVerdict;

// Conservative costs of the reference on one core; they decide how many rows are compared, never what a comparison says.
constexpr double kSecondsPerDecode = 2e-9;     // one element of K or V
constexpr double kSecondsPerMultiply = 2e-10;  // one product of scores or values
constexpr std::int64_t kRowsPerDecode = 256;   // rows of the full reference that share one decoded copy

constexpr std::size_t kProfileRows = 16;  // rows of each kind (worst ones, even choice) on which a profile is searched

constexpr double kThreads = 2;  // fixed, so that a case gives the same report on every machine

std::int64_t visible(const Facts& f, std::int64_t r, std::int64_t row) { return f.num_visible(r, f.first_position(r) + row); }

std::int64_t visible_to(const Facts& f, std::int64_t token) {
  const std::int64_t r = f.req_of(token);
  return visible(f, r, token - f.query_start_loc[Facts::at(r)]);
}

/// Seconds for comparing `rows` neighbouring rows that see `keys` keys each.
double seconds(const Facts& f, std::int64_t keys, std::int64_t rows, std::int64_t rows_per_decode) {
  const double elements = static_cast<double>(keys) * static_cast<double>(f.head_dim + f.v_head_dim) / 2;
  const double copies = std::ceil(static_cast<double>(rows) / static_cast<double>(rows_per_decode));
  return (copies * static_cast<double>(f.num_kv_heads) * elements * 2 * kSecondsPerDecode +
          static_cast<double>(rows * f.num_q_heads) * elements * 4 * kSecondsPerMultiply) /
         kThreads;
}

double seconds_for_all(const Facts& f) {
  double sum = 0;
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    for (const Span& seen : f.reach(r)) sum += seconds(f, seen.end - seen.begin, f.query_len(r), kRowsPerDecode);
  return sum;
}

/// Rows in the order in which they are worth a look: suspicious ones first (spread), then the ends of every request, then any.
std::vector<std::int64_t> by_interest(const Facts& f, const Laws& laws) {
  std::vector<std::int64_t> order;
  std::set<std::int64_t> suspicious;
  for (const LawFinding& finding : laws.findings) suspicious.insert(finding.tokens.begin(), finding.tokens.end());
  const std::vector<std::int64_t> listed(suspicious.begin(), suspicious.end());
  const std::size_t step = std::max<std::size_t>(1, listed.size() / 16);
  for (std::size_t i = 0; i < listed.size(); i += step) order.push_back(listed[i]);
  for (std::int64_t r = 0; r < f.num_reqs; ++r) {
    if (f.query_len(r) == 0) continue;
    order.push_back(f.query_start_loc[Facts::at(r + 1)] - 1);
    order.push_back(f.query_start_loc[Facts::at(r)]);
  }
  std::vector<std::int64_t> rest(Facts::at(f.num_tokens));
  std::iota(rest.begin(), rest.end(), 0);
  std::shuffle(rest.begin(), rest.end(), std::mt19937_64(1));
  order.insert(order.end(), rest.begin(), rest.end());
  return order;
}

std::vector<std::int64_t> affordable(const Facts& f, const Laws& laws, double budget) {
  std::set<std::int64_t> chosen;
  for (const std::int64_t token : by_interest(f, laws)) {
    budget -= chosen.contains(token) ? 0 : seconds(f, visible_to(f, token), 1, 1);
    if (budget < 0 && !chosen.empty()) break;
    chosen.insert(token);
  }
  return {chosen.begin(), chosen.end()};
}

constexpr std::int64_t kBitsPerWord = 64;

std::size_t words_per_row(std::int64_t dims) { return Facts::at(semantics::ceil_div(dims, kBitsPerWord)); }

/// Returns whether the element is wrong.
bool add_element(Compared& row, std::int64_t dim, double observed, double expected, double tolerance, double overflow) {
  const ElementVerdict verdict = numerics::judge(observed, expected, tolerance, overflow);
  const double error = std::fabs(observed - expected);
  if (std::isfinite(error) && error > 0) {
    row.largest_error = std::max(row.largest_error, error);
    row.worst_ratio = std::max(row.worst_ratio, error / tolerance);
  }
  if (verdict == ElementVerdict::fine) return false;
  row.wrong = true;
  if (verdict == ElementVerdict::wrong_class) ++row.nonfinite;
  if (dim < 0) {
    row.wrong_lse = true;
    return true;
  }
  if (row.wrong_dims++ == 0) row.first_dim = dim;
  row.last_dim = dim;
  return true;
}

Compared compare_row(const Facts& f, const Observed& observed, Localisation& where, std::size_t i) {
  Compared row;
  row.reference_row = static_cast<std::int64_t>(i);
  row.token = where.tokens[i / Facts::at(f.num_q_heads)];
  row.head = row.reference_row % f.num_q_heads;
  const numerics::OutputType type = numerics::output_type(where.reference, observed.output.dtype);
  for (std::int64_t d = 0; d < f.v_head_dim; ++d) {
    const std::int64_t e = row.reference_row * f.v_head_dim + d;
    if (add_element(row, d, observed.at(row.token, row.head, d), where.reference.out[Facts::at(e)],
                    numerics::output_tolerance(where.reference, row.reference_row, e, type), type.overflow))
      where.wrong_dim_bits[i * words_per_row(f.v_head_dim) + Facts::at(d / kBitsPerWord)] |= std::uint64_t{1}
                                                                                             << (d % kBitsPerWord);
  }
  if (observed.lse.present())
    add_element(row, -1, observed.lse_at(row.token, row.head), where.reference.lse[i],
                numerics::lse_tolerance(where.reference, row.reference_row), numerics::output_type(DType::f32).overflow);
  return row;
}

/// Rows that tell rounding from a fault: some of the worst ones, and an even choice of all, as many as may be computed again.
std::vector<std::int64_t> profile_sample(const Facts& f, const Localisation& where, double budget) {
  std::map<std::int64_t, double> worst;  // token -> largest ratio
  for (const Compared& row : where.rows) worst[row.token] = std::max(worst[row.token], row.worst_ratio);
  std::vector<std::int64_t> by_ratio = where.tokens;
  std::stable_sort(by_ratio.begin(), by_ratio.end(), [&](std::int64_t a, std::int64_t b) { return worst[a] > worst[b]; });
  std::set<std::int64_t> chosen;
  const std::size_t count = where.tokens.size();
  for (std::size_t i = 0; i < std::min(kProfileRows, count); ++i)
    for (const std::int64_t token : {where.tokens[i * count / std::min(kProfileRows, count)], by_ratio[i]}) {
      if (chosen.contains(token)) continue;
      budget -= seconds(f, visible_to(f, token), 1, 1);
      if (budget < 0 && chosen.size() > 1) return {chosen.begin(), chosen.end()};
      chosen.insert(token);
    }
  return {chosen.begin(), chosen.end()};
}

Result<Localisation> compare_enough(const Facts& f, const Observed& observed, const DiagnoseOptions& options, const Laws& laws,
                                    const NumericsProfile& profile) {
  const auto stage = [&](const std::string& text) {
    if (options.progress) options.progress(profile.plain() ? text : text + ", " + to_string(profile));
  };
  stage("fp64 reference");
  const double limit = std::min(options.seconds, options.reference_seconds);
  if (!options.full && seconds_for_all(f) > limit) {
    Result<Localisation> some = compare_tokens(f, observed, affordable(f, laws, limit), profile);
    if (!some.ok() || some->any_wrong()) return some;
    stage("fp64 reference, every row: nothing wrong in a sample");
  }
  std::vector<std::int64_t> all(Facts::at(f.num_tokens));
  std::iota(all.begin(), all.end(), 0);
  return compare_tokens(f, observed, std::move(all), profile);
}

/// Whether a row that holds one value in every dim, or leaves the hull of V, may be right all the same: its expected numbers do
/// so too once they are stored. Of kernels that round weights, a sum may leave the hull.
bool may_break(const Localisation& where, const Compared& row, const numerics::OutputType& type, bool one_value) {
  if (!one_value) return !where.reference.profile.plain();
  constexpr double kFlushed = 8;  // times the smallest number of the type: kernels may flush what is smaller to 0
  const auto dims = Facts::at(where.reference.v_head_dim);
  const auto expected = std::span(where.reference.out).subspan(Facts::at(row.reference_row) * dims, dims);
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  const double size = std::max(std::fabs(*low), std::fabs(*high));
  return *high - *low <= 2 * type.roundoff * size + kFlushed * type.smallest;
}

/// A row that breaks a law is wrong, however wide its tolerance: no attention over these V gives such numbers.
void apply_laws_to_right_rows(const Facts& f, const Observed& observed, const Laws& laws, Localisation& where) {
  const numerics::OutputType type = numerics::output_type(where.reference, observed.output.dtype);
  for (Compared& row : where.rows) {
    const std::int64_t cell = row.token * f.num_q_heads + row.head;
    const bool one_value = laws.breaks(cell, Law::one_value);
    if (row.wrong || (!one_value && !laws.breaks(cell, Law::hull)) || may_break(where, row, type, one_value)) continue;
    row.wrong = true;
    row.wrong_dims = f.v_head_dim;
    row.last_dim = f.v_head_dim - 1;
    for (std::int64_t d = 0; d < f.v_head_dim; ++d)
      where.wrong_dim_bits[Facts::at(row.reference_row) * words_per_row(f.v_head_dim) + Facts::at(d / kBitsPerWord)] |=
          std::uint64_t{1} << (d % kBitsPerWord);
  }
}

}  // namespace

std::vector<std::int64_t> Localisation::wrong_tokens() const {
  std::vector<std::int64_t> list;
  for (const Compared& row : rows)
    if (row.wrong && (list.empty() || list.back() != row.token)) list.push_back(row.token);
  return list;
}

bool Localisation::wrong_dim(std::size_t compared_row, std::int64_t dim) const {
  const std::size_t word = compared_row * words_per_row(reference.v_head_dim) + Facts::at(dim / kBitsPerWord);
  return ((wrong_dim_bits[word] >> (dim % kBitsPerWord)) & 1) != 0;
}

bool Localisation::any_wrong() const {
  return std::any_of(rows.begin(), rows.end(), [](const Compared& row) { return row.wrong; });
}

Result<Localisation> compare_tokens(const Facts& f, const Observed& observed, std::vector<std::int64_t> tokens,
                                    const NumericsProfile& profile) {
  Localisation where;
  where.tokens = std::move(tokens);
  where.complete = static_cast<std::int64_t>(where.tokens.size()) == f.num_tokens;
  Result<Reference> reference = where.complete ? quire::reference(f.batch, f.stored, f.options, profile)
                                               : quire::reference(f.batch, f.stored, f.options, where.tokens, profile);
  if (!reference.ok()) return reference.status();
  where.reference = std::move(reference).value();
  where.rows.assign(where.tokens.size() * Facts::at(f.num_q_heads), {});
  where.wrong_dim_bits.assign(where.rows.size() * words_per_row(f.v_head_dim), 0);
  threads::for_each_index(where.tokens.size(), [&](std::size_t token) {
    for (std::size_t h = 0; h < Facts::at(f.num_q_heads); ++h) {
      const std::size_t i = token * Facts::at(f.num_q_heads) + h;
      where.rows[i] = compare_row(f, observed, where, i);
    }
  });
  return where;
}

Result<Localisation> localise(const Facts& facts, const Observed& observed, const DiagnoseOptions& options,
                              const TimeLimit& limit) {
  if (options.progress) options.progress("laws");
  Laws laws = apply_laws(facts, observed);
  Result<Localisation> where = compare_enough(facts, observed, options, laws, options.profile.value_or(NumericsProfile{}));
  if (where.ok() && where->any_wrong() && !options.profile) {
    if (options.progress) options.progress("numerics profiles");
    const double part = std::min(options.seconds, options.reference_seconds) / 8;
    Result<std::optional<NumericsProfile>> found = std::optional<NumericsProfile>();
    const bool done =
        limit.run([&] { found = find_profile(facts, observed, where.value(), profile_sample(facts, where.value(), part)); });
    where->profiles_tried = done;
    if (!found.ok()) return found.status();
    if (found.value()) {
      const double in_f32 = least_factor(where->reference);
      where = compare_enough(facts, observed, options, laws, *found.value());
      if (!where.ok()) return where;
      where->profile_found = true;
      where->least_factor_in_f32 = in_f32;
    }
  }
  if (!where.ok()) return where;
  apply_laws_to_right_rows(facts, observed, laws, where.value());
  where->laws = std::move(laws);
  return where;
}

}  // namespace quire::diagnose_detail
