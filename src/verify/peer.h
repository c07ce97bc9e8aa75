// SPDX-License-Identifier: Apache-2.0
// The same catalogue under the data and tolerance of vLLM's test_prefix_prefill.py: what that test would notice.
#pragma once

#include <string>
#include <vector>

#include "quire/verify.hpp"

namespace quire::conformance {

/// One kind of case of that test.
struct PeerCase {
  std::string name, line;
  double atol = 0;
};
const std::vector<PeerCase>& peer_cases();

/// Ids in faults() of the ten faults of a published study of that test.
const std::vector<std::string>& study_faults();

/// Every fault that can show on the case, judged by max |output - reference| > atol on a sample of rows.
Result<PeerPower> measure_peer(const PeerCase& c, int num_threads);

}  // namespace quire::conformance
