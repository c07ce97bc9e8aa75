// SPDX-License-Identifier: Apache-2.0
// Whether a plan may be used for a call: what every backend asks of the arguments, without reading a tensor.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// "attend: the plan was made for another batch: `what`; plan again for this step".
Status stale_plan(const std::string& what);

/// The plan's sizes, types and window against those of a batch whose metadata is sound. Allocates only to complain.
Status shapes_fit(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options);

/// Requests and tokens of a batch against the bounds of a GPU plan.
Status counts_within(const Plan& plan, const Batch& batch);

/// Checks lengths against the bounds of a GPU plan. Reads the index tensors, which must keep their rules, from host or device
/// memory, and waits for the device.
Status lengths_within(const Plan& plan, const Batch& batch);

/// Size, alignment, and rule Q-M37: of a batch whose metadata is sound. Allocates only to complain.
Status workspace_fits(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                      std::span<const std::byte> workspace);

}  // namespace quire::plan_detail
