// SPDX-License-Identifier: Apache-2.0
// The list of mechanisms, and which of them a fault of the catalogue belongs to.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "diagnose/mechanisms/mechanism.h"
#include "threads/on_threads.h"

namespace quire::diagnose_detail {
namespace {

/// Mechanisms with the names of what belongs to them.
using MechanismTable = std::vector<std::pair<std::string_view, std::vector<std::string_view>>>;

/// Faults whose family holds more than one mechanism.
const MechanismTable& by_id() {
  static const MechanismTable table{
      {"not_written",
       {"output_not_written", "output_zero", "last_row_not_written", "decode_rows_not_written", "prefill_rows_not_written",
        "request_not_written", "rows_past_max_query_len_not_written", "partial_row_tile_not_written",
        "heads_past_cap_not_written"}},
      {"dims",
       {"output_tail_dims_zero", "query_tail_dims_dropped", "k_dims_permuted", "v_dims_permuted", "rope_dims_dropped",
        "v_dims_beyond_k_zero"}},
      {"query_row", {"query_of_neighbour_row", "query_of_first_row"}},
      {"query_head", {"one_query_head_per_group"}},
      {"mask", {"causal_mask_missing"}},
      {"rounded", {"query_rounded_to_fp8", "scores_rounded_to_bf16", "alibi_bias_in_bf16", "weights_rounded_to_fp8"}},
      {"factor_lse", {"lse_base_2", "lse_without_max", "lse_is_max", "lse_transposed", "lse_without_sink"}},
      {"factor_scores", {"exp2_without_log2e", "log2e_without_exp2", "scale_from_v_head_dim"}},
      {"soft_cap",
       {"soft_cap_ignored", "soft_cap_clips", "soft_cap_not_multiplied_back", "soft_cap_before_scale", "soft_cap_after_alibi"}},
      {"factor_out", {"v_scale_dropped"}},
      {"output_row", {"output_rows_of_k_head_dim"}},
      {"table_row", {"block_table_as_int32"}},
      {"page", {"page_order_reversed"}}};
  return table;
}

const MechanismTable& by_family() {
  static const MechanismTable table{{"table_row", {"index_width"}},
                                    {"output_row", {"rows"}},
                                    {"positions", {"starts", "positions"}},
                                    {"mask", {"mask"}},
                                    {"key_range", {"window", "tokens"}},
                                    {"page_contents", {"contents", "token_scales", "block_scales"}},
                                    {"split", {"split"}},
                                    {"page", {"pages"}},
                                    {"layout", {"layout", "head_dims"}},
                                    {"kv_head", {"heads"}},
                                    {"factor_scores", {"scores", "scales"}},
                                    {"alibi_slope", {"alibi"}},
                                    {"normalisation", {"softmax"}},
                                    {"sink", {"sinks"}},
                                    {"element_type", {"unlike_types", "formats"}}};
  return table;
}

std::string_view find_in(const MechanismTable& table, std::string_view name) {
  for (const auto& [mechanism, names] : table)
    if (std::ranges::find(names, name) != names.end()) return mechanism;
  return {};
}

}  // namespace

std::string mechanism_of(const FaultInfo& fault) {
  if (const std::string_view known = find_in(by_id(), fault.id); !known.empty()) return std::string(known);
  const std::string_view of_family = find_in(by_family(), fault.family);
  return of_family.empty() ? "other" : std::string(of_family);
}

Proposals propose_all(const Scene& scene, const TimeLimit& limit, std::vector<std::string>& not_tried) {
  struct Named {
    const char* name;
    void (*propose)(const Scene& scene, Proposals& list);
  };
  static constexpr Named kAll[] = {{"factor", propose_factor},
                                   {"normalisation", propose_normalisation},
                                   {"sink", propose_sink},
                                   {"score_value", propose_score_value},
                                   {"key_range", propose_key_range},
                                   {"key_group", propose_key_group},
                                   {"output_row", propose_output_row},
                                   {"query_row", propose_query_row},
                                   {"kv_head", propose_kv_head},
                                   {"table_row", propose_table_row},
                                   {"page", propose_page},
                                   {"page_contents", propose_page_contents},
                                   {"shapes", propose_shapes},
                                   {"token_scales", propose_token_scales},
                                   {"new_rows", propose_new_rows},
                                   {"census", propose_census},
                                   {"pairs", propose_pairs},
                                   {"positions", propose_positions},
                                   {"rope", propose_rope},
                                   {"dims", propose_dims},
                                   {"rounding", propose_rounding},
                                   {"element_type", propose_element_type},
                                   {"layout", propose_layout},
                                   {"mask", propose_mask},
                                   {"late_tile", propose_late_tile},
                                   {"split", propose_split},
                                   {"finite_infinity", propose_finite_infinity},
                                   {"lse", propose_lse}};
  // The order of the proposals decides between equals, whichever thread is first.
  std::array<Proposals, std::size(kAll)> lists;
  std::array<bool, std::size(kAll)> done{};
  limit.run([&] {
    threads::for_each_index(std::size(kAll), [&](std::size_t i) {
      kAll[i].propose(scene, lists[i]);
      done[i] = true;
    });
  });
  for (std::size_t i = 0; i < std::size(kAll); ++i)
    if (!done[i]) not_tried.emplace_back(kAll[i].name);
  Proposals all;
  for (Proposals& list : lists) std::move(list.begin(), list.end(), std::back_inserter(all));
  return all;
}

bool explains(const Facts& facts, const OpenCell& cell, const Plant& plant) {
  Model model(facts);
  plant(model);
  return cell.explained_by(cell.distance(evaluate(model, std::span<const RowHead>(&cell.at, 1))[0].out));
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
