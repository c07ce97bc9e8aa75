// SPDX-License-Identifier: Apache-2.0
// cuda_generic and hip_generic: one portable kernel, which takes every valid problem in one list.
#include "plan/kernels/generic.h"

#include "plan/device_costs.h"
#include "plan/device_lists.h"

namespace quire::plan_detail {
namespace {

std::vector<DeviceList> generic_lists(const Plan& plan) {
  DeviceList all;
  all.kernel = plan.kernel;
  all.tile_rows = kGeneric.tile_rows;
  all.tile_keys = kGeneric.tile_keys;
  all.max_rows = kMaxInt32;
  all.num_blocks = plan.num_threads * kGeneric.blocks_per_unit;
  all.target_items = all.num_blocks * kGeneric.items_per_block;
  all.split_keys = plan.batch_invariant ? kInvariantSplitKeys : 0;
  set_capacities(all, plan, {.lowest_tile_rows = all.tile_rows});
  return {all};
}

constexpr Body kGenericBodies[] = {{.role = Role::rows, .name = "generic", .own_tiles_dim = 512, .own_packed = true}};
/// Source of the row for (576, 512): bench/results/h100-mla-decode.json and h100-sparse.json. Source of those for 512, scales of
/// tokens and 4 bits: h100-wide-and-masks.json. A wrong value makes a predicted time wrong, no plan.
constexpr BodyCosts kGenericCosts[] = {
    {&kH200, Role::rows, Codes::none, 0, 17.8, 2.36, 0.237, 1.11e+03, 236, 75.4, 3.06, 0.5},
    {&kH200, Role::rows, Codes::fp8, 0, 9.64, 2.95, 1.01, 972, 1e+03, 79.3, 2.98, 0.5},
    {&kH100, Role::rows, Codes::none, 0, 54.5, 2.01, 0.205, 998, 205, 75.4, 3.22, 0.5},
    {&kH100, Role::rows, Codes::none, 512, 45, 1.99, 0.205, 1.73e+03, 205, 113, 3.16, 0.5},
    {&kH100, Role::rows, Codes::none, 576, 18.1, 1.84, 0.204, 1.62e+03, 395, 150, 2.74, 0.5, 512},
    {&kH100, Role::rows, Codes::fp8, 0, 9.64, 2.95, 0.992, 962, 971, 79.3, 2.98, 0.5},
    {&kH100, Role::rows, Codes::token_scaled, 128, 8.5, 3.42, 0.89, 807, 871, 79.3, 2.87, 0.5},
    {&kH100, Role::rows, Codes::four_bits, 128, 1.43, 1.29, 1.31, 661, 1.18e+03, 79.3, 0.959, 0.5},
};
constexpr GpuTraits kGenericTraits = {.lists = generic_lists, .bodies = kGenericBodies, .costs = kGenericCosts};

}  // namespace

constinit const KernelRow rows::cuda_generic = {
    .info = {"cuda_generic", Backend::cuda, 0u, "every valid problem", "portable GPU code without tensor cores"},
    .refuses = refuses_nothing,
    .gpu = &kGenericTraits};

constinit const KernelRow rows::hip_generic = {
    .info = {"hip_generic", Backend::hip, 0u, "every valid problem",
             "as cuda_generic. Experimental: passes all tests in an emulator, has never run on an AMD GPU"},
    .refuses = refuses_nothing,
    .gpu = &kGenericTraits};

}  // namespace quire::plan_detail
