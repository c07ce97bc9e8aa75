// SPDX-License-Identifier: Apache-2.0
// cuda_generic and hip_generic: one portable kernel, which takes every valid problem in one list.
#include "plan/kernels/generic.h"

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

constexpr Body kGenericBodies[] = {{.role = Role::rows, .name = "generic"}};
constexpr GpuTraits kGenericTraits = {.lists = generic_lists, .bodies = kGenericBodies};

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
