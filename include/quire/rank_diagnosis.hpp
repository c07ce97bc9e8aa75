// SPDX-License-Identifier: Apache-2.0
// The search for a cause where the ranks that share a context have a wrong result: one capture per rank goes in.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/capture.hpp"
#include "quire/diagnose.hpp"
#include "quire/shards.hpp"
#include "quire/status.hpp"

namespace quire {

/// A rank's note "context_shard" in its capture: "rank=1 world=4 interleave=16" or "rank=1 world=4 span=1024", followed by
/// " heads=own" if the rank's result holds its own share of the heads.
struct RankNote {
  ContextShard shard;
  bool own_heads = false;
};
inline constexpr std::string_view kRankNote = "context_shard";
/// Note of a capture that was read from a file: the file's name, for messages.
inline constexpr std::string_view kFileNote = "read from";
std::string to_string(const RankNote& note);
/// Inverse of to_string(). parse_error names an invalid word.
Result<RankNote> parse_rank_note(std::string_view text);

/// A fault that was tested as an explanation of a rank's part or result.
struct RankSuspicion {
  std::string fault;   ///< id in rank_faults()
  std::string text;    ///< completes "ranks that ..."
  std::string detail;  ///< "rank 3's part is missing", or empty
  std::string next;
  bool explains = false;   ///< the fault explains every compared element, within its tolerance
  std::string refutation;  ///< the first element that it does not explain, with numbers
};

/// Comparison of one rank's partial result with fp64 attention over the keys that the rank holds.
struct RankPart {
  std::int32_t rank = 0;
  bool recorded = false;  ///< the capture has lse, and output is what the rank's own attention gave
  bool right = false;     ///< the part is recorded, and no element is wrong
  std::int64_t num_elements = 0, num_wrong = 0;
  double worst_ratio = 0;                 ///< largest |error| / tolerance of finite elements
  std::vector<RankSuspicion> suspicions;  ///< suspects of a wrong part, best first
  std::optional<Diagnosis> own;           ///< diagnose() of the rank's own batch, if no suspect explains its wrong part
};

/// Comparison of one result, which all of `ranks` have with the same bits, with the merge of all parts.
struct RankResult {
  std::vector<std::int32_t> ranks;
  bool right = false;
  std::int64_t num_elements = 0, num_wrong = 0;
  double worst_ratio = 0;
  std::vector<RankSuspicion> suspicions;  ///< suspects of a wrong result, best first
};

struct RankDiagnosis {
  DiagnosisVerdict verdict = DiagnosisVerdict::right;
  ContextShard shard;  ///< shard of rank 0
  std::int64_t num_tokens = 0, compared_rows = 0, num_q_heads = 0;
  std::vector<std::string> disagreements;  ///< broken batch: differences between ranks, or the rule that a rank breaks
  std::vector<RankPart> parts;             ///< parts in order of rank
  std::vector<RankResult> results;         ///< results in order of their first rank
};

/// Finds the cause of a wrong result of attend_sharded(). `captures` holds one capture for each rank of one step, in any order.
/// A rank's capture holds its call: lengths of the whole requests, the table and the cache of the rank, note kRankNote, and
/// observed (and observed_lse) = the rank's result after the exchange. If lse is present, output and lse = the rank's own part.
///
/// Compares every recorded part with attention over the rank's keys, and every result with the merge of the parts (fp64 parts if
/// none are recorded). Faults that explain every element are causes. invalid_argument: a note, a rank or an observed output is
/// missing, or ranks of two steps are mixed.
Result<RankDiagnosis> diagnose_ranks(std::span<const Case> captures, const DiagnoseOptions& options = {});

/// The complete report for a terminal, many lines.
std::string to_string(const RankDiagnosis& diagnosis);
struct DiagnosisText;
/// The text names the wrong ranks, the cause and the next step, in at most ten lines; a verbose text has all of the diagnosis.
std::string to_string(const RankDiagnosis& diagnosis, const DiagnosisText& as);
/// One JSON object (docs/reference/schemas/diagnose_ranks.json), without the fields of the command.
std::string to_json(const RankDiagnosis& diagnosis);

}  // namespace quire
