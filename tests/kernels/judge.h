// SPDX-License-Identifier: Apache-2.0
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
Status attend_planned(const Plan& plan, const Case& c, int num_threads, std::int64_t& rows);

/// plan() with the kernel forced, then attend().
Attend kernel_under_test(const std::string& kernel, bool batch_invariant = false);

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
Run run_guarded(const Case& made, const Attend& attend, Spread spread, int num_threads, const Reference* expected,
                std::vector<std::string>& findings);

/// Replaces NaN by large finite garbage and impossible page ids by page 0, which is legal and wrong. Made cases hold NaN and
/// such ids only where nothing may be read, padding rows of query included.
void poison_with_finite_garbage(const Case& c);

/// All findings about `attend` on one case: values, rows, canaries, bits under repetition, threads and other poison.
/// Changes the poison of `c`.
std::vector<std::string> judge(const Case& c, const Attend& attend);

std::vector<std::string> judge(const ProblemLine& line, const Attend& attend);

/// The message of a failing test: what is wrong, and the line that reruns it.
std::string report(const ProblemLine& line, const std::vector<std::string>& findings, const std::string& kernel = {});

}  // namespace quire::test
