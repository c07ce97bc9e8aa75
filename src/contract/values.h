// SPDX-License-Identifier: Apache-2.0
// Stage: contract. The rules about what tensors hold, alone; and what a ledger learns of an append.
#pragma once

#include "quire/contract.hpp"

namespace quire::contract {

/// Findings of check() at Depth::tables in tables, lengths, slots and scales. Shapes, strides, types and addresses of the call
/// are those of one in which check() found nothing, and all tensors are in host memory.
Findings check_values(const Batch& batch, const KVCache& cache, const Options& options) noexcept;

/// The rules of a cache by itself, at depth metadata; with a ledger, that it is of this cache (Q-L05).
Findings check_cache(const KVCache& cache, const SlotLedger* ledger = nullptr) noexcept;

/// Records the slots of an append that was done: who wrote, and digests if the ledger has them. Waits for a device, whose slots
/// and pages are read.
Status record_append(SlotLedger& ledger, const KVCache& cache, const Tensor& slot_mapping, std::span<const WriteTag> tags);

}  // namespace quire::contract
