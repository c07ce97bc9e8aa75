// SPDX-License-Identifier: Apache-2.0
// Stage: contract. The rules about what tensors hold, alone.
#pragma once

#include "quire/contract.hpp"

namespace quire::contract {

/// Findings of check() at Depth::tables in tables, lengths, slots and scales. Shapes, strides, types and addresses of the call
/// are those of one in which check() found nothing, and all tensors are in host memory.
Findings check_values(const Batch& batch, const KVCache& cache, const Options& options) noexcept;

}  // namespace quire::contract
