// SPDX-License-Identifier: Apache-2.0
// cuda_sm90: Hopper's TMA and wgmma. Decode rows and the rest have a list each; the rest is prefill's where softmax weights may
// be rounded, and cuda_mma's or cuda_generic's elsewhere.
#include "plan/kernels/cuda_sm90.h"

#include <algorithm>
#include <cmath>

#include "plan/kernels/cuda_mma.h"
#include "plan/kernels/generic.h"
#include "plan/kernels/refusals.h"
#include "schedule/division.h"
#include "schedule/tiles.h"
#include "semantics/ceil_div.h"

namespace quire::plan_detail {
namespace {

/// Every row sees every key, whatever its position: prefill takes such requests without masks (Job::least_position), and from
/// caches of all kinds, but from packed 8-bit caches at head_dim 256.
bool sees_all_keys(const Problem& p) {
  if (p.layout == CacheLayout::packed && is_fp8(p.kv_dtype) && p.head_dim == 256) return false;
  return !p.causal && !p.has_causal && !p.has_q_begin && !p.sliding_window && !p.window_right && !p.alibi && !p.has_shapes();
}

bool has_wide_dims(const Problem& p) { return Sm90Tuning::has_wide_dims(p.head_dim, p.out_dim()); }

/// Dims for which decode and prefill have tiles, and what prefill alone does not take beside its wide ones.
void refuse_dims(const Problem& problem, Reasons& reasons) {
  const bool has_tiles = problem.head_dim == 64 || problem.head_dim == 128 || problem.head_dim == 256;
  if (has_tiles) return refuse_unequal_dims(problem, reasons);
  if (!has_wide_dims(problem)) {
    reasons.push_back(formatted("d is {} and dv {}, expected 64, 128, 256 or 512 for both, or 192 and 128", problem.head_dim,
                                problem.out_dim()));
    return;
  }
  if (!is_16_bit(problem.kv_dtype))
    reasons.push_back(formatted("kv is {}, expected f16 or bf16 at d={}", name(problem.kv_dtype), problem.head_dim));
  if (problem.layout == CacheLayout::packed)
    reasons.push_back(formatted("layout is packed, expected nhd or hnd at d={}", problem.head_dim));
}

/// Tokens of a TMA box, or of a part of one. A lane copies a box, and a tile of wide rows has more boxes than a warp has lanes if
/// boxes are of 8 tokens.
std::int64_t tokens_of_box(const Problem& p) { return p.layout == CacheLayout::packed || has_wide_dims(p) ? 16 : 8; }

/// 16-bit caches of rows. Over them, prefill has instances for masks of every kind, and serves all rows of calls with masks.
bool has_16_bit_rows(const Problem& p) { return is_16_bit(p.kv_dtype) && p.layout != CacheLayout::packed; }

/// Problems that src/backend/cuda/sm90/ reads by tensor copies.
Reasons sm90_refuses(const Problem& problem, const Device& device) {
  Reasons reasons;
  if (!is_16_bit(problem.q_dtype) && problem.q_dtype != DType::fp8_e4m3fn)
    reasons.push_back(formatted("q is {}, expected f16, bf16 or fp8_e4m3fn", name(problem.q_dtype)));
  if (problem.kv_dtype != problem.q_dtype && !is_nvidia_fp8(problem.kv_dtype))
    reasons.push_back(
        formatted("kv is {}, expected {} (as q), fp8_e4m3fn or fp8_e5m2", name(problem.kv_dtype), name(problem.q_dtype)));
  refuse_dims(problem, reasons);
  // Tiles of prefill hold whole groups.
  const std::int64_t widest = std::min(kSm90.sliced_rows, Sm90Tuning::prefill_tile(problem.head_dim, /*tall=*/false).rows());
  if (problem.group() > widest) reasons.push_back(formatted("group is {}, expected at most {}", problem.group(), widest));
  if (problem.page_size % tokens_of_box(problem) != 0)
    reasons.push_back(formatted("page is {}, expected a multiple of {}", problem.page_size, tokens_of_box(problem)));
  if (device.sm != 90) reasons.push_back(formatted("needs sm90, device {} is not", device.name));
  if (asks_for_wide_rows(problem)) reasons.push_back("out is f32, expected f16, bf16 or fp8_e4m3fn");
  refuse_unlike_types(problem, reasons);
  refuse_token_scales(problem, reasons);
  if (!has_16_bit_rows(problem) && !sees_all_keys(problem)) refuse_other_masks(problem, reasons);
  return reasons;
}

std::int64_t most_rows(const Plan& plan) { return plan.bounds.max_query_len * plan.problem.group(); }

/// Two launches more, and decode that waits for prefill to begin, cost up to 9 us (H200, 32 x 1k with 256 on 256: 68 us for 59),
/// and the shorter of the two is what can be saved. Decode from fp8 caches needs all SMs to convert what memory
/// delivers: nothing is idle.
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
  return bytes / kSm90.bytes_per_second + flops / kSm90.flops_per_second >= kSm90.min_divided_seconds;
}

/// Whether nobody said how long a request's query is at most, and several requests share the batch's tokens.
bool guesses_query_len(const Plan& plan) { return plan.bounds.query_len_from_shapes && plan.bounds.num_reqs > 1; }

/// Whether nobody said how long a request's query is at most, and all may be decode rows: no request needs more than `rows` score
/// rows for all tokens to be spoken for. So it is in most steps of an engine, and a division would cost them what it may save in
/// others.
bool may_be_decode_alone(const Plan& plan, std::int64_t rows) {
  return guesses_query_len(plan) && plan.bounds.num_tokens * plan.problem.group() <= plan.bounds.num_reqs * rows;
}

DeviceList stream_k_decode(const Plan& plan);

/// Whether cuda_mma serves what prefill does not.
bool mma_takes(const Problem& p) { return has_mma_instance(p) && p.is_causal_at_end(); }

/// The list that stands in for one of cuda_sm90, in its room, where tensors do not suit the kernel: Stream-K for cluster decode,
/// tiles of one KV head for tiles of two; for the others, which read by tensor copies, cuda_mma's tiles, or cuda_generic's for
/// types and masks that cuda_mma has no instance for.
DeviceList sm90_instead(const Plan& plan, const DeviceList& list) {
  if (list.role == Role::decode_cluster) return stream_k_decode(plan);
  DeviceList other = list;
  if (list.heads > 1) {
    other.heads = 1;
    other.tile_rows = other.max_rows = kSm90.narrow_rows;
    return other;
  }
  if (!mma_takes(plan.problem)) {
    other.kernel = rows::cuda_generic;
    other.role = Role::rows;
    other.tile_rows = std::min(list.tile_rows, kGeneric.tile_rows);
    other.tile_keys = kGeneric.tile_keys;
    other.num_blocks = plan.num_threads * kGeneric.blocks_per_unit;
    return other;
  }
  other.kernel = rows::cuda_mma;
  other.role = Role::short_rows;
  if (list.role == Role::decode) return other;  // decode tiles have the size of cuda_mma's short ones
  other.role = Role::tall_rows;
  other.tile_rows = kMmaTiles.tall_rows;
  other.tile_keys = kMmaTiles.tile_keys;
  if (list.role == Role::decode_wide) other.max_partials /= kMmaTiles.tall_rows / list.tile_rows;
  return other;
}
static_assert(kSm90.narrow_rows == kMmaTiles.short_rows && kSm90.tile_keys == kMmaTiles.tile_keys);

std::int64_t lowest_tile_rows(const Plan& plan, const DeviceList& list) {
  return std::min(list.tile_rows, sm90_instead(plan, list).tile_rows);
}

/// Two KV heads a narrow tile: where a token's heads lie side by side, rows of one head are 128 bytes, and the tile holds both
/// heads' rows of one token.
bool suits_head_pairs(const Plan& plan) {
  const Problem& p = plan.problem;
  return p.head_dim == Sm90Tuning::paired_head_dim && is_16_bit(p.kv_dtype) && p.layout == CacheLayout::nhd &&
         p.num_kv_heads % 2 == 0 && plan.bounds.max_query_len == 1;
}

/// The largest head_dim of cluster decode, whose registers hold all dims of an output row (src/backend/cuda/sm90/cluster/).
constexpr std::int64_t kMostClusterDims = 128;

/// Blocks of a cluster, as many as read the keys of all requests in one round; 0: too many requests.
std::int64_t blocks_of_cluster(const Plan& plan) {
  const std::int64_t segments = plan.bounds.num_reqs * plan.problem.num_kv_heads;
  if (segments < 1 || segments > plan.num_threads) return 0;
  for (std::int64_t blocks = kSm90.most_cluster; blocks > 2; blocks /= 2)
    if (segments * blocks <= std::min<std::int64_t>(kSm90.reading_blocks, plan.num_threads)) return blocks;
  return segments * 2 <= plan.num_threads ? 2 : 1;
}

/// Keys that a block of a cluster may have, so that it has not much more to do than Stream-K would give it, whatever the lengths
/// are.
std::int64_t keys_of_cluster_block(const Plan& plan) {
  const bool few_read = plan.bounds.num_reqs * plan.problem.num_kv_heads * blocks_of_cluster(plan) < kSm90.reading_blocks;
  return kSm90.most_cluster_keys / (few_read ? 2 : 1);
}

/// Keys that a row of a plan sees at most.
std::int64_t most_visible_keys(const Plan& plan) {
  return std::min(plan.bounds.max_seq_len, plan.problem.sliding_window.value_or(plan.bounds.max_seq_len));
}

ClusterReason cluster_reason(const Plan& plan) {
  const Problem& p = plan.problem;
  if (plan.batch_invariant) return ClusterReason::batch_invariant;
  if (plan.bounds.max_query_len != 1) return ClusterReason::query_len;
  if (p.group() > kSm90.narrow_rows) return ClusterReason::group;
  if (p.layout == CacheLayout::packed) return ClusterReason::layout;
  if (p.head_dim > kMostClusterDims) return ClusterReason::head_dim;
  if (p.page_size % kSm90.cluster_unit_keys != 0) return ClusterReason::page_size;
  const std::int64_t blocks = blocks_of_cluster(plan);
  if (blocks == 0) return ClusterReason::num_segments;
  return most_visible_keys(plan) <= blocks * keys_of_cluster_block(plan) ? ClusterReason::suits : ClusterReason::num_keys;
}

/// The condition of a plan that keeps clusters from its decode rows.
std::string obstacle_of(ClusterReason reason, const Plan& plan) {
  const Problem& p = plan.problem;
  switch (reason) {
    case ClusterReason::no_choice:
    case ClusterReason::suits: return "";
    case ClusterReason::batch_invariant: return "the plan is batch_invariant";
    case ClusterReason::query_len: return formatted("query_len is up to {}, expected 1", plan.bounds.max_query_len);
    case ClusterReason::group: return formatted("group is {}, expected at most {}", p.group(), kSm90.narrow_rows);
    case ClusterReason::layout: return "layout is packed, expected nhd or hnd";
    case ClusterReason::head_dim: return formatted("d is {}, expected at most {}", p.head_dim, kMostClusterDims);
    case ClusterReason::page_size:
      return formatted("page is {}, expected a multiple of {}", p.page_size, kSm90.cluster_unit_keys);
    case ClusterReason::num_segments:
      return formatted("{} requests x {} KV heads, expected 1 to {} (the SMs)", plan.bounds.num_reqs, p.num_kv_heads,
                       plan.num_threads);
    case ClusterReason::num_keys:
      return formatted("a row sees up to {} keys, expected at most {} (clusters of {} blocks, {} keys each)",
                       most_visible_keys(plan), blocks_of_cluster(plan) * keys_of_cluster_block(plan), blocks_of_cluster(plan),
                       keys_of_cluster_block(plan));
  }
  return "";
}

std::string sm90_decode_reason(const Plan& plan) {
  const DeviceList& list = plan.work().lists[0];
  if (list.cluster_reason == ClusterReason::no_choice) return "";
  if (list.cluster_reason == ClusterReason::suits)
    return formatted(
        "by clusters, not by Stream-K: {} clusters of {} blocks run at the same time, and no block has more than {} keys",
        plan.bounds.num_reqs * plan.problem.num_kv_heads, list.cluster, keys_of_cluster_block(plan));
  const char* way = list.split_keys > 0 ? "in parts of fixed size" : "by Stream-K";
  return formatted("{}, not by clusters: {}", way, obstacle_of(list.cluster_reason, plan));
}

/// Decode's tiles. Narrow ones, or wide ones: where a group does not fit a narrow one, or where all requests of the plan are
/// known to fit the slices of wide ones and not all a narrow tile (speculative decoding).
DeviceList decode_tiles(const Plan& plan) {
  const std::int64_t wide = kSm90.wide_rows(plan.problem.head_dim), most = most_rows(plan);
  const std::int64_t limit = may_round_weights(plan) ? kSm90.rows_beside_prefill : kSm90.sliced_rows;
  DeviceList decode;
  decode.kernel = rows::cuda_sm90;
  decode.role = Role::decode_wide;
  decode.tile_keys = kSm90.tile_keys;
  decode.cluster_reason = cluster_reason(plan);
  if (plan.batch_invariant) {  // rows need the same tiles in every plan
    decode.tile_rows = wide;
    decode.max_rows = kMaxInt32;
    decode.split_keys = kSm90.split_keys;
  } else if (plan.problem.group() > kSm90.narrow_rows ||
             (most > kSm90.narrow_rows && most <= limit && !guesses_query_len(plan))) {
    decode.tile_rows = most <= wide ? wide : wide * kSm90.wide_groups;
    decode.max_rows = limit;
  } else {
    decode.role = Role::decode;
    decode.heads = suits_head_pairs(plan) ? 2 : 1;
    decode.tile_rows = decode.max_rows = semantics::round_up(decode.heads * plan.problem.group(), kSm90.narrow_rows);
  }
  decode.num_blocks = decode.target_items =
      plan.num_threads *
      kSm90.decode_blocks(plan.problem.head_dim, itemsize(plan.problem.kv_dtype), decode.tile_rows, decode.heads);
  return decode;
}

/// Parts of a segment in narrow tiles, beyond which merging them, by one block, takes longer than they save: n tiles in p parts
/// take n / p tiles' time and then p parts', at least where p = sqrt(n tile / part).
std::int64_t most_parts_of_segment(const Plan& plan, std::int64_t heads) {
  constexpr std::int64_t kDimsAtOnce = 4 * 128;
  const std::int64_t rows = heads * std::clamp<std::int64_t>(most_rows(plan), 1, kSm90.narrow_rows);
  const std::int64_t rounds = semantics::ceil_div(rows * plan.problem.head_dim, kDimsAtOnce);
  const std::int64_t span = plan.problem.sliding_window ? *plan.problem.sliding_window : plan.bounds.max_seq_len;
  const auto tiles = static_cast<double>(semantics::ceil_div(std::min(span, plan.bounds.max_seq_len), kSm90.tile_keys));
  return std::max(kSm90.many_parts,
                  static_cast<std::int64_t>(std::sqrt(tiles * kSm90.tile_by_part / static_cast<double>(rounds))));
}

/// Fewer blocks where there are few segments. (Wide tiles have wide_share, batch_invariant ones parts of a fixed size, and beside
/// prefill the device says how many blocks there are.)
void limit_parts(DeviceList& decode, const Plan& plan) {
  const std::int64_t segments = std::max<std::int64_t>(1, plan.bounds.num_reqs) * plan.problem.num_kv_heads / decode.heads;
  if (decode.role == Role::decode && segments < decode.num_blocks)
    decode.num_blocks = decode.target_items = std::min(decode.num_blocks, segments * most_parts_of_segment(plan, decode.heads));
}

/// Decode blocks count merges in a place each, or each of two warpgroups does, and keep two partial results, for which one item a
/// block makes room. cuda_mma's tall tiles need the same room. Requests without rows have numbers, too.
void size_decode(DeviceList& decode, const Plan& plan) {
  Room room{.lowest_tile_rows = lowest_tile_rows(plan, decode), .empty_requests = true};
  if (decode.role == Role::decode_wide) {
    room.mergers = kSm90.wide_groups;
    room.heights = std::max<std::int64_t>(1, kMmaTiles.tall_rows / decode.tile_rows);
  }
  set_capacities(decode, plan, room);
}

/// All requests by Stream-K.
DeviceList stream_k_decode(const Plan& plan) {
  DeviceList decode = decode_tiles(plan);
  limit_parts(decode, plan);
  size_decode(decode, plan);
  return decode;
}

/// The list by the cluster kernel, in the room of `decode`, which stands in for it.
DeviceList cluster_decode(DeviceList decode, const Plan& plan) {
  decode.role = Role::decode_cluster;
  decode.heads = 1;
  decode.max_partials *= decode.tile_rows / kSm90.narrow_rows;
  decode.tile_rows = decode.max_rows = kSm90.narrow_rows;
  decode.cluster = blocks_of_cluster(plan);
  decode.num_blocks = decode.target_items = plan.bounds.num_reqs * plan.problem.num_kv_heads * decode.cluster;
  return decode;
}

/// Whether prefill has an instance with tall tiles for a problem: none for masks, packed caches and caches of codes.
bool has_tall_tiles(const Problem& p) {
  return Sm90Tuning::may_be_tall(p.head_dim) && has_16_bit_rows(p) && (p.is_causal_at_end() || sees_all_keys(p));
}

/// Tall tiles where the batch's tokens fill enough of them, a token of each request left out: it may be a decode row.
PrefillTile prefill_tile(const Plan& plan) {
  const Problem& p = plan.problem;
  const PrefillTile tall = Sm90Tuning::prefill_tile(p.head_dim, /*tall=*/true);
  const std::int64_t score_rows = (plan.bounds.num_tokens - plan.bounds.num_reqs) * p.num_q_heads;
  const bool fills = score_rows >= kSm90.least_tall_tiles * plan.num_threads * tall.rows();
  return Sm90Tuning::prefill_tile(p.head_dim, fills && has_tall_tiles(p));
}

/// Tiles of whole groups, half for each block of a pair; a block an SM. One group has to fit a block.
DeviceList prefill_tiles(const Plan& plan) {
  const std::int64_t group = plan.problem.group();
  const PrefillTile tile = prefill_tile(plan);
  const std::int64_t blocks_of_rows = plan.problem.out_dim() > kSm90.most_out_dims ? 1 : kSm90.prefill_pair;
  DeviceList prefill;
  prefill.kernel = rows::cuda_sm90;
  prefill.role = Role::prefill;
  prefill.tile_rows = tile.rows() / group * group * blocks_of_rows;
  prefill.tile_keys = tile.keys;
  prefill.masks = !plan.problem.is_causal_at_end() && !sees_all_keys(plan.problem);
  prefill.max_rows = kMaxInt32;
  prefill.num_blocks = std::max(2, plan.num_threads / 2 * 2);
  prefill.target_items = prefill.num_blocks / 2;
  return prefill;
}

/// Decode rows (a longer request breaks the call), and the rest; all rows are the rest where decode has no tiles for a group or a
/// head_dim, and under masks.
std::vector<DeviceList> sm90_lists(const Plan& plan) {
  DeviceList decode = decode_tiles(plan);
  const bool has_decode =
      plan.problem.group() <= decode.max_rows && plan.problem.is_causal_at_end() && !has_wide_dims(plan.problem);
  if (has_decode && most_rows(plan) <= decode.max_rows) {
    decode = stream_k_decode(plan);
    return {decode.cluster_reason == ClusterReason::suits ? cluster_decode(decode, plan) : decode};
  }
  if (!has_decode && !may_round_weights(plan) && !mma_takes(plan.problem)) return lists_of(rows::cuda_generic, plan);
  DeviceList rest = prefill_tiles(plan);
  if (!may_round_weights(plan)) rest = sm90_instead(plan, tall_list(plan, rows::cuda_mma, kMmaTiles));
  rest.min_rows = has_decode ? decode.max_rows : 0;
  rest.beside = has_decode && may_round_weights(plan) && is_worth_dividing(plan) && !may_be_decode_alone(plan, decode.max_rows);
  set_capacities(rest, plan, {.lowest_tile_rows = lowest_tile_rows(plan, rest)});
  if (!has_decode) return {rest};
  size_decode(decode, plan);
  return {decode, rest};
}

/// Whether a call of prefill and a call of narrow decode tiles, which uses all SMs, take long enough. Decode from fp8 caches
/// leaves nothing idle.
bool is_worth_a_division(const Plan& longer, const Plan& shorter) {
  const DeviceList &prefill = longer.work().lists[0], &decode = shorter.work().lists[0];
  const Problem& q = shorter.problem;
  const std::int64_t decode_blocks = kSm90.decode_blocks(q.head_dim, itemsize(q.kv_dtype), decode.tile_rows, decode.heads);
  return prefill.role == Role::prefill && decode.role == Role::decode && !is_fp8(q.kv_dtype) &&
         decode.num_blocks >= shorter.num_threads * decode_blocks &&
         std::min(longer.flops / kSm90.flops_per_second, static_cast<double>(shorter.kv_bytes) / kSm90.bytes_per_second) >=
             kSm90.min_beside_seconds;
}

/// Each call gets SMs as its share of the work, and decode no more of them than keep memory busy. Even: blocks of prefill are
/// pairs.
std::int64_t sm90_units_beside(const Plan& longer, const Plan& shorter) {
  if (!is_worth_a_division(longer, shorter)) return 0;
  const DeviceList& prefill = longer.work().lists[0];
  const Problem& p = longer.problem;
  const schedule::Tiling<std::int64_t> tiling{p.group(), prefill.tile_rows, prefill.tile_keys, prefill.min_rows,
                                              prefill.max_rows};
  std::int64_t long_tiles = 0, short_tiles = 0;
  for (const Request& r : p.reqs)
    long_tiles +=
        tiling.most_key_tiles(tiling.tiles(r.query_len), r.context_len, r.seq_len(), 0, /*has_masks=*/true) * p.num_kv_heads;
  for (const Request& r : shorter.problem.reqs)
    short_tiles += semantics::ceil_div(r.seq_len(), std::int64_t{schedule::kShortTileKeys}) * p.num_kv_heads;
  const std::int64_t long_work = long_tiles * kSm90.weight_beside_call(p.head_dim) + kSm90.ends_beside_call;
  const std::int64_t share = prefill.num_blocks * long_work / (long_work + short_tiles);
  return std::clamp<std::int64_t>(share, prefill.num_blocks - kSm90.reading_blocks, prefill.num_blocks - 2) / 2 * 2;
}

constexpr Body kSm90Bodies[] = {
    {.role = Role::decode, .name = "sm90_decode", .shares = kSm90.narrow_share},
    {.role = Role::decode_wide, .name = "sm90_wide", .shares = kSm90.wide_share},
    {.role = Role::decode_cluster, .name = "sm90_cluster", .shares = {.least = 1, .whole = 0}},
    {.role = Role::prefill, .name = "sm90_prefill", .rounds_weights = true, .f16_weights_over_codes = true}};
constexpr GpuTraits kSm90Traits = {.lists = sm90_lists,
                                   .instead = sm90_instead,
                                   .decode_reason = sm90_decode_reason,
                                   .bodies = kSm90Bodies,
                                   .units_beside = sm90_units_beside};

}  // namespace

constinit const KernelRow rows::cuda_sm90 = {
    .info =
        {"cuda_sm90", Backend::cuda, 0u,
         "q=f16 or bf16 with kv=q, fp8_e4m3fn or fp8_e5m2, or q=kv=fp8_e4m3fn, out=f16, bf16 or fp8_e4m3fn, d=64, 128, 256, "
         "or kv=q with d=512 or d=192 and dv=128, group up to 128, page=multiple of 8 (packed, d=192, d=512: 16), masks of every "
         "kind with kv=q, nhd or hnd, causal=0 where all keys are seen; sm90",
         "Hopper's TMA and wgmma. Decode: each thread block gets the same number of keys. Prefill: two blocks share each K/V "
         "tile; weights are rounded to 16 bits, as in FlashAttention. 8-bit queries become f16"},
    .refuses = sm90_refuses,
    .why_first = "it is made for Hopper (copies by TMA, products by wgmma)",
    .gpu = &kSm90Traits};

}  // namespace quire::plan_detail
