// SPDX-License-Identifier: Apache-2.0
// Finite, not a fill value, inside the convex hull of V: one pass per request.
#include "diagnose/laws.h"

#include <cmath>
#include <limits>

#include "numerics/tolerance.h"
#include "quire/interrupt.hpp"
#include "text/formatted.h"
#include "threads/on_threads.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::int64_t kKeysPerQuestion = 64;  // keys between two questions whether the call shall end: microseconds of work
constexpr double kInf = std::numeric_limits<double>::infinity();
// Rounding can lift an average of n values over the largest by about 8 sqrt(n) 2^-24 of it (numerics.md); n <= 2^20 here.
constexpr double kSumSlack = 0x1p-11;

/// Prints a number, without the sign that some NaN have.
std::string law_number(double value) { return std::isnan(value) ? "NaN" : formatted("{:.6g}", value); }

/// Smallest and largest V of one request and KV head, per dim. `known` is false if some V is not finite.
struct Hull {
  std::vector<double> low, high;
  bool known = true;

  void add(std::span<const double> v) {
    for (std::size_t d = 0; d < v.size(); ++d) {
      low[d] = std::min(low[d], v[d]);
      high[d] = std::max(high[d], v[d]);
      known = known && std::isfinite(v[d]);
    }
  }
};

class Judge {
 public:
  Judge(const Facts& f, const Observed& observed) : f_(f), observed_(observed), truth_(f) {
    const numerics::OutputType type = numerics::output_type(f.batch.output.dtype);
    slack_ = 4 * type.roundoff + kSumSlack;
    smallest_ = type.smallest;
  }

  void request(std::int64_t req, std::int64_t kv_head, Laws& laws) const {
    const Hull hull = hull_of(req, kv_head);
    for (std::int64_t i = 0; i < f_.query_len(req); ++i)
      for (std::int64_t g = 0; g < f_.group; ++g) {
        const std::int64_t token = f_.query_start_loc[Facts::at(req)] + i, head = kv_head * f_.group + g;
        laws.broken[Facts::at(token * f_.num_q_heads + head)] = broken(hull, token, head);
      }
  }

  /// The worst element of a row: dim, value, hull.
  std::string describe(Law law, std::int64_t token, std::int64_t head) const {
    const std::string place = formatted("row {}, head {}", token, head);
    if (law == Law::one_value) return formatted("{}: every dim holds {}", place, law_number(observed_.at(token, head, 0)));
    const Hull hull = hull_of(f_.req_of(token), head / f_.group);
    double worst = -1;
    std::int64_t dim = 0;
    for (std::int64_t d = 0; d < f_.v_head_dim; ++d) {
      const double value = observed_.at(token, head, d);
      const double excess = std::isfinite(value) ? distance(hull, d, value) : kInf;
      if (excess > worst) worst = excess, dim = d;
    }
    const double value = observed_.at(token, head, dim);
    if (law == Law::finite) return formatted("{}, dim {} holds {}", place, dim, law_number(value));
    return formatted("{}, dim {} holds {:.6g}; the values that it may average lie in [{:.6g}, {:.6g}]", place, dim, value,
                     hull.low[Facts::at(dim)], hull.high[Facts::at(dim)]);
  }

 private:
  Hull hull_of(std::int64_t req, std::int64_t kv_head) const {
    const auto dims = Facts::at(f_.v_head_dim);
    const bool zero = f_.options.sinks.present() || f_.has_masks;  // a row that sees no key is 0
    Hull hull{std::vector<double>(dims, zero ? 0 : kInf), std::vector<double>(dims, zero ? 0 : -kInf), true};
    if (f_.query_len(req) == 0) return hull;
    Row row = truth_.row(f_.query_start_loc[Facts::at(req)], kv_head * f_.group);
    std::vector<double> v(dims);
    std::vector<std::int64_t> scratch;
    for (const Span& seen : f_.reach(req))
      for (std::int64_t k = seen.begin; k < seen.end; ++k) {
        if (k % kKeysPerQuestion == 0) end_if_interrupted();
        load_vector(truth_, row, Side::value, k, scratch, v);
        hull.add(v);
      }
    if (f_.batch.output.dtype == DType::fp8_e4m3fn)  // stores saturate
      for (std::size_t d = 0; d < dims; ++d) {
        hull.low[d] = std::clamp(hull.low[d], -numerics::kLargestE4m3fn, numerics::kLargestE4m3fn);
        hull.high[d] = std::clamp(hull.high[d], -numerics::kLargestE4m3fn, numerics::kLargestE4m3fn);
      }
    return hull;
  }

  bool sees_nothing(std::int64_t token) const {
    const std::int64_t r = f_.req_of(token);
    return f_.num_visible(r, f_.first_position(r) + token - f_.query_start_loc[Facts::at(r)]) == 0;
  }

  double distance(const Hull& hull, std::int64_t dim, double value) const {
    const auto d = Facts::at(dim);
    return std::max(value - hull.high[d], hull.low[d] - value);
  }

  std::uint8_t broken(const Hull& hull, std::int64_t token, std::int64_t head) const {
    const double first = observed_.at(token, head, 0);
    bool same = f_.v_head_dim > 1, finite = true, inside = true;
    for (std::int64_t d = 0; d < f_.v_head_dim; ++d) {
      const auto i = Facts::at(d);
      const double value = observed_.at(token, head, d);
      same = same && (value == first || (std::isnan(value) && std::isnan(first)));
      finite = finite && std::isfinite(value);
      const double slack = slack_ * std::max(std::fabs(hull.low[i]), std::fabs(hull.high[i])) + smallest_;
      inside = inside && !(value > hull.high[i] + slack || value < hull.low[i] - slack);
    }
    // Equal V rows give equal dims lawfully only if V itself is the same in every dim, and so does a row without keys.
    const bool may_be_same = hull.low == hull.high || (same && f_.has_masks && first == 0 && sees_nothing(token));
    return static_cast<std::uint8_t>((same && !may_be_same ? bit(Law::one_value) : 0) |
                                     (!finite && hull.known ? bit(Law::finite) : 0) |
                                     (!inside && hull.known ? bit(Law::hull) : 0));
  }

  const Facts& f_;
  const Observed& observed_;
  Model truth_;
  double slack_ = 0, smallest_ = 0;
};

}  // namespace

Laws apply_laws(const Facts& facts, const Observed& observed) {
  const Judge judge(facts, observed);
  Laws laws;
  laws.broken.assign(Facts::at(facts.num_tokens * facts.num_q_heads), 0);
  threads::for_each_index(Facts::at(facts.num_reqs * facts.num_kv_heads), [&](std::size_t i) {
    const auto task = static_cast<std::int64_t>(i);
    judge.request(task / facts.num_kv_heads, task % facts.num_kv_heads, laws);
  });
  for (const Law law : kLaws) {
    LawFinding finding{law, {}, {}};
    for (std::int64_t row = 0; row < facts.num_tokens * facts.num_q_heads; ++row) {
      if (!laws.breaks(row, law)) continue;
      const std::int64_t token = row / facts.num_q_heads;
      if (finding.tokens.empty()) finding.text = judge.describe(law, token, row % facts.num_q_heads);
      if (finding.tokens.empty() || finding.tokens.back() != token) finding.tokens.push_back(token);
    }
    if (!finding.tokens.empty()) laws.findings.push_back(std::move(finding));
  }
  return laws;
}

}  // namespace quire::diagnose_detail
