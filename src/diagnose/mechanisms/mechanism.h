// SPDX-License-Identifier: Apache-2.0
// A mechanism proposes models: ways in which a kernel could have made the observed numbers. Parameters of a model come from an
// inversion of a few wrong cells, or from a short list. evidence.h decides, over many cells, whether a proposal holds.
//
// To add one: add a file, a line here and a line in mechanisms.cpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnose/census.h"
#include "diagnose/fault_model.h"
#include "diagnose/open_cell.h"

namespace quire::diagnose_detail {

/// A model, and its description in words.
struct Proposal {
  std::string mechanism;  ///< id of diagnose.md: "factor_out", "key_range", ...
  std::string text;       ///< completes "a kernel that ..."
  std::string detail;     ///< its parameters in words
  std::string next;       ///< advice for the next step
  int parameters = 0;     ///< numbers fitted to the evidence; among equals fewer come first
  std::function<void(Model&)> plant;
  const Fault* fault = nullptr;  ///< the entry of the catalogue, if it is one
  bool symptom = false;          ///< describes what happened without a cause
};

/// The evidence that a mechanism may look at.
struct Scene {
  const Facts& facts;
  const Observed& observed;
  const Localisation& where;
  std::vector<const Compared*> wrong;  ///< the wrong cells of the pattern
  std::vector<OpenCell> cells;         ///< a few of them, laid open; those with many keys are not among them
  std::span<const RowCensus> census;   ///< who was read by a few wrong rows, where that has one solution
  std::span<const RowCensus> pairs;    ///< likewise, of one side beside the other
};

using Proposals = std::vector<Proposal>;

/// Advice where K or V lies in another page: it was read there, or written there.
inline constexpr const char* kNextPage =
    "compare block_table at the time of the call with the pages that the kernel reads; quire check with a slot ledger names the "
    "writer";

void propose_factor(const Scene& scene, Proposals& list);
void propose_normalisation(const Scene& scene, Proposals& list);
void propose_sink(const Scene& scene, Proposals& list);
void propose_score_value(const Scene& scene, Proposals& list);
void propose_key_range(const Scene& scene, Proposals& list);
void propose_key_group(const Scene& scene, Proposals& list);
void propose_output_row(const Scene& scene, Proposals& list);
void propose_query_row(const Scene& scene, Proposals& list);
void propose_kv_head(const Scene& scene, Proposals& list);
void propose_table_row(const Scene& scene, Proposals& list);
void propose_page(const Scene& scene, Proposals& list);
void propose_page_contents(const Scene& scene, Proposals& list);
void propose_token_scales(const Scene& scene, Proposals& list);
void propose_new_rows(const Scene& scene, Proposals& list);
void propose_census(const Scene& scene, Proposals& list);
void propose_pairs(const Scene& scene, Proposals& list);
void propose_positions(const Scene& scene, Proposals& list);
void propose_rope(const Scene& scene, Proposals& list);
void propose_dims(const Scene& scene, Proposals& list);
void propose_rounding(const Scene& scene, Proposals& list);
void propose_rounded_weights(const Scene& scene, Proposals& list);
void propose_element_type(const Scene& scene, Proposals& list);
void propose_layout(const Scene& scene, Proposals& list);
void propose_mask(const Scene& scene, Proposals& list);
void propose_shapes(const Scene& scene, Proposals& list);
void propose_late_tile(const Scene& scene, Proposals& list);
void propose_split(const Scene& scene, Proposals& list);
void propose_finite_infinity(const Scene& scene, Proposals& list);
void propose_lse(const Scene& scene, Proposals& list);

/// Returns the proposals of every mechanism; mechanisms that time left no room for go to `not_tried`.
Proposals propose_all(const Scene& scene, const TimeLimit& limit, std::vector<std::string>& not_tried);

/// Whether a model explains a cell: a parameter that does not is not worth proposing.
bool explains(const Facts& facts, const OpenCell& cell, const Plant& plant);

/// The mechanism that a fault of the catalogue is an instance of.
std::string mechanism_of(const FaultInfo& fault);

/// Are these values one value, as far as `relative` tells?
bool all_same(const std::vector<double>& values, double relative);
double median(std::vector<double> values);

}  // namespace quire::diagnose_detail
