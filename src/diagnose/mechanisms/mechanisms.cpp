// SPDX-License-Identifier: Apache-2.0
// The list of mechanisms, and which of them a fault of the catalogue belongs to.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "diagnose/mechanisms/mechanism.h"
#include "threads/on_threads.h"

namespace quire::diagnose_detail {
namespace {

/// Faults whose family holds more than one mechanism.
const std::map<std::string, std::string, std::less<>>& by_id() {
  static const std::map<std::string, std::string, std::less<>> map{
      {"output_not_written", "not_written"},
      {"output_zero", "not_written"},
      {"output_tail_dims_zero", "dims"},
      {"last_row_not_written", "not_written"},
      {"decode_rows_not_written", "not_written"},
      {"prefill_rows_not_written", "not_written"},
      {"request_not_written", "not_written"},
      {"rows_past_max_query_len_not_written", "not_written"},
      {"partial_row_tile_not_written", "not_written"},
      {"heads_past_cap_not_written", "not_written"},
      {"query_of_neighbour_row", "query_row"},
      {"query_of_first_row", "query_row"},
      {"one_query_head_per_group", "query_head"},
      {"causal_mask_missing", "mask"},
      {"query_tail_dims_dropped", "dims"},
      {"query_rounded_to_fp8", "rounded"},
      {"scores_rounded_to_bf16", "rounded"},
      {"alibi_bias_in_bf16", "rounded"},
      {"weights_rounded_to_fp8", "rounded"},
      {"lse_base_2", "factor_lse"},
      {"lse_without_max", "factor_lse"},
      {"lse_is_max", "factor_lse"},
      {"lse_transposed", "factor_lse"},
      {"lse_without_sink", "factor_lse"},
      {"exp2_without_log2e", "factor_scores"},
      {"log2e_without_exp2", "factor_scores"},
      {"soft_cap_ignored", "soft_cap"},
      {"soft_cap_clips", "soft_cap"},
      {"soft_cap_not_multiplied_back", "soft_cap"},
      {"soft_cap_before_scale", "soft_cap"},
      {"soft_cap_after_alibi", "soft_cap"},
      {"v_scale_dropped", "factor_out"},
      {"k_dims_permuted", "dims"},
      {"v_dims_permuted", "dims"},
      {"scale_from_v_head_dim", "factor_scores"},
      {"rope_dims_dropped", "dims"},
      {"v_dims_beyond_k_zero", "dims"},
      {"output_rows_of_k_head_dim", "output_row"},
      {"block_table_as_int32", "table_row"},
      {"page_order_reversed", "page"},
  };
  return map;
}

const std::map<std::string, std::string, std::less<>>& by_family() {
  static const std::map<std::string, std::string, std::less<>> map{
      {"index_width", "table_row"},
      {"rows", "output_row"},
      {"starts", "positions"},
      {"mask", "mask"},
      {"window", "key_range"},
      {"tokens", "key_range"},
      {"contents", "page_contents"},
      {"split", "split"},
      {"pages", "page"},
      {"layout", "layout"},
      {"head_dims", "layout"},
      {"heads", "kv_head"},
      {"scores", "factor_scores"},
      {"alibi", "alibi_slope"},
      {"softmax", "normalisation"},
      {"positions", "positions"},
      {"sinks", "sink"},
      {"scales", "factor_scores"},
      {"token_scales", "page_contents"},
      {"block_scales", "page_contents"},
      {"unlike_types", "element_type"},
      {"formats", "element_type"},
  };
  return map;
}

}  // namespace

std::string mechanism_of(const FaultInfo& fault) {
  if (const auto known = by_id().find(fault.id); known != by_id().end()) return known->second;
  const auto family = by_family().find(fault.family);
  return family != by_family().end() ? family->second : "other";
}

Proposals propose_all(const Scene& scene) {
  // Mechanisms model causal rows at the end of their keys. Only the catalogue models other rows.
  if (scene.facts.has_masks) return {};
  // Mechanisms assume that rows of K and V have one length.
  if (!scene.facts.has_equal_dims()) return {};
  constexpr std::array kAll = {propose_factor,       propose_normalisation, propose_sink,       propose_score_value,
                               propose_key_range,    propose_key_group,     propose_output_row, propose_query_row,
                               propose_kv_head,      propose_table_row,     propose_page,       propose_page_contents,
                               propose_positions,    propose_rope,          propose_dims,       propose_rounding,
                               propose_element_type, propose_layout,        propose_mask,       propose_split,
                               propose_lse};
  // The order of the proposals decides between equals, whichever thread is first.
  std::array<Proposals, kAll.size()> lists;
  threads::for_each_index(kAll.size(), [&](std::size_t i) { kAll[i](scene, lists[i]); });
  Proposals all;
  for (Proposals& list : lists) std::move(list.begin(), list.end(), std::back_inserter(all));
  return all;
}

bool all_same(const std::vector<double>& values, double relative) {
  const double middle = median(values);
  return !values.empty() && std::all_of(values.begin(), values.end(),
                                        [&](double v) { return std::fabs(v - middle) <= relative * std::fabs(middle); });
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace quire::diagnose_detail
