// SPDX-License-Identifier: Apache-2.0
// The catalogue of known faults: mistakes that attention kernels and their callers have shipped, each as a mutant of the
// reference.
//
// One catalogue serves two tools. verify() plants every fault and demands that its own checks notice it (mutation score);
// diagnose() asks which fault explains an output that somebody else produced.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/batch.hpp"
#include "quire/status.hpp"

namespace quire {

/// An entry of faults.md.
struct FaultInfo {
  std::string id;      ///< stable, lower case: "query_start_loc_as_int32"
  std::string family;  ///< the file that holds it: rows, index_width, mask, tokens, split, pages, layout, heads, head_dims, ...
  std::string text;    ///< completes "a kernel that ...": "reads an int64 query_start_loc as int32"
  std::string seen;    ///< place in the field where the fault was seen, or empty
  std::string next;    ///< advice for the next step if this fault is the cause
};

/// All faults, ordered by family; ids are unique.
const std::vector<FaultInfo>& faults();

/// Writes batch.output (and batch.lse, if present) as a kernel with this fault would, computed in fp64 and rounded once.
/// Rows that such a kernel never writes keep their bytes. Errors: invalid_argument for an unknown id, unsupported (with the
/// reason) if the fault cannot show on this batch, and whatever check() at depth tables finds.
Status attend_with_fault(const Batch& batch, const KVCache& cache, const Options& options, std::string_view id);
/// Writes rows `tokens` only; all others keep their bytes. invalid_argument for a token outside the batch.
Status attend_with_fault(const Batch& batch, const KVCache& cache, const Options& options, std::string_view id,
                         std::span<const std::int64_t> tokens);

}  // namespace quire
