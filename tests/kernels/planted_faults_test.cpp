// SPDX-License-Identifier: Apache-2.0
// The suite's own power: for each hazard, a fault that its check must find; without a fault, it must find nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "kernels/hazard_cases.h"
#include "kernels/invariance.h"
#include "kernels/mutant.h"

namespace quire::test {
namespace {

struct Planted {
  const char* fault;  ///< see mutant.h
  const char* hazard;
};

/// Keeps GoogleTest from printing the bytes of a parameter.
void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.hazard << ": " << planted.fault; }

const Planted kPlanted[] = {
    {"page_tail_read", "LastPagePartial"},
    {"context_rounded_to_page", "ChunkStartsMidPage"},
    {"window_ignored", "WindowHidesFirstPage"},
    {"window_from_page_start", "WindowHidesFirstPage"},
    {"window_one_short", "WindowOne"},
    {"large_negative_stand_in", "NoVisibleKey"},
    {"empty_request_overwrites_neighbour", "QueryLenZero"},
    {"writes_padding_rows", "PaddedRows"},
    {"padding_rows_left", "PaddedRows"},
    {"shared_pages_claimed", "SharedPrefixPages"},
    {"masked_tail_multiplied", "PageTailNaN"},
    {"leaks_finite_tail", "PageTailNaN"},
    {"out_of_window_multiplied", "OutOfWindowNaN"},
    {"reads_left_of_window", "StalePagesLeftOfWindow"},
    {"validates_unused_entries", "TablePastEndHuge"},
    {"rows_past_max_query_len_not_written", "QueryLongerThanTile"},
    {"query_tail_dims_dropped", "OddHeadDim"},
    {"kv_head_shifted_group", "OddGroup"},
    {"kv_head_modulo", "OddGroup"},
    {"page_size_shifted", "OddPage"},
    {"append_capped_at_512_threads", "WideToken"},
    {"output_not_written", "GroupsOf8"},
    {"element_offset_32_bit", "HugeOffsets"},
    {"negative_slopes_as_zero", "NegativeSlopes"},
    {"alibi_origin_shifted", "NegativeSlopes"},
    {"sinks_dropped", "SinkDominates"},
    {"sink_in_numerator", "SinkDominates"},
    {"fp8_fn_fnuz_confused", "Fp8Extremes"},
    {"fp8_subnormals_flushed", "Fp8Extremes"},
    {"no_max_subtraction", "PeakySoftmax"},
    {"speculative_rows_see_all", "SpeculativeRows"},
    {"all_keys_from_cache", "CachedLenBetween"},
    {"new_rows_from_context", "CachedLenBetween"},
    {"scales_on_new_rows", "CachedLenBetween"},
    {"last_split_dropped", "SplitKv"},
    {"causal_flag_ignored", "NonCausal"},
    {"causal_flag_of_first_request", "CausalByRequest"},
    {"no_key_gives_nan", "NoKeys"},
    {"window_right_one_long", "WindowBothSides"},
    {"q_begin_ignored", "ContextShard"},
    {"key_begin_ignored_in_window", "HeadOfCacheDropped"},
    {"chunk_as_window", "Chunks"},
    {"prefix_ignored", "VisiblePrefix"},
    {"span_end_included", "Spans"},
    {"tree_highest_bit_first", "Trees"},
    {"rope_dims_dropped", "OwnHeadDimOfV"},
    {"v_dims_beyond_k_zero", "OwnHeadDimOfV"},
    {"v_read_from_last_dims", "VInRowsOfK"},
    {"latent_scale_of_next_block", "LatentRows"},
    {"latent_last_block_takes_first_scale", "LatentRows"},
    {"latent_scales_dropped", "LatentRows"},
    {"rope_read_as_codes", "LatentRows"},
    {"rope_read_behind_codes", "LatentRows"},
    {"soft_cap_ignored", "SoftCap"},
    {"wide_dims_of_later_keys_dropped", "WideHeadsManyKeys"},
    {"soft_cap_after_alibi", "EverythingAtOnce"},
    {"scales_swapped", "EverythingAtOnce"},
    {"scale_from_query_heads", "EverythingAtOnce"},
    {"lse_base_2", "EverythingAtOnce"},
    {"nan_scores_skipped", "NaNInAVisibleKey"},
    {"noise", "EverythingAtOnce"},
    {"threads_change_bits", "EverythingAtOnce"},
    {"writes_past_end", "EverythingAtOnce"},
    {"rows_miscounted", "EverythingAtOnce"},
    {"last_row_not_written", "EverythingAtOnce"},
    {"batch_changes_bits", "AloneOrInABatch"},
    {"chunk_changes_bits", "Chunking"},
    {"chunk_of_16_changes_bits", "Chunking"},
    {"chunk_of_64_changes_bits", "ChunksOf512"},
    {"chunk_of_512_changes_bits", "ChunksOf512"},
};

/// Calls visit(line, findings) for each line of the hazard until it returns false.
template <typename Visit>
void judge_hazard(const std::string& hazard, const Attend& attend, Visit&& visit) {
  const auto line_of = [](const std::string& types, const std::string& shape) { return hazard_line(types, shape, 1); };
  if (hazard == "AloneOrInABatch" || hazard == "Chunking") {
    const ProblemLine line = line_of("q=f32 kv=bf16", "heads=4:2 d=16 page=16 lse=1 reqs=20@30,1@40");
    visit(line, hazard == "Chunking" ? judge_chunked(made(line), attend) : judge_alone(made(line), attend));
  } else if (hazard == "ChunksOf512") {
    const ProblemLine line = line_of("q=f32 kv=bf16", "heads=1:1 d=8 page=16 lse=1 reqs=520@3");
    visit(line, judge_chunked(made(line), attend));
  }
  static const std::vector<verify_detail::Entry> entries = verify_detail::hazard_matrix(/*quick=*/false);
  for (const verify_detail::Entry& entry : entries)
    if (entry.name == hazard && !visit(entry.line, judge(entry.line, attend, entry.special))) return;
}

class PlantedFaults : public testing::TestWithParam<Planted> {};

TEST_P(PlantedFaults, AreFoundByTheCheckOfTheirHazard) {
  const Planted& planted = GetParam();
  bool found = false;
  std::string example;
  const Mutant wrong = mutant(planted.fault);
  judge_hazard(planted.hazard, wrong.attend, [&](const ProblemLine&, const std::vector<std::string>& findings) {
    found = found || !findings.empty();
    if (!findings.empty()) example = findings.front();
    return !found;
  });
  EXPECT_TRUE(found) << planted.hazard << " does not notice a kernel that " << wrong.text;
  RecordProperty("finding", example);
}

std::string fault_name(const testing::TestParamInfo<Planted>& test) {
  return std::string(test.param.hazard) + "_" + test.param.fault;
}
INSTANTIATE_TEST_SUITE_P(, PlantedFaults, testing::ValuesIn(kPlanted), fault_name);

/// The first and a few more combinations: the point is that no check cries wolf.
class WithoutAFault : public testing::TestWithParam<std::string> {};

TEST_P(WithoutAFault, NothingIsFound) {
  int left = GetParam() == "WideHeadsManyKeys" ? 3 : 12;  // rows of WideHeadsManyKeys cost ten times those of others
  judge_hazard(GetParam(), mutant("none").attend, [&](const ProblemLine& line, const std::vector<std::string>& findings) {
    EXPECT_TRUE(findings.empty()) << report(line, findings);
    return --left > 0;
  });
}

std::vector<std::string> hazard_names() {
  std::set<std::string> names;
  for (const Planted& planted : kPlanted) names.insert(planted.hazard);
  return {names.begin(), names.end()};
}
INSTANTIATE_TEST_SUITE_P(, WithoutAFault, testing::ValuesIn(hazard_names()), [](const auto& test) { return test.param; });

/// verify lists a refusal; a kernel that the tests force must serve the case.
TEST(Judge, TakesARefusalForAFinding) {
  const Attend refuses = [](const Case&, int, std::int64_t&) { return Status(Code::unsupported, "not here"); };
  const std::vector<std::string> findings = judge(hazard_line("q=f32 kv=f32", "heads=1 d=8 page=4 reqs=1@3", 1), refuses);
  EXPECT_EQ(findings, std::vector<std::string>{"refused: not here"});
}

TEST(HazardTable, EveryHazardHasAPlantedFault) {
  const std::vector<std::string> names = hazard_names();
  for (const Hazard& hazard : hazards())
    EXPECT_NE(std::find(names.begin(), names.end(), hazard.name), names.end()) << hazard.name << " has no planted fault";
}

TEST(HazardTable, EqualsTheOneInDocsTesting) {
  std::ifstream file(QUIRE_SOURCE_DIR "/docs/reference/testing.md");
  std::string documented, expected;
  for (std::string row; std::getline(file, row);)
    if (row.rfind("| `", 0) == 0) documented += row + "\n";
  for (const Planted& planted : kPlanted)
    expected += fmt::format("| `{}` | `{}` | {} |\n", planted.hazard, planted.fault, mutant(planted.fault).text);
  EXPECT_EQ(documented, expected) << "docs/reference/testing.md, table of planted faults";
}

}  // namespace

}  // namespace quire::test
