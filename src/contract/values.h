// SPDX-License-Identifier: Apache-2.0
// Stage: contract. Entry points for calls that check() has seen in part: the rules about values alone, the rules of a cache
// alone; and what a ledger learns of an append.
#pragma once

#include "quire/contract.hpp"

namespace quire::contract {

/// Findings of check() at Depth::tables in tables, lengths, slots and scales. Shapes, strides, types and addresses of the call
/// are those of one in which check() found nothing, and all tensors are in host memory.
Findings check_values(const Batch& batch, const KVCache& cache, const Options& options) noexcept;

/// Applies the rules of a cache by itself, at depth metadata. With a ledger, also Q-L05: the ledger describes this cache.
Findings check_cache(const KVCache& cache, const SlotLedger* ledger = nullptr) noexcept;

/// Records the slots of an append that was done: who wrote, and digests if the ledger has them. Waits for a device, whose slots
/// and pages are read.
Status record_append(SlotLedger& ledger, const KVCache& cache, const Tensor& slot_mapping, std::span<const WriteTag> tags);

}  // namespace quire::contract
