// SPDX-License-Identifier: Apache-2.0
// Capacities of a GPU plan. Planning knows bounds, the device knows lengths; what follows holds for every batch within the
// bounds.
//
// Tiles. A request of s = query_len * group score rows has ceil(s / tile_rows) tiles, fewer than s / tile_rows + 1, and none if
// s is 0. Summed over requests:
//
//     tiles <= num_tokens * group / tile_rows + min(num_reqs, num_tokens)
//
// Parts, when the device chooses their size P. With K keys in all tiles and t = ceil(target_items / num_kv_heads) it starts at
// P >= K / t (it takes a bound for K, see key_tiles_of()) and cuts a tile of k keys into ceil(k / P) parts. Only tiles of more
// than P keys, fewer than t, come in several parts, each in fewer than k / P + 1. So
//
//     merges <= t        parts of split tiles <= 2 t        slices <= tiles + 2 t        partials <= 2 t * num_kv_heads
//
// Where a device rounds otherwise, it doubles P until they hold; it ends there, because with P past the last key every tile is
// one part, and that needs `tiles` slices and nothing else.
//
// Parts of fixed size (batch_invariant: a row's parts must not depend on the batch). A tile's keys lie in [0, max_seq_len), and
// with a window in at most window + tile_rows - 1 positions (window_right more, where requests are not causal), so it touches at
// most
//
//     n = min(ceil(max_seq_len / split_keys), (window + window_right + tile_rows - 2) / split_keys + 2)
//
// parts: slices <= tiles * n, merges <= tiles and partials <= tiles * n * num_kv_heads, or none of both if n is 1.
#include "plan/device_lists.h"
#include "text/formatted.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quire::plan_detail {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

// Blocks of 128 threads, as many as keep their shared memory at 228 KiB / 4 per multiprocessor; two items for each block hide the
// difference between long and short ones.
constexpr std::int64_t kBlocksPerMultiprocessor = 4;
constexpr std::int64_t kItemsPerBlock = 2;
// Two blocks of up to 112 KiB of shared memory and 255 registers a thread fill a multiprocessor.
constexpr std::int64_t kMmaBlocksPerMultiprocessor = 2;
// What registers and 64 KiB of shared memory leave room for at head_dim 128 (docs/kernels/amd_matrix.md); not measured.
constexpr std::int64_t kMatrixBlocksPerUnit = 3;
// Long enough that most requests are one part; a fixed part of the contract "same bits in every batch".
constexpr std::int64_t kInvariantSplitKeys = 4096;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

DeviceList generic_list(const Plan& plan) {
  DeviceList all;
  all.tile_rows = kGenericTileRows;
  all.tile_keys = kGenericTileKeys;
  all.max_rows = kMaxInt32;
  all.num_blocks = plan.num_threads * kBlocksPerMultiprocessor;
  all.target_items = all.num_blocks * kItemsPerBlock;
  all.split_keys = plan.batch_invariant ? kInvariantSplitKeys : 0;
  return all;
}

/// Decode rows and the rest. One item a block measured fastest for both: a second round of items costs more than it evens out.
/// A list that no request of the plan can enter is left out: it would cost two launches (the first where one query row is already
/// more score rows than it takes). A row's bits would depend on the list that serves it, so batch_invariant plans have the tall
/// one alone.
std::vector<DeviceList> two_lists(const Plan& plan, std::int64_t short_rows, std::int64_t blocks_per_unit) {
  DeviceList tall;
  tall.tile_rows = kTallTileRows;
  tall.tile_keys = kMmaTileKeys;
  tall.max_rows = kMaxInt32;
  tall.num_blocks = tall.target_items = plan.num_threads * blocks_per_unit;
  tall.split_keys = plan.batch_invariant ? kInvariantSplitKeys : 0;
  if (plan.batch_invariant || plan.problem.group() > short_rows) return {tall};
  DeviceList rows_of_decode = tall;
  rows_of_decode.tile_rows = rows_of_decode.max_rows = tall.min_rows = short_rows;
  if (plan.bounds.max_query_len * plan.problem.group() > short_rows) return {rows_of_decode, tall};
  rows_of_decode.max_rows = kMaxInt32;  // also right, if slower, should the bounds be wrong
  return {rows_of_decode};
}

std::vector<DeviceList> mma_lists(const Plan& plan) { return two_lists(plan, kShortTileRows, kMmaBlocksPerMultiprocessor); }

/// Tiles of whole groups, half for each block of a pair; a block a multiprocessor. One group has to fit a block.
void make_prefill_list(DeviceList& list, const Plan& plan) {
  const std::int64_t group = plan.problem.group(), block_rows = kPrefillRows / 2;
  list.tile_rows = block_rows / group * group * 2;
  list.tile_keys = prefill_tile_keys(plan.problem.head_dim);
  list.num_blocks = std::max(2, plan.num_threads / 2 * 2);
  list.target_items = list.num_blocks / 2;
  list.rounded_weights = true;
}

/// Whether cuda_sm90's prefill takes long requests: its weights are rounded.
bool has_rounded_prefill(const Plan& plan) { return !plan.exact_weights && !plan.batch_invariant; }

/// Two launches more, and decode that waits for prefill to begin, cost up to 9 us (H200, 32 x 1k with 256 on 256: 68 us for 59),
/// and the shorter of the two is what can be saved. So a call is long enough for both if it would take 100 us to read what it
/// reads at 4.5 TB/s and compute what it computes at 600 TFLOP/s. Decode from fp8 caches needs all multiprocessors to convert
/// what memory delivers: nothing is idle.
bool is_worth_dividing(const Plan& plan) {
  if (is_fp8(plan.problem.kv_dtype)) return false;
  const Bounds& b = plan.bounds;
  const auto heads = static_cast<double>(plan.problem.num_q_heads), dim = static_cast<double>(plan.problem.head_dim);
  const auto most_keys = static_cast<double>(b.max_seq_len);
  const bool known = plan.assumptions.empty();
  const double bytes = known ? static_cast<double>(plan.kv_bytes)
                             : 2 * static_cast<double>(b.num_reqs * plan.problem.num_kv_heads) * most_keys * dim *
                                   static_cast<double>(itemsize(plan.problem.kv_dtype));
  const double flops = known ? plan.flops : 4 * static_cast<double>(b.num_tokens) * heads * dim * most_keys;
  return bytes / 4.5e12 + flops / 600e12 >= 100e-6;
}

/// Nobody said how long a request's query is at most, and several requests share the batch's tokens.
bool guesses_query_len(const Plan& plan) {
  return !plan.assumptions.empty() && plan.bounds.num_reqs > 1 && plan.bounds.max_query_len == plan.bounds.num_tokens;
}

/// Nobody said how long a request's query is at most, and all may be decode rows: no request needs more than `rows` score rows
/// for all tokens to be spoken for. So it is in most steps of an engine, and a division would cost them what it may save in
/// others.
bool may_be_decode_alone(const Plan& plan, std::int64_t rows) {
  return guesses_query_len(plan) && plan.bounds.num_tokens * plan.problem.group() <= plan.bounds.num_reqs * rows;
}

/// cuda_sm90's decode, without its number of blocks. Narrow tiles, or wide ones: where a group does not fit a narrow one, or
/// where all requests of the plan are known to fit the slices of wide ones and not all a narrow tile (speculative decoding).
DeviceList sm90_decode_list(const Plan& plan) {
  const std::int64_t wide = sm90_wide_rows(plan.problem.head_dim), both = wide * kSm90WideGroups;
  const std::int64_t most = plan.bounds.max_query_len * plan.problem.group();
  const std::int64_t limit = has_rounded_prefill(plan) ? kSm90RowsBesidePrefill : kSm90SlicedRows;
  DeviceList decode;
  decode.tile_keys = kMmaTileKeys;
  if (plan.batch_invariant) {  // the same tiles for all rows of all plans
    decode.tile_rows = wide;
    decode.max_rows = kMaxInt32;
    decode.split_keys = kSm90SplitKeys;
  } else if (plan.problem.group() > kShortTileRows || (most > kShortTileRows && most <= limit && !guesses_query_len(plan))) {
    decode.tile_rows = most <= wide ? wide : both;
    decode.max_rows = limit;
  } else {
    decode.tile_rows = decode.max_rows = kShortTileRows;
  }
  return decode;
}

/// Parts of a segment in narrow tiles, beyond which merging them, by one block, takes longer than they save: n tiles in p parts
/// take n / p tiles' time and then p parts', at least where p = sqrt(n tile / part).
std::int64_t most_parts(const Plan& plan) {
  constexpr std::int64_t kDimsAtOnce = 4 * 128;
  const std::int64_t rows = std::clamp<std::int64_t>(plan.bounds.max_query_len * plan.problem.group(), 1, kShortTileRows);
  const std::int64_t rounds = ceil_div(rows * plan.problem.head_dim, kDimsAtOnce);
  const std::int64_t span = plan.problem.sliding_window ? *plan.problem.sliding_window : plan.bounds.max_seq_len;
  const auto tiles = static_cast<double>(ceil_div(std::min(span, plan.bounds.max_seq_len), kMmaTileKeys));
  return std::max(kSm90ManyParts, static_cast<std::int64_t>(std::sqrt(tiles * kSm90TileByPart / static_cast<double>(rounds))));
}

/// Fewer blocks where there are few segments. (Wide tiles have kSm90WideShare, batch_invariant ones parts of a fixed size, and
/// beside prefill the device says how many blocks there are.)
void limit_parts(DeviceList& decode, const Plan& plan) {
  const std::int64_t segments = std::max<std::int64_t>(1, plan.bounds.num_reqs) * plan.problem.num_kv_heads;
  if (decode.tile_rows == kShortTileRows && segments < decode.num_blocks)
    decode.num_blocks = decode.target_items = std::min(decode.num_blocks, segments * most_parts(plan));
}

/// Decode rows (a longer request breaks the call), and the rest; all rows are the rest where a group is no decode's. Decode
/// blocks count merges in a place each, or each of two warpgroups does, and keep two partial results, for which one item a block
/// makes room. The rest goes to prefill where its weights may be rounded.
std::vector<DeviceList> sm90_lists(const Plan& plan) {
  DeviceList decode = sm90_decode_list(plan);
  decode.num_blocks = decode.target_items =
      plan.num_threads * sm90_decode_blocks(plan.problem.head_dim, itemsize(plan.problem.kv_dtype), decode.tile_rows);
  const bool has_decode = plan.problem.group() <= decode.max_rows;
  if (has_decode && plan.bounds.max_query_len * plan.problem.group() <= decode.max_rows) {
    limit_parts(decode, plan);
    return {decode};
  }
  DeviceList rest = mma_lists(plan).back();
  rest.min_rows = has_decode ? decode.max_rows : 0;
  if (has_rounded_prefill(plan)) make_prefill_list(rest, plan);
  rest.beside = has_decode && has_rounded_prefill(plan) && is_worth_dividing(plan) && !may_be_decode_alone(plan, decode.max_rows);
  return has_decode ? std::vector{decode, rest} : std::vector{rest};
}

/// The lists of a row of the kernel table, without their capacities.
std::vector<DeviceList> lists_of(const Plan& plan) {
  if (plan.kernel == "cuda_sm90") return sm90_lists(plan);
  if (plan.kernel == "cuda_mma") return mma_lists(plan);
  if (plan.kernel == "hip_matrix") return two_lists(plan, kMatrixShortRows, kMatrixBlocksPerUnit);
  return {generic_list(plan)};
}

/// Score rows of the lowest tiles that the device may make instead of the list's, where tensors do not suit tensor copies:
/// cuda_mma's, or cuda_generic's for what that has no instance for.
std::int64_t lowest_tile_rows(const DeviceList& list, const Plan& plan) {
  const Problem& p = plan.problem;
  const bool no_mma = plan.kernel == "cuda_sm90" && !has_mma_instance(p.q_dtype, p.kv_dtype, p.head_dim);
  if (no_mma) return std::min(list.tile_rows, kGenericTileRows);
  return std::min(list.tile_rows, list.rounded_weights ? kTallTileRows : list.tile_rows);
}

/// See the top of this file.
void set_capacities(DeviceList& list, const Plan& plan) {
  const Bounds& bounds = plan.bounds;
  const std::int64_t kv_heads = plan.problem.num_kv_heads;
  const bool decode = plan.kernel == "cuda_sm90" && is_sm90_decode(list);
  // Where the device deals parts of fixed size itself, requests without rows have numbers, too.
  const std::int64_t with_rows = decode ? bounds.num_reqs : std::min(bounds.num_reqs, bounds.num_tokens);
  const std::int64_t tiles = bounds.num_tokens * plan.problem.group() / lowest_tile_rows(list, plan) + with_rows;
  const std::int64_t taller = decode ? std::max<std::int64_t>(1, kTallTileRows / list.tile_rows) : 1;  // cuda_mma's tiles
  if (list.split_keys == 0) {
    const std::int64_t room = ceil_div(list.target_items, kv_heads);
    list.max_slices = tiles + 2 * room;
    list.max_merges = decode && list.tile_rows != kShortTileRows ? kSm90WideGroups * room : room;
    list.max_partials = 2 * room * kv_heads;
    if (decode && list.tile_rows != kShortTileRows) list.max_partials *= taller;
    return;
  }
  std::int64_t parts = std::max<std::int64_t>(1, ceil_div(bounds.max_seq_len, list.split_keys));
  const Problem& p = plan.problem;
  const bool sees_all_later_keys = (p.has_causal || !p.causal) && !p.window_right;
  if (p.sliding_window && !sees_all_later_keys) {
    const std::int64_t later = std::min(p.window_right.value_or(0), kMaxInt32);
    const std::int64_t span = std::min(*p.sliding_window, kMaxInt32) + later + list.tile_rows - 2;
    parts = std::min(parts, span / list.split_keys + 2);
  }
  list.max_slices = tiles * parts;
  list.max_merges = parts > 1 ? tiles : 0;
  list.max_partials = parts > 1 ? tiles * parts * kv_heads * taller : 0;
}

Status too_large(const char* what, std::int64_t value) {
  return {Code::unsupported, formatted("plan: {} {} does not fit the 32-bit numbers of GPU kernels", what, value)};
}

}  // namespace

Bounds bounds_of(const Problem& problem) {
  return {static_cast<std::int64_t>(problem.reqs.size()), problem.num_tokens() + problem.num_padding_rows,
          problem.max_query_len(), problem.max_seq_len()};
}

Status size_lists(Plan& plan) {
  const Bounds& b = plan.bounds;
  const Problem& p = plan.problem;
  for (const auto& [what, value] :
       {std::pair{"num_reqs", b.num_reqs}, std::pair{"max_seq_len", b.max_seq_len}, std::pair{"num_q_heads", p.num_q_heads},
        std::pair{"head_dim", p.head_dim}, std::pair{"page_size", p.page_size}})
    if (value > kMaxInt32) return too_large(what, value);
  if (b.num_tokens > kMaxInt32 / p.num_q_heads) return too_large("num_tokens * num_q_heads, from num_tokens", b.num_tokens);
  plan.lists = lists_of(plan);
  for (DeviceList& list : plan.lists) {
    set_capacities(list, plan);
    if (list.max_slices * plan.problem.num_kv_heads > kMaxInt32) return too_large("the number of work items", list.max_slices);
    if (list.max_partials > kMaxInt32) return too_large("the number of partial tiles", list.max_partials);
    constexpr double kMaxBytes = 1e18;
    if (static_cast<double>(list.max_partials * list.tile_rows) * static_cast<double>(p.head_dim) * 4 > kMaxBytes)
      return too_large("head_dim with that many partial tiles, head_dim", p.head_dim);
  }
  return {};
}

}  // namespace quire::plan_detail
