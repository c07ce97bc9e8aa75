// SPDX-License-Identifier: Apache-2.0
// Calls on a GPU without a wait: keeps their tensors, so that the next call or synchronize() can say which rule broke.
#pragma once

#include <cstdint>
#include <memory>

#include "types.hpp"

namespace quire_python {

/// Remembers a call by a new ticket, for a while: the call's plan, and those of `arrays` whose values say which rule was broken
/// (lengths, tables, scales). Query, output and cache are not kept alive.
std::uint64_t defer(const quire::Batch& batch, const quire::KVCache& cache, const quire::Options& options,
                    std::shared_ptr<const quire::Plan> plan, const CallArrays& arrays);
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
