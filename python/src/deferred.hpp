// SPDX-License-Identifier: Apache-2.0
// Calls on a GPU without a wait: keeps their tensors, so that the next call or synchronize() can say which rule broke.
#pragma once

#include <cstdint>
#include <memory>

#include "types.hpp"

namespace quire_python {

/// The arrays of a call whose values say which rule it broke: lengths, tables, scales.
struct SmallArrays {
  ArrayRef query_start_loc, seq_lens, block_table, cached_lens, k_scale, v_scale, alibi_slopes, sinks, q_scale, output_scale;
  ArrayRef causal, q_begin, key_begin, spans, prefix_lens, tree_mask, tree_lens;
};
/// Remembers a call by a new ticket, for a while: its small arrays and plan. Query, output and cache are not kept alive.
std::uint64_t defer(const quire::Batch& batch, const quire::KVCache& cache, const quire::Options& options,
                    std::shared_ptr<const quire::Plan> plan, SmallArrays kept);
/// A ticket without kept tensors, for arrays that must not be referenced: the broken rule cannot be named then.
std::uint64_t defer_untold();
/// The ticket of all prepared layers; the preparation's ticket reports broken rules of lengths and tables.
inline constexpr std::uint64_t kTicketOfLayers = std::uint64_t{1} << 62;
/// Forgets a ticket whose call was waited for, and whose error was raised.
void settle(std::uint64_t ticket);
/// Raises what became of an earlier call, if it broke. Does nothing while a stream that it may belong to is being captured.
void raise_if_broken(quire::Memory memory, void* stream);

/// The way a call deals with what the device finds.
enum class Wait { no, yes };
/// `wait` as an argument: None = `otherwise`. Raises ArgumentError, naming `argument`, if it would wait during a capture.
Wait wait_of(nb::handle wait, Wait otherwise, const char* argument, quire::Memory memory, void* stream);

void bind_deferred(nb::module_& m);

}  // namespace quire_python
