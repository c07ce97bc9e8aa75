// SPDX-License-Identifier: Apache-2.0
// Stage: explain. How long a plan takes on a device whose costs are known (device_costs.h).
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/device_costs.h"
#include "plan/device_work.h"
#include "plan/kernels/refusals.h"
#include "quire/plan.hpp"
#include "quire/predict.hpp"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire {
namespace {

using plan_detail::Body;
using plan_detail::BodyCosts;
using plan_detail::Codes;
using plan_detail::DeviceCosts;
using plan_detail::DeviceList;
using plan_detail::PageRows;
using plan_detail::Shape;
using plan_detail::ShapedMask;

const DeviceCosts* costs_of(const Device& device) {
  for (const DeviceCosts* costs : plan_detail::kDeviceCosts) {
    const bool stands_for_it = device.product.empty() && device.sm == costs->sm && costs->sm != 0;
    if (device.product == costs->driver || stands_for_it) return costs;
  }
  return nullptr;
}

/// Nothing if no costs stand for a problem's cached values.
std::optional<Codes> codes_of(const Problem& p) {
  const bool token_scaled = p.k_scale == ScaleKind::per_token && p.v_scale == ScaleKind::per_token;
  if (p.has_token_scales() && !token_scaled) return std::nullopt;
  if (token_scaled) {
    if (!p.has_equal_types() || (p.kv_dtype != DType::i8 && !plan_detail::is_nvidia_fp8(p.kv_dtype))) return std::nullopt;
    return Codes::token_scaled;
  }
  if (p.kv_dtype == DType::fp8_e4m3fn && p.value_dtype() == DType::nvfp4) return Codes::four_bits;
  if (!p.has_equal_types()) return std::nullopt;
  if (is_four_bit(p.kv_dtype)) return Codes::four_bits;
  if (plan_detail::is_nvidia_fp8(p.kv_dtype)) return Codes::fp8;
  return plan_detail::is_16_bit(p.kv_dtype) ? std::optional(Codes::none) : std::nullopt;
}

/// The rows of K and V that a body's costs have to stand for.
PageRows page_rows(const Body& body, const Problem& problem) {
  constexpr std::int64_t kPackedTokens = 8;  // kernels read packed pages of no multiple of 8 tokens token by token
  if (body.own_packed && problem.layout == CacheLayout::packed)
    return problem.page_size % kPackedTokens == 0 ? PageRows::packed : PageRows::single;
  return problem.page_size % body.run_tokens == 0 ? PageRows::runs : PageRows::single;
}

/// Costs of a list's body on a device; null if it was not measured. Costs of tiles of other sizes do not apply.
const BodyCosts* costs_of(const DeviceCosts& device, const DeviceList& list, const Problem& problem) {
  const Body& body = plan_detail::body_of(list);
  const bool own_tiles = body.own_tiles_dim > 0 && problem.head_dim >= body.own_tiles_dim;
  const PageRows rows = page_rows(body, problem);
  const std::optional<Codes> codes = codes_of(problem);
  const BodyCosts* any = nullptr;
  for (const BodyCosts& costs : list.kernel.row().gpu->costs) {
    if (costs.device != &device || costs.role != list.role || costs.codes != codes) continue;
    if (costs.rows != rows || problem.out_dim() != (costs.value_dim > 0 ? costs.value_dim : problem.head_dim)) continue;
    if (costs.head_dim == problem.head_dim) return &costs;
    if (costs.head_dim == 0 && !own_tiles) any = &costs;
  }
  return any;
}

std::string_view token_scales_text(const Problem& p) {
  if (!p.has_token_scales()) return p.kv_dtype == DType::i8 && p.has_equal_types() ? " without scales of tokens" : "";
  return p.k_scale == p.v_scale ? " and a scale for each token" : " and a scale for each token of K or V alone";
}

/// "nvfp4 caches", "i8 caches and a scale for each token".
std::string caches_of(const Problem& p) { return formatted("{} caches{}", p.cache_types(), token_scales_text(p)); }

/// Types and scales of a problem that no timed line of any kernel has: "with fp8_e4m3fnuz caches". Empty if there are none.
std::string never_measured(const Problem& p) {
  if (p.q_dtype == DType::f32) return "with f32 queries";
  return codes_of(p) ? "" : "with " + caches_of(p);
}

/// Options that cost something for each score, of which no timed line has any.
std::string options_left_out(const Problem& p) {
  if (p.logits_soft_cap) return p.alibi ? "cap, alibi" : "cap";
  return p.alibi ? "alibi" : "";
}

/// Properties of a problem with which a body was not measured: "at head_dim 80 with bf16 caches".
std::string not_measured(const Body& body, const Problem& p) {
  const std::string dims = p.has_equal_dims() ? formatted("{}", p.head_dim) : formatted("{} (V: {})", p.head_dim, p.out_dim());
  const std::string what = formatted("at head_dim {} with {}", dims, caches_of(p));
  switch (page_rows(body, p)) {
    case PageRows::packed: return what + " of the packed layout";
    case PageRows::single: return what + formatted(" in pages of {}", p.page_size);
    case PageRows::runs: break;
  }
  return what;
}

std::vector<Shape> shapes_of(const Problem& p) {
  std::vector<Shape> shapes;
  if (p.attention_chunk) shapes.push_back(Shape::chunk);
  if (p.has_prefix) shapes.push_back(Shape::prefix);
  if (p.has_spans) shapes.push_back(Shape::spans);
  if (p.has_tree) shapes.push_back(Shape::tree);
  return shapes;
}

/// Whether costs of a list's body hold under the problem's mask. Several shapes at once were not measured.
bool hold_under_mask(const DeviceCosts& device, const DeviceList& list, const Problem& p) {
  const std::vector<Shape> shapes = shapes_of(p);
  if (shapes.empty()) return true;
  const auto is_this = [&](const ShapedMask& mask) {
    return mask.device == &device && mask.role == list.role && mask.head_dim == p.head_dim && mask.shape == shapes[0];
  };
  return shapes.size() == 1 && codes_of(p) == Codes::none && p.has_equal_dims() &&
         std::ranges::any_of(list.kernel.row().gpu->masks, is_this);
}

/// "a prefix", "spans and a tree_mask".
std::string shapes_text(const Problem& p) {
  constexpr std::string_view kNames[] = {"a chunk", "a prefix", "spans", "a tree_mask"};
  std::string text;
  for (const Shape shape : shapes_of(p)) text.append(text.empty() ? "" : " and ").append(kNames[static_cast<std::size_t>(shape)]);
  return text;
}

/// Score rows that the matrix units are given for a tile, whatever the group leaves of them.
std::int64_t matrix_rows(const Body& body, const DeviceList& list) {
  return semantics::round_up(list.tile_rows, body.matrix_rows);
}

/// Microseconds of one tile of keys.
double tile_us(const BodyCosts& costs, const Body& body, const DeviceList& list, const Problem& problem) {
  const std::int64_t rows = matrix_rows(body, list);
  const auto keys = static_cast<double>(list.heads * list.tile_keys),
             dim = static_cast<double>(problem.head_dim + problem.out_dim()) / 2;
  const double of_scores = static_cast<double>(rows) * keys * (costs.score_ps + dim * costs.product_ps);
  return costs.tile_us + 1e-6 * (keys * dim * costs.key_ps + of_scores);
}

/// Times of a list with items.
void add_times(const BodyCosts& costs, const DeviceCosts& device, double of_tile, ListPrediction& one) {
  one.read_seconds = one.read_bytes / (costs.read_share * device.read_tb_per_s * 1e12);
  one.tile_seconds = 1e-6 * static_cast<double>(one.busiest_tiles) * of_tile;
  one.item_seconds = 1e-6 * static_cast<double>(one.busiest_items) * costs.item_us;
  one.seconds += std::max(one.read_seconds, one.tile_seconds) + one.item_seconds +
                 1e-6 * (costs.first_us + (one.merges > 0 ? costs.merge_us : 0));
}

/// false, with the reason in `why_not`, if there is no number to be had. A list without items needs no costs of its body.
bool predict_list(const Plan& plan, const DeviceList& list, const DeviceCosts& device, Prediction& prediction) {
  const Body& body = plan_detail::body_of(list);
  const BodyCosts* costs = costs_of(device, list, plan.problem);
  const double of_tile = costs != nullptr ? tile_us(*costs, body, list, plan.problem) : 0;
  plan_detail::ListWork work;
  if (!plan_detail::count_work(plan, list, {costs != nullptr ? costs->item_us : 0, of_tile}, work)) {
    prediction.why_not = "more tiles than are counted";
    return false;
  }
  if (costs == nullptr && work.items > 0) {
    prediction.why_not = formatted("{} was not measured {}", body.name, not_measured(body, plan.problem));
    return false;
  }
  if (work.items > 0 && !hold_under_mask(device, list, plan.problem)) {
    prediction.why_not =
        formatted("no costs of {} hold {} under {}", body.name, not_measured(body, plan.problem), shapes_text(plan.problem));
    return false;
  }
  ListPrediction one;
  one.served_by = body.name;
  one.tile_rows = list.tile_rows;
  one.tile_keys = list.tile_keys;
  one.tile_heads = list.heads;
  one.units = list.num_blocks / body.blocks_per_unit;
  one.items = work.items;
  one.busiest_items = work.busiest_items;
  one.busiest_tiles = work.busiest_tiles;
  one.merges = work.merges;
  one.read_bytes = work.read_bytes;
  one.seconds = 1e-6 * device.launch_us;
  if (work.items > 0) add_times(*costs, device, of_tile, one);
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
  } else if (const std::string never = never_measured(plan.problem); !never.empty()) {
    prediction.why_not = formatted("no kernel was measured {}", never);
  } else {
    prediction.device = device->product;
    prediction.call_seconds = prediction.seconds = 1e-6 * device->call_us;
    for (const DeviceList& list : plan.work().lists)
      if (!predict_list(plan, list, *device, prediction)) break;
    prediction.left_out = options_left_out(plan.problem);
    if (prediction.why_not.empty()) prediction.saved_seconds = saved_seconds(plan, prediction, *device);
    prediction.seconds -= prediction.saved_seconds;
  }
  if (!prediction.why_not.empty()) prediction.seconds = 0;
  return prediction;
}

}  // namespace quire
