// SPDX-License-Identifier: Apache-2.0
// Kernels and mutants as targets of verify's judge (src/verify/judge.h), which makes all checks of one case.
//
// A kernel under test is a function; a finding is a sentence. Hazard tests demand none, planted-fault tests demand some.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "quire/attention.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "semantics/dtype.h"
#include "verify/prepare.h"

namespace quire::test {

using verify_detail::Special;

/// Attends `c` cut for `num_threads`; reports how many output rows it wrote.
using Attend = std::function<Status(const Case& c, int num_threads, std::int64_t& rows)>;

/// attend() by a plan, in a workspace of NaN: partial results must be written before they are merged.
Status attend_planned(const Plan& plan, const Case& c, int num_threads, std::int64_t& rows);

/// plan() with the kernel forced, then attend().
Attend kernel_under_test(const std::string& kernel, bool batch_invariant = false);

/// The case of a line, changed as the special says. A line without a case is an error of the test: it throws.
Case made(const ProblemLine& line, Special special = Special::none);

/// A case and its fp64 reference. A case that the reference refuses is an error of the test: it throws.
verify_detail::Prepared prepared(Case c);

/// All findings about `attend` on one case: every check of verify but alone and chunks, cut for 1 thread and for 8, and the count
/// of rows of every call. Changes the poison of `c`.
std::vector<std::string> judge(const Case& c, const Attend& attend);

std::vector<std::string> judge(const ProblemLine& line, const Attend& attend, Special special = Special::none);

/// The findings about one call: its values, count of rows and canaries.
std::vector<std::string> judge_one_call(const verify_detail::Prepared& p, const Attend& attend);

/// The message of a failing test: what is wrong, and the line that reruns it.
std::string report(const ProblemLine& line, const std::vector<std::string>& findings, const std::string& kernel = {});

}  // namespace quire::test
