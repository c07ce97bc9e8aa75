// SPDX-License-Identifier: Apache-2.0
// Stage: explain. How long a plan takes on a device whose costs are known (device_costs.h).
#include <algorithm>
#include <string_view>

#include "plan/device_costs.h"
#include "plan/device_work.h"
#include "quire/plan.hpp"
#include "quire/predict.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

using plan_detail::Body;
using plan_detail::BodyCosts;
using plan_detail::DeviceCosts;
using plan_detail::DeviceList;

const DeviceCosts* costs_of(const Device& device) {
  for (const DeviceCosts* costs : plan_detail::kDeviceCosts) {
    const bool stands_for_it = device.product.empty() && device.sm == costs->sm && costs->sm != 0;
    if (device.product == costs->driver || stands_for_it) return costs;
  }
  return nullptr;
}

/// Costs of a list's body on a device; null if it was not measured. Costs of tiles of other sizes do not apply.
const BodyCosts* costs_of(const DeviceCosts& device, const DeviceList& list, const Problem& problem) {
  if (!problem.has_equal_dims() || !problem.has_equal_types() || problem.has_block_scales()) return nullptr;
  const bool own_tiles = problem.head_dim == plan_detail::body_of(list).own_tiles_dim;
  const BodyCosts* any = nullptr;
  for (const BodyCosts& costs : list.kernel.row().gpu->costs) {
    if (costs.device != &device || costs.role != list.role || costs.fp8 != is_code(problem.kv_dtype)) continue;
    if (costs.head_dim == problem.head_dim) return &costs;
    if (costs.head_dim == 0 && !own_tiles) any = &costs;
  }
  return any;
}

/// Microseconds of one tile of keys, with as many rows as the matrix units are given.
double tile_us(const BodyCosts& costs, const Body& body, const DeviceList& list, std::int64_t head_dim) {
  const std::int64_t rows = body.matrix_rows > 0 ? body.matrix_rows : list.tile_rows;
  const auto keys = static_cast<double>(list.tile_keys), dim = static_cast<double>(head_dim);
  const double of_scores = static_cast<double>(rows) * keys * (costs.score_ps + dim * costs.product_ps);
  return costs.tile_us + 1e-6 * (keys * dim * costs.key_ps + of_scores);
}

/// false, with the reason in `why_not`, if there is no number to be had.
bool predict_list(const Plan& plan, const DeviceList& list, const DeviceCosts& device, Prediction& prediction) {
  const Body& body = plan_detail::body_of(list);
  const BodyCosts* costs = costs_of(device, list, plan.problem);
  ListPrediction one;
  one.served_by = body.name;
  if (costs == nullptr) {
    const Problem& p = plan.problem;
    const std::string dims = p.has_equal_dims() ? formatted("{}", p.head_dim) : formatted("{} (V: {})", p.head_dim, p.out_dim());
    prediction.why_not = formatted("{} was not measured at head_dim {} with {} caches", one.served_by, dims, p.cache_types());
    return false;
  }
  plan_detail::ListWork work;
  const double of_tile = tile_us(*costs, body, list, plan.problem.head_dim);
  if (!plan_detail::count_work(plan, list, {costs->item_us, of_tile}, work)) {
    prediction.why_not = "more tiles than are counted";
    return false;
  }
  one.tile_rows = list.tile_rows;
  one.tile_keys = list.tile_keys;
  one.units = list.num_blocks / body.blocks_per_unit;
  one.items = work.items;
  one.busiest_items = work.busiest_items;
  one.busiest_tiles = work.busiest_tiles;
  one.merges = work.merges;
  one.read_bytes = work.read_bytes;
  one.read_seconds = work.read_bytes / (costs->read_share * device.read_tb_per_s * 1e12);
  one.tile_seconds = 1e-6 * static_cast<double>(work.busiest_tiles) * of_tile;
  one.item_seconds = 1e-6 * static_cast<double>(work.busiest_items) * costs->item_us;
  one.seconds = 1e-6 * device.launch_us;
  if (work.items > 0)
    one.seconds += std::max(one.read_seconds, one.tile_seconds) + one.item_seconds +
                   1e-6 * (costs->first_us + (work.merges > 0 ? costs->merge_us : 0));
  prediction.seconds += one.seconds;
  prediction.lists.push_back(std::move(one));
  return true;
}

/// Seconds saved by running two lists at the same time: at most the time of the second list.
double saved_seconds(const Plan& plan, const Prediction& prediction, const DeviceCosts& device) {
  if (plan.work().lists.size() != 2 || !plan.work().lists[1].beside || prediction.lists[0].items == 0 ||
      prediction.lists[1].items == 0)
    return 0;
  return std::min((1 - device.beside_share) * prediction.lists[0].seconds, prediction.lists[1].seconds);
}

}  // namespace

Prediction predict(const Plan& plan) {
  Prediction prediction;
  const DeviceCosts* device = plan.device.backend == Backend::cuda ? costs_of(plan.device) : nullptr;
  if (!plan.assumptions.empty()) {
    prediction.why_not = "the lengths are not known";
  } else if (device == nullptr) {
    prediction.why_not =
        formatted("nothing was measured on {}", plan.device.product.empty() ? plan.device.name : plan.device.product);
  } else {
    prediction.device = device->product;
    prediction.call_seconds = prediction.seconds = 1e-6 * device->call_us;
    for (const DeviceList& list : plan.work().lists)
      if (!predict_list(plan, list, *device, prediction)) break;
    if (prediction.why_not.empty()) prediction.saved_seconds = saved_seconds(plan, prediction, *device);
    prediction.seconds -= prediction.saved_seconds;
  }
  if (!prediction.why_not.empty()) prediction.seconds = 0;
  return prediction;
}

}  // namespace quire
