// One judgement for kernels and mutants alike: made data with poison, guarded outputs, the fp64 reference, repeats to the bit.
//
// A kernel under test is a function; a finding is a sentence. Hazard tests demand none, planted-fault tests demand some.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "quire/attention.hpp"
#include "quire/capture.hpp"
#include "quire/diagnose.hpp"
#include "semantics/dtype.h"

namespace quire::test {

/// Attends `c` cut for `num_threads`; reports how many output rows it wrote.
using Attend = std::function<Status(const Case& c, int num_threads, std::int64_t& rows)>;

/// attend() by a plan, in a workspace of NaN: partial results must be written before they are merged.
inline Status attend_planned(const Plan& plan, const Case& c, int num_threads, std::int64_t& rows) {
  std::vector<float> memory(workspace_bytes(plan) / sizeof(float) + 32, std::nanf(""));
  auto address = (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64;
  const std::span<std::byte> workspace(reinterpret_cast<std::byte*>(address), workspace_bytes(plan));
  const std::unique_ptr<Executor> executor = make_thread_pool(std::min(num_threads, 2));
  std::vector<RowCount> counts;
  AttendOptions options;
  options.executor = executor.get();
  options.rows = &counts;
  const Status status = attend(plan, c.batch, c.cache, c.options, workspace, options);
  rows = 0;
  for (const RowCount& count : counts) rows += count.rows;
  return status;
}

/// plan() with the kernel forced, then attend().
inline Attend kernel_under_test(const std::string& kernel, bool batch_invariant = false) {
  return [kernel, batch_invariant](const Case& c, int num_threads, std::int64_t& rows) -> Status {
    const Result<Plan> plan = quire::plan(c.batch, c.cache, c.options,
                                          {.kernel = kernel, .batch_invariant = batch_invariant, .num_threads = num_threads});
    if (!plan.ok()) return plan.status();
    if (plan->kernel != kernel) return {Code::internal_error, "plan chose " + plan->kernel};
    return attend_planned(plan.value(), c, num_threads, rows);
  };
}

/// How output rows lie in memory.
enum class Spread { contiguous, gaps_between_heads, every_other_element };

/// A view of a tensor's shape inside a larger block in which every other byte is a canary and every element NaN.
class Guarded {
 public:
  Guarded(const Tensor& like, Spread spread) {
    view = like;
    const std::int64_t dim = spread == Spread::every_other_element ? 2 : 1;
    const std::int64_t gap = spread == Spread::contiguous ? 0 : 3;
    std::int64_t stride = dim;
    for (int i = view.rank - 1; i >= 0; --i) {
      view.stride[i] = stride;
      stride = stride * view.shape[i] + gap;
    }
    const std::int64_t size = itemsize(view.dtype);
    bytes_.assign(static_cast<std::size_t>((stride + 2 * kGuard) * size) + 64, kCanary);
    offset_ = (64 - reinterpret_cast<std::uintptr_t>(bytes_.data()) % 64) % 64 + static_cast<std::size_t>(kGuard * size);
    view.data = bytes_.data() + offset_;
    owned_.assign(bytes_.size(), false);
    for_each([&](std::int64_t element) {
      semantics::store(view.data, view.dtype, element, std::nanf(""));
      for (std::int64_t b = 0; b < size; ++b) owned_[offset_ + static_cast<std::size_t>(element * size + b)] = true;
    });
  }

  Tensor view;

  std::int64_t damaged_canaries() const {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < bytes_.size(); ++i) count += !owned_[i] && bytes_[i] != kCanary ? 1 : 0;
    return count;
  }

  /// Elements in index order, as bits.
  std::vector<std::uint32_t> bits() const {
    std::vector<std::uint32_t> all;
    for_each(
        [&](std::int64_t element) { all.push_back(semantics::float_to_bits(semantics::load(view.data, view.dtype, element))); });
    return all;
  }

 private:
  static constexpr std::uint8_t kCanary = 0xA5;
  static constexpr std::int64_t kGuard = 64;  // elements before and after

  template <typename Visit>
  void for_each(Visit&& visit) const {
    const std::int64_t inner = view.rank == 3 ? view.shape[2] : 1;
    for (std::int64_t i = 0; i < view.shape[0]; ++i)
      for (std::int64_t j = 0; j < view.shape[1]; ++j)
        for (std::int64_t k = 0; k < inner; ++k)
          visit(i * view.stride[0] + j * view.stride[1] + (view.rank == 3 ? k * view.stride[2] : 0));
  }

  std::vector<std::uint8_t> bytes_;
  std::vector<bool> owned_;
  std::size_t offset_ = 0;
};

/// The bits of one run, or why there are none.
struct Run {
  std::vector<std::uint32_t> output, lse;
  bool operator==(const Run&) const = default;
};

/// Runs with guarded outputs. `judge_values` also compares with the reference.
inline Run run_guarded(const Case& made, const Attend& attend, Spread spread, int num_threads, const Reference* expected,
                       std::vector<std::string>& findings) {
  Case c = made;  // views only: the data stays where it is
  Guarded output(made.batch.output, spread);
  c.batch.output = output.view;
  std::optional<Guarded> lse;
  if (made.batch.lse.present()) c.batch.lse = lse.emplace(made.batch.lse, spread).view;

  std::int64_t rows = -1;
  if (const Status status = attend(c, num_threads, rows); !status.ok()) {
    findings.push_back("call failed: " + status.message());
    return {};
  }
  const std::int64_t expected_rows = made.batch.query.shape[0] * made.batch.query.shape[1];
  if (rows != expected_rows) findings.push_back(fmt::format("rows: counted {}, the batch has {}", rows, expected_rows));
  const std::int64_t damaged = output.damaged_canaries() + (lse ? lse->damaged_canaries() : 0);
  if (damaged != 0) findings.push_back(fmt::format("canaries: {} bytes outside the output changed", damaged));
  if (expected != nullptr) {
    const Comparison comparison = compare(c.batch.output, c.batch.lse, *expected);
    if (!comparison.ok) findings.push_back("values: " + comparison.text);
  }
  return {output.bits(), lse ? lse->bits() : std::vector<std::uint32_t>{}};
}

/// Replaces NaN by large finite garbage and impossible page ids by page 0, which is legal and wrong. Made cases hold NaN and
/// such ids only where nothing may be read.
inline void poison_with_finite_garbage(const Case& c) {
  for (const Tensor* t : {&c.cache.k, &c.cache.v, &c.batch.key, &c.batch.value})
    for (std::int64_t i = 0; t->present() && i < t->num_elements(); ++i)
      if (std::isnan(semantics::load(t->data, t->dtype, i))) semantics::store(t->data, t->dtype, i, i % 2 == 0 ? 97.0f : -120.0f);
  const Tensor& table = c.batch.block_table;
  for (std::int64_t i = 0; i < table.num_elements(); ++i) {
    if (semantics::load_index(table.data, table.dtype, i) < num_pages(c.cache)) continue;
    if (table.dtype == DType::i64) {
      static_cast<std::int64_t*>(table.data)[i] = 0;
    } else {
      static_cast<std::int32_t*>(table.data)[i] = 0;
    }
  }
}

/// All findings about `attend` on one case: values, rows, canaries, bits under repetition, threads and other poison.
/// Changes the poison of `c`.
inline std::vector<std::string> judge(const Case& c, const Attend& attend) {
  std::vector<std::string> findings;
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  if (!expected.ok()) return {"reference refused: " + expected.status().message()};
  const Run first = run_guarded(c, attend, Spread::contiguous, 1, &expected.value(), findings);
  const Run again = run_guarded(c, attend, Spread::gaps_between_heads, 1, nullptr, findings);
  if (!(first == again)) findings.push_back("bits: a second run differs");
  const Run threads = run_guarded(c, attend, Spread::every_other_element, 8, nullptr, findings);
  if (!(first == threads)) findings.push_back("bits: cut for 13 threads differs from 1");
  poison_with_finite_garbage(c);
  const Run garbage = run_guarded(c, attend, Spread::contiguous, 1, nullptr, findings);
  if (!(first == garbage)) findings.push_back("bits: finite garbage where nothing may be read changes the output");
  return findings;
}

inline std::vector<std::string> judge(const ProblemLine& line, const Attend& attend) {
  const Result<Case> c = make_case(line);
  if (!c.ok()) return {"make_case: " + c.status().message()};
  return judge(c.value(), attend);
}

/// The message of a failing test: what is wrong, and the line that reruns it.
inline std::string report(const ProblemLine& line, const std::vector<std::string>& findings) {
  std::string text = "rerun: quire run '" + to_string(line) + "'";
  for (const std::string& finding : findings) text += "\n  " + finding;
  return text;
}

}  // namespace quire::test
