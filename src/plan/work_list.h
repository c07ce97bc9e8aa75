// SPDX-License-Identifier: Apache-2.0
// Cutting a problem into the tiles and split-KV segments that threads share.
#pragma once

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// Fills tile_q, tile_kv, split_keys, direct_rows, tiles, num_partials, kv_bytes and flops of a plan whose problem, device and
/// num_threads are set.
///
/// Every row's keys are cut at multiples of split_keys (absolute positions) and folded in order, whether one item walks all
/// of a row's segments or several items each do one. Hence how work is cut never changes a bit of the output.
void cut_work(Plan& plan);

/// Sets kv_bytes and flops from plan.problem.
void count_traffic(Plan& plan);

}  // namespace quire::plan_detail
