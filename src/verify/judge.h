// SPDX-License-Identifier: Apache-2.0
// The checks: one target, one case, a verdict per check. Implementations under test and planted faults go through the same code.
//
// A Judge runs in phases, because poison is put into the one case that all judges of it share: on_zeros, then (with the case
// poisoned by the caller) on_nan and on_garbage, then, with zeros again, on_bits. judge() does all of it for one target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cases/strided_case.h"
#include "quire/tools/verify.hpp"
#include "verify/guarded.h"
#include "verify/prepare.h"

namespace quire::verify_detail {

/// The names of all checks, in the order in which they are made and reported.
const std::vector<std::string>& check_names();

/// The first check that failed; null if none did.
const CheckResult* failed_check(const std::vector<CheckResult>& checks);

/// Memory that one call wrote, and its status.
struct Written {
  Status status;
  std::string kernel;
  std::vector<std::byte> out, lse;  ///< elements in index order
  std::int64_t damaged = 0;         ///< bytes outside the elements that changed
  bool same_bits(const Written& other) const { return out == other.out && lse == other.lse; }
};

class Judge {
 public:
  /// `p` and `target` must outlive the judge. Only the checks in `asked` are made and reported.
  Judge(const Target& target, const Prepared& p, std::set<std::string> asked);

  void on_zeros();
  void on_nan() { judge_poison("nan_poison", PoisonKind::nan); }
  void on_garbage() { judge_poison("garbage_poison", PoisonKind::finite_garbage); }
  void on_bits();

  bool refused() const { return refused_; }
  bool failed() const { return failed_check(results_) != nullptr; }
  /// Checks in the order of check_names(); status, kernel, reason and counts. `seconds` is the caller's to know.
  CaseResult result() const;

  /// Output of the first call, as a tensor of the whole batch.
  Tensor output() const;

  /// Whether the first call moved an element: by more than a unit in its last place and 2^-16 of sum p |V|, which is more than
  /// any order of f32 sums does.
  bool moved_an_element() const;

  /// The case with every chosen input as a view, in the arrangement of the case's seed. One kind of poison in two takes strides
  /// that no engine has, if the target takes these.
  Case view(PoisonKind between, const cases::Chosen& chosen = nullptr) const;

  /// Why the case is not asked with views, which would fill all memory of a sparse cache; empty if it is.
  std::string no_views() const;

 private:
  friend std::string inputs_to_blame(const Target& target, const Prepared& p);
  bool fails_on_views(const std::vector<std::string>& names) const;
  bool asks(const std::string& check) const { return asked_.contains(check); }
  /// Keeps the worse of two results for one check.
  void report(const std::string& check, CheckState state, std::string text, double worst_ratio = 0);
  void skip(const std::string& check, std::string reason) { report(check, CheckState::skipped, std::move(reason)); }

  Written call(const AttendCase& attend, Spread spread) const { return call(attend, spread, p_.c); }
  Written call(const AttendCase& attend, Spread spread, Case c) const;
  bool wants_lse() const;
  void judge_values(const Written& w, const std::string& values_check, const std::string& lse_check);
  void judge_rows();
  std::string written_padding() const;
  void drop_padding(Written& w) const;
  void judge_poison(const std::string& check, PoisonKind kind);
  std::string wrong_on_views(const Written& w) const;
  void judge_views(PoisonKind kind);
  bool passes_with_gaps();
  void judge_repeat();
  void judge_strides_and_threads();
  bool strides_and_threads_at_once();
  bool is_large() const;
  bool judge_lse_moved() const;
  void judge_slices(const std::string& check, std::int64_t chunk);

  const Target& target_;
  const Prepared& p_;
  std::set<std::string> asked_;
  bool refused_ = false;
  bool gaps_passed_ = false;     ///< a call with Spread::gaps wrote what the first call wrote
  std::set<PoisonKind> viewed_;  ///< kinds of poison between the elements of views that strided_inputs has been asked with
  bool bits_differed_ = false;   ///< bits of two calls differed that should be the same
  std::string reason_;
  Written first_;
  std::vector<CheckResult> results_;
};

/// Names a small set of inputs that still fail strided_inputs when they alone are views: "block_table"; empty if there is none.
/// Makes about ten calls.
std::string inputs_to_blame(const Target& target, const Prepared& p);

/// Poisons the case for one phase; a sparse case stays as it is.
Status poison(Prepared& p, PoisonKind kind);

/// Runs all phases for one target. Afterwards the case holds zeros in memory that no kernel may read.
CaseResult judge(const Target& target, Prepared& p, const std::set<std::string>& asked);

/// Returns every check except disabled ones and those that the target skips.
std::set<std::string> asked_checks(const Target& target, const std::vector<std::string>& disabled);

}  // namespace quire::verify_detail
