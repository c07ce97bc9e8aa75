// SPDX-License-Identifier: Apache-2.0
// Runs a batch as a kernel with one fault would: in fp64 by the changed model, each value rounded once to the output's type.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "batch/caught.h"
#include "faults/fault.h"
#include "quire/attention.hpp"
#include "quire/contract.hpp"
#include "semantics/ceil_div.h"
#include "semantics/dtype.h"
#include "text/formatted.h"
#include "threads/on_threads.h"

namespace quire {
namespace {

using faults_detail::Facts;
using faults_detail::Model;
using faults_detail::RowHead;
using faults_detail::RowResult;

constexpr std::size_t kRowsAtOnce = 64;          // (row, head) pairs that a thread takes at a time
constexpr std::size_t kThreadedPairs = 4096;     // pairs below which starting threads costs more than it saves
constexpr std::int64_t kLargeBatch = 1'000'000;  // visible pairs x heads from which right rows are left to the kernels

bool same_row(const faults_detail::Row& a, const faults_detail::Row& b) {
  return a.written == b.written && a.req == b.req && a.query_token == b.query_token && a.query_head == b.query_head &&
         a.first_token == b.first_token && a.query_len == b.query_len && a.seq_len == b.seq_len && a.cached_len == b.cached_len &&
         a.q_pos == b.q_pos && a.causal == b.causal;
}

/// Rows that the model computes otherwise than the truth does, as far as `row` tells.
std::vector<RowHead> changed_rows(const Facts& f, const Model& model) {
  const Model truth(f);
  std::vector<RowHead> rows;
  for (std::int64_t t = 0; t < f.num_tokens; ++t)
    for (std::int64_t h = 0; h < f.num_q_heads; ++h)
      if (!same_row(model.row(t, h), truth.row(t, h))) rows.push_back({t, h});
  return rows;
}

void compute(const Facts& f, const Model& model, const std::vector<RowHead>& rows) {
  const std::size_t num_threads = rows.size() >= kThreadedPairs ? threads::available() : 1;
  threads::for_each_index(semantics::ceil_div(rows.size(), kRowsAtOnce), num_threads, [&](std::size_t chunk) {
    const std::size_t first = chunk * kRowsAtOnce;
    const std::span<const RowHead> some(rows.data() + first, std::min(kRowsAtOnce, rows.size() - first));
    const std::vector<RowResult> results = evaluate(model, some);
    for (std::size_t j = 0; j < some.size(); ++j) store_row(f.batch, some[j], results[j]);
  });
}

/// The rows that the fault leaves alone, computed by the planned kernel. Needs an output of its own: unwritten rows keep their
/// bytes.
Status attend_right_rows(const Facts& f, const std::vector<RowHead>& changed) {
  Batch b = f.batch;
  std::vector<std::byte> output(static_cast<std::size_t>(b.output.num_elements() * itemsize(b.output.dtype)));
  std::vector<float> lse(static_cast<std::size_t>(b.query.shape[0] * f.num_q_heads));
  b.output = Tensor::contiguous(output.data(), f.batch.output.dtype, b.query.shape[0], f.num_q_heads, f.v_head_dim);
  if (b.lse.present()) b.lse = Tensor::contiguous(lse.data(), DType::f32, b.query.shape[0], f.num_q_heads);
  const Result<Plan> planned = plan(b, f.stored, f.options);
  if (!planned.ok()) return planned.status();
  std::vector<std::byte> workspace(workspace_bytes(planned.value()) + 64);
  void* start = workspace.data();
  std::size_t room = workspace.size();
  std::align(64, workspace_bytes(planned.value()), start, room);
  const std::span<std::byte> aligned(static_cast<std::byte*>(start), workspace_bytes(planned.value()));
  if (const Status status = attend(planned.value(), b, f.stored, f.options, aligned); !status.ok()) return status;
  std::vector<bool> skip(lse.size(), false);
  for (const RowHead& at : changed) skip[static_cast<std::size_t>(at.token * f.num_q_heads + at.head)] = true;
  RowResult row;
  row.out.resize(static_cast<std::size_t>(f.v_head_dim));
  for (std::int64_t t = 0; t < f.num_tokens; ++t)
    for (std::int64_t h = 0; h < f.num_q_heads; ++h) {
      const std::int64_t at = t * f.num_q_heads + h;
      if (skip[static_cast<std::size_t>(at)]) continue;
      for (std::int64_t d = 0; d < f.v_head_dim; ++d)
        row.out[static_cast<std::size_t>(d)] = semantics::load(b.output.data, b.output.dtype, at * f.v_head_dim + d);
      row.lse = lse[static_cast<std::size_t>(at)];
      store_row(f.batch, {t, h}, row);
    }
  return {};
}

/// Sets padding rows to 0 under Padding::zero; no fault of the catalogue concerns padding rows.
void zero_padding(const Facts& f) {
  if (f.batch.padding != Padding::zero) return;
  const RowResult zero = {.out = std::vector<double>(static_cast<std::size_t>(f.v_head_dim)),
                          .lse = -std::numeric_limits<double>::infinity()};
  for (std::int64_t t = f.num_tokens; t < f.batch.query.shape[0]; ++t)
    for (std::int64_t h = 0; h < f.num_q_heads; ++h) store_row(f.batch, {t, h}, zero);
}

/// Writes all rows, or only `tokens`, as a kernel with the fault would.
Status attend_planted(const Batch& batch, const KVCache& cache, const Options& options, std::string_view id,
                      std::optional<std::span<const std::int64_t>> tokens) {
  const faults_detail::Fault* fault = faults_detail::find(id);
  if (fault == nullptr) return {Code::invalid_argument, formatted("no fault is called '{}'; faults() lists them", id)};
  if (const Findings findings = check(batch, cache, options, Depth::tables); !findings.ok()) return findings.status();
  const Facts facts(batch, cache, options);
  for (const std::int64_t t : tokens.value_or(std::span<const std::int64_t>()))
    if (t < 0 || t >= facts.num_tokens)
      return {Code::invalid_argument, formatted("token {} is outside the batch of {}", t, facts.num_tokens)};
  const faults_detail::Suspects suspects = fault->suspects({facts, {}});
  if (suspects.list.empty()) return {Code::unsupported, formatted("{} cannot show here: {}", id, suspects.why_not)};
  const faults_detail::Suspect& suspect = suspects.list.front();
  Model model(facts);
  suspect.plant(model);

  std::vector<RowHead> rows;
  const auto add = [&](std::int64_t t) {
    for (std::int64_t h = 0; h < facts.num_q_heads; ++h) rows.push_back({t, h});
  };
  const bool large = problem_of(batch, cache, options).visible_pairs() * facts.num_q_heads >= kLargeBatch;
  if (tokens) {
    for (const std::int64_t t : *tokens) add(t);
  } else if (suspect.rows_only && large) {
    rows = changed_rows(facts, model);
    if (const Status status = attend_right_rows(facts, rows); !status.ok()) return status;
  } else {
    for (std::int64_t t = 0; t < facts.num_tokens; ++t) add(t);
  }
  compute(facts, model, rows);
  if (!tokens) zero_padding(facts);
  return {};
}

/// Turns exceptions into a status: no exception leaves the library.
Status guarded(const Batch& batch, const KVCache& cache, const Options& options, std::string_view id,
               std::optional<std::span<const std::int64_t>> tokens) try {
  return attend_planted(batch, cache, options, id, tokens);
} catch (...) {
  return batch::caught("attend_with_fault");
}

}  // namespace

Status attend_with_fault(const Batch& batch, const KVCache& cache, const Options& options, std::string_view id) {
  return guarded(batch, cache, options, id, std::nullopt);
}

Status attend_with_fault(const Batch& batch, const KVCache& cache, const Options& options, std::string_view id,
                         std::span<const std::int64_t> tokens) {
  return guarded(batch, cache, options, id, tokens);
}

}  // namespace quire
