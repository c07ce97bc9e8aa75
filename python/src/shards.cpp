// SPDX-License-Identifier: Apache-2.0
// Rules that the package quire_distributed asks for: shards, and what the ranks of a group say about one step.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "arrays.hpp"
#include "errors.hpp"
#include "ledger.hpp"
#include "quire/shards.hpp"
#include "types.hpp"

namespace quire_python {
namespace {

using quire::ContextShard;
using quire::Findings;
using quire::HeadShard;

std::int32_t narrow(std::int64_t value, const char* name) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (value < -kMost || value > kMost)
    throw_error(quire::Code::invalid_argument,
                std::string(name) + ": " + std::to_string(value) + ", expected at most " + std::to_string(kMost) + " ranks");
  return static_cast<std::int32_t>(value);
}

ContextShard context_shard(std::int64_t rank, std::int64_t world, std::int64_t interleave, std::int64_t span) {
  return {.rank = narrow(rank, "rank"), .world = narrow(world, "world"), .interleave = interleave, .span = span};
}

Findings check_slots(std::int64_t rank, std::int64_t world, std::int64_t interleave, std::int64_t span, nb::handle slot_mapping,
                     nb::handle positions) {
  const std::vector<std::int64_t> slots = index_list(slot_mapping, "slot_mapping");
  const std::vector<std::int64_t> where = index_list(positions, "positions");
  if (slots.size() != where.size())
    throw_error(quire::Code::invalid_argument, "positions: " + std::to_string(where.size()) + " entries, expected " +
                                                   std::to_string(slots.size()) + " as slot_mapping");
  return quire::check_shard_slots(context_shard(rank, world, interleave, span), slots, where);
}

Findings check_shard_ledger(std::int64_t rank, std::int64_t world, std::int64_t interleave, std::int64_t span,
                            const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PyLedger& ledger) {
  const BatchForCall call = batch.to_read(cache);
  const quire::Batch& b = call.views;
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  const nb::gil_scoped_release unlocked;
  return quire::check_shard_ledger(context_shard(rank, world, interleave, span), b, c, o, ledger.ledger);
}

Findings check_ranks(const std::vector<std::string>& names, const std::vector<std::int64_t>& facts) {
  return quire::check_ranks(names, facts);
}

/// (query_start_loc, seq_lens, request, causal, q_begin, key_begin); the last two are empty if absent.
nb::tuple local_lengths(std::int64_t rank, std::int64_t world, std::int64_t interleave, std::int64_t span,
                        nb::handle query_start_loc, nb::handle seq_lens, std::optional<std::int64_t> sliding_window) {
  const ContextShard shard = context_shard(rank, world, interleave, span);
  const std::vector<std::int64_t> starts = index_list(query_start_loc, "query_start_loc");
  const std::vector<std::int64_t> lengths = index_list(seq_lens, "seq_lens");
  const quire::LocalLengths made = unwrap(quire::local_lengths(shard, starts, lengths, sliding_window));
  return nb::make_tuple(made.query_start_loc, made.seq_lens, made.request,
                        std::vector<std::int64_t>(made.causal.begin(), made.causal.end()), made.q_begin, made.key_begin);
}

}  // namespace

void bind_shards(nb::module_& m) {
  m.def(
      "check_context_shard",
      [](std::int64_t rank, std::int64_t world, std::int64_t interleave, std::int64_t span, std::int64_t page_size) {
        return quire::check_shard(context_shard(rank, world, interleave, span), page_size);
      },
      nb::arg("rank"), nb::arg("world"), nb::arg("interleave"), nb::arg("span"), nb::arg("page_size"),
      "Rules Q-D01 and Q-D02, and Q-D04 if page_size is not 0.");
  m.def(
      "check_head_shard",
      [](std::int64_t rank, std::int64_t world, std::int64_t num_q_heads, std::int64_t num_kv_heads) {
        return quire::check_shard(HeadShard{narrow(rank, "rank"), narrow(world, "world"), num_q_heads, num_kv_heads});
      },
      nb::arg("rank"), nb::arg("world"), nb::arg("num_q_heads"), nb::arg("num_kv_heads"), "Rules Q-D01 and Q-D03.");
  m.def("check_shard_slots", &check_slots, nb::arg("rank"), nb::arg("world"), nb::arg("interleave"), nb::arg("span"),
        nb::arg("slot_mapping"), nb::arg("positions"),
        nb::sig("def check_shard_slots(rank: int, world: int, interleave: int, span: int, slot_mapping: numpy.typing.ArrayLike, "
                "positions: numpy.typing.ArrayLike) -> Findings"),
        "Rule Q-D06.");
  m.def("check_shard_ledger", &check_shard_ledger, nb::arg("rank"), nb::arg("world"), nb::arg("interleave"), nb::arg("span"),
        nb::arg("batch"), nb::arg("cache"), nb::arg("options").none(), nb::arg("ledger"),
        nb::sig("def check_shard_ledger(rank: int, world: int, interleave: int, span: int, batch: Batch, cache: KVCache, "
                "options: Options | None, ledger: SlotLedger) -> Findings"),
        "Rules Q-L01 to Q-L05 of a rank's cache. The GIL is released.");
  m.def("local_lengths", &local_lengths, nb::arg("rank"), nb::arg("world"), nb::arg("interleave"), nb::arg("span"),
        nb::arg("query_start_loc"), nb::arg("seq_lens"), nb::arg("sliding_window") = nb::none(),
        nb::sig("def local_lengths(rank: int, world: int, interleave: int, span: int, query_start_loc: numpy.typing.ArrayLike, "
                "seq_lens: numpy.typing.ArrayLike, sliding_window: int | None = None) -> tuple[list[int], list[int], list[int], "
                "list[int], list[int], list[int]]"),
        "Lengths of a rank's batch: query_start_loc, seq_lens, request, causal, q_begin, key_begin; the last two may be empty.");
  m.def("check_ranks", &check_ranks, nb::arg("names"), nb::arg("facts"),
        "Rule Q-D05: facts[k * len(names) + i] is fact i of rank k.");
  m.def(
      "check_prompts",
      [](const PyOptions* options, bool ring) { return quire::check_prompts(options_or_default(options), ring); },
      nb::arg("options").none(), nb::arg("ring"), nb::sig("def check_prompts(options: Options | None, ring: bool) -> Findings"),
      "Rule Q-D07: options of prompts whose keys are gathered, or go round a ring.");
}

}  // namespace quire_python
