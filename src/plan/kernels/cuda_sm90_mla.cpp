// SPDX-License-Identifier: Apache-2.0
// cuda_sm90_mla: absorbed decode of multi-head latent attention on Hopper. Rows of any number of tokens are in one list.
#include "plan/kernels/cuda_sm90_mla.h"

#include <algorithm>

#include "plan/device_lists.h"
#include "plan/kernels/generic.h"
#include "plan/kernels/refusals.h"

namespace quire::plan_detail {
namespace {

bool has_uncached_keys(const Problem& problem) {
  return std::any_of(problem.reqs.begin(), problem.reqs.end(), [](const Request& r) { return r.cached_len != r.seq_len(); });
}

/// Sizes and options of src/backend/cuda/sm90/mla/.
Reasons mla_refuses(const Problem& problem, const Device& device) {
  Reasons reasons;
  if (!is_16_bit(problem.q_dtype)) reasons.push_back(formatted("q is {}, expected f16 or bf16", name(problem.q_dtype)));
  if (problem.kv_dtype != problem.q_dtype)
    reasons.push_back(formatted("kv is {}, expected {} (as q)", name(problem.kv_dtype), name(problem.q_dtype)));
  if (problem.out_dtype() != problem.q_dtype)
    reasons.push_back(formatted("out is {}, expected {} (as q)", name(problem.out_dtype()), name(problem.q_dtype)));
  if (problem.head_dim != kMla.key_dim || problem.out_dim() != kMla.value_dim)
    reasons.push_back(
        formatted("d is {} and dv {}, expected {} and {}", problem.head_dim, problem.out_dim(), kMla.key_dim, kMla.value_dim));
  refuse_unlike_types(problem, reasons);
  if (problem.num_kv_heads != 1) reasons.push_back(formatted("kv heads are {}, expected 1", problem.num_kv_heads));
  if (problem.layout == CacheLayout::packed) reasons.push_back("layout is packed, expected nhd or hnd");
  if (problem.logits_soft_cap) reasons.push_back("cap is given, expected absent");
  if (problem.alibi) reasons.push_back("alibi is 1, expected 0");
  if (problem.k_scale != ScaleKind::none || problem.v_scale != ScaleKind::none)
    reasons.push_back("kscale or vscale is given, expected absent");
  if (has_uncached_keys(problem)) reasons.push_back("some keys are not cached, expected all");
  if (device.sm != 90) reasons.push_back(formatted("needs sm90, device {} is not", device.name));
  refuse_other_masks(problem, reasons);
  return reasons;
}

/// The list that stands in where weights may not be rounded, or tensors are not what tensor copies take.
DeviceList generic_instead(const Plan&, const DeviceList& list) {
  DeviceList other = list;
  other.kernel = rows::cuda_generic;
  other.tile_rows = kGeneric.tile_rows;
  other.tile_keys = kGeneric.tile_keys;
  return other;
}

/// A block fills an SM.
std::vector<DeviceList> mla_lists(const Plan& plan) {
  if (!may_round_weights(plan)) return lists_of(rows::cuda_generic, plan);
  DeviceList list;
  list.kernel = rows::cuda_sm90_mla;
  list.tile_rows = kMla.tile_rows;
  list.tile_keys = kMla.tile_keys;
  list.max_rows = kMaxInt32;
  list.num_blocks = list.target_items = plan.num_threads;
  set_capacities(list, plan, {.lowest_tile_rows = generic_instead(plan, list).tile_rows});
  return {list};
}

constexpr Body kMlaBodies[] = {{.role = Role::rows, .name = "sm90_mla", .rounds_weights = true}};
constexpr GpuTraits kMlaTraits = {.lists = mla_lists, .instead = generic_instead, .bodies = kMlaBodies};

}  // namespace

constinit const KernelRow rows::cuda_sm90_mla = {
    .info = {"cuda_sm90_mla", Backend::cuda, 0u,
             "q=f16 or bf16 with kv=q, out=q, d=576, dv=512 with V in K's rows, one KV head, nhd or hnd; sm90",
             "absorbed decode of MLA by Hopper's TMA and wgmma: two warpgroups share the output of 64 rows; weights are rounded "
             "to 16 bits, as in FlashMLA"},
    .refuses = mla_refuses,
    .why_first = "it is made for MLA on Hopper (keys and values are one copy)",
    .gpu = &kMlaTraits};

}  // namespace quire::plan_detail
