// SPDX-License-Identifier: Apache-2.0
// Fuzzes the search for a cause: whatever a capture holds, diagnose() answers or refuses with a reason. It never crashes, reads
// outside the case, reports an internal error or a share that is none; what it calls wrong can be reduced and diagnosed again.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "capture_from_bytes.h"
#include "quire/contract.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/report.hpp"
#include "semantics/page_walk.h"

namespace {

constexpr double kMostPairs = 4000;  // query rows x keys x query heads: about what one run may take

/// Number of (query row, key, query head) triples of a batch whose tables keep the rules.
double pairs(const quire::Case& c) {
  const auto starts = quire::semantics::index_view(c.batch.query_start_loc),
             lens = quire::semantics::index_view(c.batch.seq_lens);
  double sum = 0;
  for (std::int64_t r = 0; r < c.batch.seq_lens.shape[0]; ++r)
    sum += static_cast<double>(starts[r + 1] - starts[r]) * static_cast<double>(lens[r]);
  return sum * static_cast<double>(c.batch.query.shape[1]);
}

void demand(bool holds) {
  if (!holds) std::abort();
}

/// A refusal has a reason that is not our own fault.
void demand_reason(const quire::Status& status) {
  demand(status.code() != quire::Code::internal_error && !status.message().empty() && status.message().size() < 4000);
}

void demand_sense(const quire::Diagnosis& d) {
  demand(d.verdict == quire::DiagnosisVerdict::right || d.verdict == quire::DiagnosisVerdict::cause_found ||
         d.verdict == quire::DiagnosisVerdict::mechanism_likely || d.verdict == quire::DiagnosisVerdict::unknown_cause ||
         d.verdict == quire::DiagnosisVerdict::broken_batch);
  demand(!to_string(d).empty() && to_json(d).size() > 2 && to_json(d).front() == '{' && to_json(d).back() == '}');
  for (const quire::Suspicion& s : d.suspicions) {
    demand(s.explained <= 1 && !std::isnan(s.explained));
    demand(!s.mechanism.empty() && !s.text.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string file = quire::fuzz::capture_of(data, size);
  const auto c = quire::parse_capture(std::as_bytes(std::span(file)));
  if (!c.ok()) return 0;
  const bool sound = quire::check(c->batch, c->cache, c->options, quire::Depth::tables).ok();
  if (sound && pairs(c.value()) > kMostPairs) return 0;

  const auto d = quire::diagnose(c.value(), {.full = false, .seconds = 0.01, .progress = {}});
  if (!d.ok()) {
    demand_reason(d.status());
    return 0;
  }
  demand_sense(d.value());
  demand(sound == (d->verdict != quire::DiagnosisVerdict::broken_batch));
  const auto reduced = quire::reduce_case(c.value(), d.value());
  if (!reduced.ok()) {
    demand_reason(reduced.status());
    return 0;
  }
  demand(quire::check(reduced->batch, reduced->cache, reduced->options, quire::Depth::tables).ok());
  return 0;
}
