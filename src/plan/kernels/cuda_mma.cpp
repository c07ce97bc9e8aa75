// SPDX-License-Identifier: Apache-2.0
// cuda_mma: tensor cores by mma.sync, sm80 or later.
#include "plan/kernels/cuda_mma.h"

#include "plan/kernels/refusals.h"

namespace quire::plan_detail {
namespace {

/// Whether an SM has room for a block with tiles of that role. sm86, sm89 and sm120 have none for short tiles, but for those of
/// head_dim 128 over fp8.
bool fits(Role role, const Problem& p, const Device& device, std::int64_t tile_keys = kMmaTiles.tile_keys) {
  return mma_shared_bytes(role, p.head_dim, is_fp8(p.kv_dtype), tile_keys) <= most_shared_bytes(device.sm);
}

/// Tiles of a plan. Some devices have no room for tall tiles of head_dim 256 with as many keys as others have.
ShortAndTall tiles_of(const Plan& plan) {
  ShortAndTall tiles = kMmaTiles;
  if (!fits(Role::tall_rows, plan.problem, plan.device)) tiles.tile_keys = kMmaFewKeys;
  return tiles;
}

// A device without room for tall tiles would have no list at all.
static_assert(mma_shared_bytes(Role::tall_rows, 256, false, kMmaFewKeys) <= most_shared_bytes(86));

/// The instances of src/backend/cuda/mma/.
Reasons mma_refuses(const Problem& problem, const Device& device) {
  Reasons reasons;
  const bool fp8 = is_nvidia_fp8(problem.kv_dtype);
  if (!is_16_bit(problem.q_dtype)) reasons.push_back(formatted("q is {}, expected f16 or bf16", name(problem.q_dtype)));
  if (problem.kv_dtype != problem.q_dtype && !fp8)
    reasons.push_back(
        formatted("kv is {}, expected {} (as q), fp8_e4m3fn or fp8_e5m2", name(problem.kv_dtype), name(problem.q_dtype)));
  const std::int64_t d = problem.head_dim;
  if (d != 64 && d != 128 && (d != 256 || fp8))
    reasons.push_back(formatted("d is {}, expected {}", d, fp8 ? "64 or 128" : "64, 128 or 256"));
  if (asks_for_wide_rows(problem)) reasons.push_back(formatted("out is f32, expected {} or fp8_e4m3fn", name(problem.q_dtype)));
  if (device.sm < 80) reasons.push_back(formatted("needs sm80, which device {} lacks", device.name));
  refuse_unequal_dims(problem, reasons);
  refuse_unlike_types(problem, reasons);
  refuse_token_scales(problem, reasons);
  refuse_other_masks(problem, reasons);
  return reasons;
}

/// Prefill's tiles, whose weights are rounded, for the requests that fill them.
DeviceList mma_prefill(const Plan& plan, std::int64_t min_rows) {
  DeviceList list = tall_list(plan, rows::cuda_mma, kMmaTiles);
  list.role = Role::prefill;
  list.tile_rows = kMmaPrefillRows;
  list.min_rows = min_rows;
  list.num_blocks = list.target_items =
      plan.num_threads * mma_prefill_blocks(plan.problem.head_dim, is_fp8(plan.problem.kv_dtype));
  set_capacities(list, plan, {.lowest_tile_rows = list.tile_rows});
  return list;
}

/// Short tiles and tall ones, or tall ones alone for groups and devices that short tiles do not suit. Beside short tiles, prefill
/// takes all the rest: a third list would be a launch more. Without them it takes requests of more rows than a tall tile, which
/// are all where the group has more.
std::vector<DeviceList> mma_lists(const Plan& plan) {
  const Problem& p = plan.problem;
  const ShortAndTall tiles = tiles_of(plan);
  const bool has_short = fits(Role::short_rows, p, plan.device) && p.group() <= kMmaTiles.short_rows;
  std::vector<DeviceList> lists;
  if (has_short) {
    lists = short_and_tall_lists(plan, rows::cuda_mma, tiles);
  } else {
    lists = {tall_list(plan, rows::cuda_mma, tiles)};
    set_capacities(lists[0], plan, {.lowest_tile_rows = lists[0].tile_rows});
  }
  const bool fills_tiles = plan.bounds.max_query_len * p.group() > kMmaTiles.tall_rows;
  if (!fills_tiles || !may_round_weights(plan) || !fits(Role::prefill, p, plan.device)) return lists;
  if (p.group() > kMmaTiles.tall_rows) return {mma_prefill(plan, 0)};
  if (has_short) {
    lists.back() = mma_prefill(plan, lists.back().min_rows);
  } else {
    lists[0].max_rows = kMmaTiles.tall_rows;
    lists.push_back(mma_prefill(plan, lists[0].max_rows));
  }
  return lists;
}

constexpr Body kMmaBodies[] = {{.role = Role::short_rows, .name = "mma_short"},
                               {.role = Role::tall_rows, .name = "mma_tall"},
                               {.role = Role::prefill, .name = "mma_prefill", .rounds_weights = true}};
constexpr GpuTraits kMmaTraits = {.lists = mma_lists, .bodies = kMmaBodies};

}  // namespace

constinit const KernelRow rows::cuda_mma = {
    .info = {"cuda_mma", Backend::cuda, 0u,
             "q=f16 or bf16 with kv=q and d=64, 128, 256 or kv=fp8_e4m3fn or fp8_e5m2 and d=64, 128, out=q or fp8_e4m3fn, dv=d; "
             "sm80 or later",
             "tensor cores (mma.sync); softmax weights are split into two 16-bit numbers; prompts round them"},
    .refuses = mma_refuses,
    .why_first = "it multiplies on matrix units",
    .gpu = &kMmaTraits};

}  // namespace quire::plan_detail
