// SPDX-License-Identifier: Apache-2.0
// See power.h. Facts about the test: vLLM (Apache-2.0), tests/kernels/attention/test_prefix_prefill.py of November 2025.
#include "verify/power.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "quire/tools/faults.hpp"
#include "semantics/dtype.h"
#include "text/formatted.h"
#include "threads/on_threads.h"
#include "verify/guarded.h"
#include "verify/matrix.h"
#include "verify/prepare.h"

namespace quire::verify_detail {
namespace {

/// The rows with the fewest keys (with fewer keys a mean of tiny values is larger, and so is every error), the decode row, and
/// the first and last rows of the longest prefill.
std::vector<std::int64_t> sampled_rows(const Problem& p) {
  std::vector<std::pair<std::int64_t, std::int64_t>> starts;  // context_len, first row
  std::int64_t first = 0, longest = 0, longest_first = 0;
  std::set<std::int64_t> rows;
  for (const Request& r : p.reqs) {
    starts.emplace_back(r.context_len, first);
    if (r.query_len == 1) rows.insert(first);
    if (r.query_len > longest) longest = r.query_len, longest_first = first;
    first += r.query_len;
  }
  std::sort(starts.begin(), starts.end());
  rows.insert({starts[0].second, starts[0].second + 1, starts[1].second, longest_first, longest_first + longest - 1});
  return {rows.begin(), rows.end()};
}

/// Largest |output - reference| over the sample; infinite where one is not a number.
double max_error(const Tensor& output, const Prepared& p) {
  double worst = 0;
  for (std::size_t i = 0; i < p.tokens.size(); ++i)
    for (std::int64_t j = 0; j < output.shape[1] * output.shape[2]; ++j) {
      const double observed = semantics::load(output.data, output.dtype, p.tokens[i] * output.stride[0] + j);
      const double expected = p.expected.out[i * static_cast<std::size_t>(output.stride[0]) + static_cast<std::size_t>(j)];
      const double error = std::fabs(observed - expected);
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
  return worst;
}

/// Plants one fault on the sample; nullopt if the fault cannot show on this case.
std::optional<PeerPower::Mutant> plant(const Prepared& p, const std::string& id, double atol) {
  Guarded output(p.c.batch.output, Spread::contiguous);
  Batch batch = p.c.batch;
  batch.output = output.view;
  if (!attend_with_fault(batch, p.c.cache, p.c.options, id, p.tokens).ok()) return std::nullopt;
  const double error = max_error(batch.output, p);
  return PeerPower::Mutant{id, error > atol, error};
}

Result<Prepared> prepare_sample(const PeerCase& c) {
  Result<ProblemLine> line = parse_problem_line(c.line);
  if (!line.ok()) return line.status();
  Result<Case> made = make_case(line.value());
  if (!made.ok()) return made.status();
  std::vector<std::int64_t> rows = sampled_rows(line->problem);
  return prepare_rows({"peer", c.name, std::move(line).value(), Special::none}, std::move(made).value(), std::move(rows));
}

}  // namespace

const std::vector<PeerCase>& peer_cases() {
  static const std::vector<PeerCase> list = [] {
    std::vector<PeerCase> cases;
    const auto add = [&](const char* name, const char* kv, const char* rest, double atol) {
      cases.push_back({name,
                       formatted("q=f16 kv={} heads=64:64 d=128 page=32 layout=packed reqs={} index=i64 data=tiny{}", kv,
                                 notes_requests(), rest),
                       atol});
    };
    add("16-bit cache", "f16", "", 1e-4);
    add("16-bit cache, window 16", "f16", " window=16", 1e-4);
    add("fp8 cache", "fp8_e4m3fn", "", 1e-3);
    return cases;
  }();
  return list;
}

const std::vector<std::string>& study_faults() {
  static const std::vector<std::string> list = {"output_zero",
                                                "own_slot_zero",
                                                "scale_from_query_heads",
                                                "qk_ignored",
                                                "k_dims_permuted",
                                                "v_pages_rotated",
                                                "partial_context_page_skipped",
                                                "causal_sees_one_future_key",
                                                "causal_excludes_own_key",
                                                "context_zero"};
  return list;
}

Result<PeerPower> measure_peer(const PeerCase& c, int num_threads) {
  const Result<Prepared> prepared = prepare_sample(c);
  if (!prepared.ok()) return prepared.status();
  const Prepared& p = prepared.value();
  std::vector<std::string> ids;
  for (const FaultInfo& fault : faults()) ids.push_back(fault.id);
  std::vector<std::optional<PeerPower::Mutant>> results(ids.size());
  threads::for_each_index(ids.size(), threads::at_least_one(num_threads),
                          [&](std::size_t i) { results[i] = plant(p, ids[i], c.atol); });
  PeerPower power{.name = c.name,
                  .line = c.line,
                  .atol = c.atol,
                  .rows_compared = static_cast<std::int64_t>(p.tokens.size()),
                  .rows_total = p.c.batch.output.shape[0]};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!results[i]) continue;
    const bool studied = std::find(study_faults().begin(), study_faults().end(), ids[i]) != study_faults().end();
    const std::int64_t killed = results[i]->killed ? 1 : 0;
    ++power.total;
    power.killed += killed;
    if (studied) ++power.known_total, power.known_killed += killed;
    power.mutants.push_back(*results[i]);
  }
  return power;
}

}  // namespace quire::verify_detail
