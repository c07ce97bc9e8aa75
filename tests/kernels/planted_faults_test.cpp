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
  Fault fault;
  const char* hazard;
  const char* text;  ///< as in docs/reference/testing.md
};

/// Keeps GoogleTest from printing the bytes of a parameter.
void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.hazard << ": " << planted.text; }

const Planted kPlanted[] = {
    {Fault::reads_page_tail, "LastPagePartial", "reads the last page to its end"},
    {Fault::rounds_context_to_page, "ChunkStartsMidPage", "takes the context for a multiple of the page size"},
    {Fault::ignores_window, "WindowHidesFirstPage", "ignores the window"},
    {Fault::window_from_page_start, "WindowHidesFirstPage", "starts the window at a page boundary"},
    {Fault::window_one_short, "WindowOne", "keeps window - 1 keys, and 0 means no window"},
    {Fault::large_negative_stand_in, "NoVisibleKey", "starts the maximum at -10000 instead of -inf"},
    {Fault::writes_row_for_query_len_0, "QueryLenZero", "writes a row for a request without query rows"},
    {Fault::writes_padding_rows, "PaddedRows", "writes rows behind the last start where they are to be left"},
    {Fault::leaves_padding_rows, "PaddedRows", "leaves rows behind the last start as they are where zeros are asked for"},
    {Fault::claims_pages, "SharedPrefixPages", "lets one request own a page"},
    {Fault::multiplies_masked_tail, "PageTailNaN", "masks the tail by weight 0 and multiplies it (0 * NaN)"},
    {Fault::leaks_finite_tail, "PageTailNaN", "reads the tail, but skips NaN: only finite garbage shows it"},
    {Fault::multiplies_out_of_window, "OutOfWindowNaN", "masks keys left of the window by weight 0 and multiplies them"},
    {Fault::reads_table_left_of_window, "StalePagesLeftOfWindow",
     "looks up the pages of the whole tile of 64 keys in which the window begins"},
    {Fault::reads_table_past_end, "TablePastEndHuge", "follows a table entry past the end"},
    {Fault::caps_rows, "QueryLongerThanTile", "serves the first 64 rows of a request"},
    {Fault::drops_tail_dims, "OddHeadDim", "drops dims beyond a multiple of 32"},
    {Fault::shifts_group, "OddGroup", "divides by the group size with a shift"},
    {Fault::kv_head_modulo, "OddGroup", "maps query head h to KV head h % num_kv_heads"},
    {Fault::shifts_page, "OddPage", "divides by the page size with a shift"},
    {Fault::caps_chunks, "WideToken", "handles the first 512 chunks of 16 bytes of a token"},
    {Fault::offset_32_bit, "HugeOffsets", "keeps element offsets in 32 bits"},
    {Fault::ignores_negative_slopes, "NegativeSlopes", "takes negative ALiBi slopes for 0"},
    {Fault::alibi_from_context, "NegativeSlopes", "counts ALiBi distances from the end of the context"},
    {Fault::drops_sink, "SinkDominates", "leaves the sink out of the denominator"},
    {Fault::sink_in_numerator, "SinkDominates", "gives the sink a value of one"},
    {Fault::wrong_fp8_format, "Fp8Extremes", "reads fn codes as fnuz and the reverse"},
    {Fault::flushes_fp8_subnormals, "Fp8Extremes", "flushes fp8 subnormals to zero"},
    {Fault::no_max_subtraction, "PeakySoftmax", "takes exp of the score without subtracting the maximum"},
    {Fault::speculative_rows_see_all, "SpeculativeRows", "treats short query runs as decode rows that see the whole sequence"},
    {Fault::all_keys_from_cache, "CachedLenBetween", "reads every key from the cache"},
    {Fault::new_rows_from_context, "CachedLenBetween", "reads every new key from key / value"},
    {Fault::scales_new_rows, "CachedLenBetween", "applies k_scale and v_scale to key / value rows"},
    {Fault::drops_last_split, "SplitKv", "leaves the last split out of the merge"},
    {Fault::takes_all_for_causal, "NonCausal", "takes every request for causal"},
    {Fault::flag_of_first_request, "CausalByRequest", "gives every request the causal flag of the first"},
    {Fault::divides_by_no_key, "NoKeys", "divides 0 by 0 for a row that sees no key"},
    {Fault::window_right_one_long, "WindowBothSides", "lets rows see one key more to the right than window_right"},
    {Fault::ignores_q_begin, "ContextShard", "takes the rows of a request to stand at the end of its keys"},
    {Fault::window_from_key_zero, "HeadOfCacheDropped", "measures the window from global positions to keys of the shard"},
    {Fault::scores_over_dims_of_v, "OwnHeadDimOfV", "leaves the dims that K has beyond V out of the dot product"},
    {Fault::stops_at_dims_of_k, "OwnHeadDimOfV", "writes zeros into the dims that V has beyond K"},
    {Fault::v_from_last_dims, "VInRowsOfK", "reads V from the last dims of a latent row"},
    {Fault::ignores_soft_cap, "SoftCap", "ignores the soft cap"},
    {Fault::drops_wide_dims_of_later_keys, "WideHeadsManyKeys", "multiplies only 128 dims of keys behind the first 64"},
    {Fault::cap_after_alibi, "EverythingAtOnce", "adds ALiBi before the soft cap"},
    {Fault::swaps_scales, "EverythingAtOnce", "swaps k_scale and v_scale"},
    {Fault::scale_from_heads, "EverythingAtOnce", "takes softmax_scale from the number of heads"},
    {Fault::base_2_lse, "EverythingAtOnce", "writes lse in base 2"},
    {Fault::swallows_nan, "NaNInAVisibleKey", "skips a visible key whose score is NaN"},
    {Fault::noise, "EverythingAtOnce", "gives other bits on a second run"},
    {Fault::threads_change_bits, "EverythingAtOnce", "gives other bits on more threads"},
    {Fault::writes_past_end, "EverythingAtOnce", "writes one element past the output"},
    {Fault::counts_wrong, "EverythingAtOnce", "counts a row too few"},
    {Fault::skips_last_row, "EverythingAtOnce", "never writes the last row, but counts it"},
    {Fault::batch_changes_bits, "AloneOrInABatch", "gives a request other bits in a batch"},
    {Fault::chunk_changes_bits, "Chunking", "gives a request other bits in small chunks"},
    {Fault::chunk_of_16_changes_bits, "Chunking", "gives a request other bits in chunks of 16"},
    {Fault::chunk_of_64_changes_bits, "ChunksOf512", "gives a request other bits in chunks of 64"},
    {Fault::chunk_of_512_changes_bits, "ChunksOf512", "gives a request other bits in chunks of 512"},
};

/// Calls visit(line, findings) for each line of the hazard until it returns false.
template <typename Visit>
void judge_hazard(const std::string& hazard, const Attend& attend, Visit&& visit) {
  const auto line_of = [](const std::string& types, const std::string& shape) { return hazard_line(types, shape, 1); };
  if (hazard == "NoVisibleKey") {
    const ProblemLine line = line_of("q=f32 kv=f32", "heads=4:2 d=16 page=8 lse=1 reqs=3@20,1@9");
    if (!visit(line, judge(line, attend, Special::minus_infinite_scores))) return;
  } else if (hazard == "Fp8Extremes") {
    for (const std::string kv : {"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"}) {
      const ProblemLine line =
          line_of("q=f32 kscale=tensor vscale=tensor kv=" + kv, "heads=4:2 d=32 page=8 lse=1 reqs=5@40,1@70");
      if (!visit(line, judge(line, attend, Special::every_fp8_code))) return;
    }
  } else if (hazard == "HugeOffsets") {
    const ProblemLine line =
        line_of("q=f32 kv=fp8_e4m3fn kscale=tensor vscale=tensor", "heads=4:2 d=32 page=16 lse=1 reqs=3@40,1@70");
    visit(line, judge(line, attend, Special::huge_offsets));
  } else if (hazard == "StalePagesLeftOfWindow") {
    for (const ProblemLine& line : stale_page_lines())
      if (!visit(line, judge(line, attend, Special::stale_pages))) return;
  } else if (hazard == "NaNInAVisibleKey") {
    const ProblemLine line = line_of("q=f32 kv=f32", "heads=4:2 d=16 page=8 lse=1 reqs=70@20,1@20");
    const Case c = made(line);
    const std::int64_t page = semantics::index_row(c.batch.block_table, 0)[50 / 8];
    static_cast<float*>(c.cache.k.data)[((page * 8 + 50 % 8) * 2 + 1) * 16 + 3] = std::nanf("");
    visit(line, judge(c, attend));
  } else if (hazard == "AloneOrInABatch" || hazard == "Chunking") {
    const ProblemLine line = line_of("q=f32 kv=bf16", "heads=4:2 d=16 page=16 lse=1 reqs=20@30,1@40");
    visit(line, hazard == "Chunking" ? judge_chunked(made(line), attend) : judge_alone(made(line), attend));
  }
  if (hazard == "ChunksOf512") {
    const ProblemLine line = line_of("q=f32 kv=bf16", "heads=1:1 d=8 page=16 lse=1 reqs=520@3");
    visit(line, judge_chunked(made(line), attend));
  }
  for (const Hazard& h : hazards()) {
    if (h.name != hazard) continue;
    std::uint64_t seed = 1;
    for (const std::string& types : type_combinations())
      for (const std::string& shape : h.shapes) {
        const ProblemLine line = hazard_line(types, shape, seed++);
        if (!visit(line, judge(line, attend))) return;
      }
  }
}

class PlantedFaults : public testing::TestWithParam<Planted> {};

TEST_P(PlantedFaults, AreFoundByTheCheckOfTheirHazard) {
  const Planted& planted = GetParam();
  bool found = false;
  std::string example;
  judge_hazard(planted.hazard, mutant(planted.fault), [&](const ProblemLine&, const std::vector<std::string>& findings) {
    found = found || !findings.empty();
    if (!findings.empty()) example = findings.front();
    return !found;
  });
  EXPECT_TRUE(found) << planted.hazard << " does not notice a kernel that " << planted.text;
  RecordProperty("finding", example);
}

std::string fault_name(const testing::TestParamInfo<Planted>& test) {
  std::string name = test.param.hazard;
  name += "_";
  for (const char* c = test.param.text; *c != '\0'; ++c)
    if (std::isalnum(static_cast<unsigned char>(*c)) != 0 || *c == ' ') name += *c == ' ' ? '_' : *c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(, PlantedFaults, testing::ValuesIn(kPlanted), fault_name);

/// The first and a few more combinations: the point is that no check cries wolf.
class WithoutAFault : public testing::TestWithParam<std::string> {};

TEST_P(WithoutAFault, NothingIsFound) {
  int left = GetParam() == "WideHeadsManyKeys" ? 3 : 12;  // its rows cost ten times those of others
  judge_hazard(GetParam(), mutant(Fault::none), [&](const ProblemLine& line, const std::vector<std::string>& findings) {
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
  for (const Planted& planted : kPlanted) expected += fmt::format("| `{}` | {} |\n", planted.hazard, planted.text);
  EXPECT_EQ(documented, expected) << "docs/reference/testing.md, table of planted faults";
}

}  // namespace

}  // namespace quire::test
