// SPDX-License-Identifier: Apache-2.0
// The suite's power: every planted fault goes through the checks that the target went through, until one of them notices it;
// and the same faults under the data and tolerance of vLLM's test_prefix_prefill.py.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "quire/tools/verify.hpp"
#include "verify/matrix.h"
#include "verify/prepare.h"

namespace quire::verify_detail {

/// A case on which faults are planted; `asked`: the target was judged on it (it did not refuse).
struct PowerCase {
  Entry entry;
  bool asked = true;
};

struct PowerOptions {
  std::set<std::string> asked;    ///< checks that the target was asked
  std::set<std::string> skipped;  ///< checks that it could not be asked; they count as not asked
  int num_threads = 2;
  Strides strides = Strides::any;                                       ///< strides of the target's inputs
  RoundedRows rounded_rows;                                             ///< rounding whose tolerance the target was judged by
  std::function<bool(std::size_t killed, std::size_t total)> progress;  ///< returning false stops the run
};

/// Returns a result per fault, in the order of the catalogue; empty if stopped.
std::vector<MutantResult> measure_power(std::vector<PowerCase> cases, const PowerOptions& options);

/// A kind of case of vLLM's test_prefix_prefill.py.
struct PeerCase {
  std::string name, line;
  double atol = 0;
};
const std::vector<PeerCase>& peer_cases();

/// Ids in faults() of the ten faults of a published study of vLLM's test.
const std::vector<std::string>& study_faults();

/// Judges every fault that can show on the case by max |output - reference| > atol on a sample of rows.
Result<PeerPower> measure_peer(const PeerCase& c, int num_threads);

}  // namespace quire::verify_detail
