// SPDX-License-Identifier: Apache-2.0
// The search for the cause of a wrong output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/batch.hpp"
#include "quire/contract.hpp"
#include "quire/status.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/compare.hpp"

namespace quire {

/// An attribute of a cell, which is one head of one output row (diagnose.md, "Patterns").
enum class CellAttribute : std::uint8_t {
  request,
  token,          ///< output row
  row,            ///< index in its request
  rows_from_end,  ///< query_len - 1 - row
  query_len,
  seq_len,
  context_len,
  q_pos,        ///< q_begin + row, in the numbering of the caller
  num_keys,     ///< visible ones
  page_offset,  ///< (q_pos - key_begin) % page_size
  num_pages,    ///< logical pages that the visible keys lie in
  page,         ///< physical pages of the cache that the visible keys lie in
  head,
  kv_head,
  head_in_group,
  dim,
};
enum class CellTest : std::uint8_t {
  is,         ///< v is one of `values`
  from,       ///< v >= values[0]
  to,         ///< v <= values[0]
  between,    ///< values[0] <= v <= values[1]
  modulo,     ///< v % values[0] is one of the other values
  reads,      ///< page: a visible key lies in one of values
  not_reads,  ///< page: no visible key lies in any of values
};
std::string_view name(CellAttribute attribute) noexcept;  ///< "request", ..., "query_len", ...
std::string_view name(CellTest test) noexcept;            ///< "is", ..., "reads", "not reads"

struct CellCondition {
  CellAttribute attribute = CellAttribute::request;
  CellTest test = CellTest::is;
  std::vector<std::int64_t> values;

  /// Whether an attribute with this value fulfils the condition. Valid for every attribute but `page`.
  bool holds(std::int64_t value) const;
  bool operator==(const CellCondition&) const = default;
};

/// A rule that selects cells: all of its conditions hold.
struct CellPattern {
  std::vector<CellCondition> conditions;  ///< conditions; empty: the rule selects every cell, or no rule was found
  bool rule = true;                       ///< false: the attributes of the batch do not select the wrong cells
  std::int64_t cells = 0;                 ///< compared cells that the rule selects
  std::int64_t wrong_cells = 0;           ///< the wrong ones among them
  std::int64_t wrong_total = 0;           ///< wrong_cells and the wrong cells that no pattern selects
  std::string text;               ///< "exactly the decode rows, heads 16-31: 7 x 16 of 7 x 16 cells; no other cell is wrong"
  std::string scope_text;         ///< "the decode rows, heads 16-31"
  std::vector<std::string> also;  ///< other rules that select the same compared cells, shortest first: "the rows of request 2"

  double precision() const { return cells == 0 ? 0 : static_cast<double>(wrong_cells) / static_cast<double>(cells); }
  double recall() const { return wrong_total == 0 ? 0 : static_cast<double>(wrong_cells) / static_cast<double>(wrong_total); }
  bool exact() const { return rule && wrong_cells == cells && wrong_cells == wrong_total; }
};

/// Laws that every attention output obeys, whatever the scores were.
enum class OutputLaw : std::uint8_t {
  finite,     ///< broken: NaN or infinity, and every V row that the request may read is finite
  one_value,  ///< broken: all dims hold one value: the buffer's initial fill, or the 0 of a row that sees no key
  hull,       ///< broken: a dim lies outside [min, max] of the V rows that the request may read
};
std::string_view name(OutputLaw law) noexcept;  ///< a broken law in words: "not finite", ...

/// Rows that break one law.
struct LawFinding {
  OutputLaw law = OutputLaw::finite;
  std::vector<std::int64_t> tokens;  ///< rows with at least one head that breaks it, ascending
  std::string text;                  ///< "row 5336, head 0, dim 12 holds 1.69; the values it may average lie in [-0.001, 0.001]"
};

/// Wrong elements of one request.
struct WrongRequest {
  std::int64_t req = 0, query_len = 0, context_len = 0, seq_len = 0;
  std::vector<std::int64_t> tokens;  ///< rows with a wrong element, ascending
  std::vector<bool> heads;           ///< [num_q_heads], whether the head has a wrong element
  std::int64_t cells = 0;
  std::int64_t elements = 0, nonfinite = 0;    ///< wrong output elements; those among them that are NaN or infinite out of place
  std::int64_t first_dim = -1, last_dim = -1;  ///< range of dims of the wrong elements; -1: lse only
  bool lse = false;                            ///< an lse is wrong
  double largest_error = 0;                    ///< finite ones
};

/// State of a suspect: open, or the reason why it is not the cause.
enum class Standing : std::uint8_t {
  open,         ///< suspect may be the cause: no other of its part explains more
  refuted,      ///< suspect explains less, or breaks right elements
  unproven,     ///< suspect claims that rows were never written; their bytes do not prove that
  cannot_show,  ///< suspect changes nothing on this batch
};

/// One suspect of a diagnosis: a mechanism with its parameters, often an entry of faults().
struct Suspicion {
  std::string mechanism;    ///< id of diagnose.md, e.g. "factor_out"; two joined by " + " for a combination
  std::string fault;        ///< id in faults(), e.g. "query_start_loc_as_int32", or empty; two joined by " + "
  std::string family;       ///< family of the fault in faults(), or empty
  std::string text;         ///< "reads an int64 query_start_loc as int32"
  std::string detail;       ///< the parameters: "logical page 3 of request 5 read from page 17"
  std::string scope;        ///< scope of the suspect, if not the whole batch: "the decode rows, heads 16-31"
  std::string next;         ///< advice for the next step if this is the cause
  double explained = 0;     ///< share of the observed error that it explains, in [0, 1], less the share of right rows it breaks
  double largest_move = 0;  ///< largest change of a tested element
  double largest_left = 0;  ///< the largest error that it leaves unexplained
  bool certain = false;     ///< explains every dim of every wrong row looked at and breaks no right one (diagnose.md)
  bool tied = false;        ///< others with another remedy are as certain: the cause is one of them
  bool likely = false;      ///< explains nearly all of the error and some number, breaks no right row, claims nothing unprovable
  bool combined = false;    ///< suspect is two faults at once, found greedily: the second on top of the first
  Standing standing = Standing::open;
  std::string refutation;  ///< reason why the suspect is not the cause, with numbers; empty if `standing` is open
};

/// Suspects of one separate set of wrong cells.
struct DiagnosisPart {
  CellPattern pattern;      ///< the cells
  bool everything = false;  ///< the suspects are those of all wrong cells, although `pattern` is but the first of several
  std::size_t first = 0;    ///< index of the first suspect in Diagnosis::suspicions
  std::size_t count = 0;    ///< suspects from there on, best first; the last one is rounding, which is always refuted
};

struct DiagnoseOptions {
  bool full = false;  ///< compare every row with the reference and try every hypothesis, however long it takes
  /// Without `full`: time limit. It ends the search for a cause, not the comparison of an output that looks right: that is
  /// complete.
  double seconds = 10;
  /// Without `full`: rough time for comparing a wrong output with the reference, at most `seconds`; laws cover every row anyway.
  double reference_seconds = 1;
  /// Rounding that the kernel may do. Absent: plain, and if that finds something wrong, the tightest profile whose rounding looks
  /// like the error that was observed.
  std::optional<NumericsProfile> profile;
  std::function<void(const std::string& stage)> progress;
};

enum class DiagnosisVerdict : std::int32_t {
  right,
  cause_found,
  mechanism_likely,
  unknown_cause,
  broken_batch,  ///< a contract rule is broken: everything after is undefined
};
/// "right", "cause found", "mechanism likely", "unknown cause", "broken batch".
std::string_view name(DiagnosisVerdict verdict) noexcept;

namespace report {
struct Pictures;  // drawings of a page (src/report/pictures.h)
}

/// Answer of diagnose(): where an observed output is wrong, and why (diagnose.md). Holds data only: report.hpp makes text, JSON
/// and a page of it.
struct Diagnosis {
  DiagnosisVerdict verdict = DiagnosisVerdict::right;
  /// Suspects, best first; suspicions[0] is the cause if the verdict is cause_found. Wrong cells in separate scopes have a cause
  /// each: the suspects of one part follow those of the part before.
  std::vector<Suspicion> suspicions;
  std::vector<DiagnosisPart> parts;        ///< part of each of `patterns`, or a single one; empty if nothing is wrong
  std::vector<CellPattern> patterns;       ///< rules that select the wrong cells, one for each separate set
  std::vector<std::string> observations;   ///< facts that need no hypothesis, at most ten: measurements, who was read
  std::vector<LawFinding> laws;            ///< laws that are broken somewhere
  std::vector<WrongRequest> wrong;         ///< requests with wrong elements among the compared rows
  std::vector<std::int64_t> wrong_tokens;  ///< rows known to be wrong
  bool nothing_finite = false;             ///< every wrong cell is wrong by NaN or infinity alone
  std::string wrong_padding;               ///< finding about padding rows, or empty
  std::int64_t num_tokens = 0;             ///< rows of the output
  std::int64_t compared_rows = 0;          ///< rows that were compared with the reference
  bool complete = false;                   ///< every element was compared with the reference
  double stopped_after = 0;                ///< seconds after which the search ended before it was done; 0: it was done
  std::vector<std::string> not_tried;      ///< faults, mechanisms, "numerics profiles": not tried, or not to the end, by then
  NumericsProfile profile;                 ///< rounding that the tolerance allowed; not plain: given, or found in the data
  bool profile_found = false;              ///< the profile was found in the data, not given
  double worst_right = 0;                  ///< largest |error| / tolerance of the rows that are right
  double least_factor = 0;                 ///< smallest relative error that shows if all outputs have it; infinite if all are 0
  double least_factor_in_f32 = 0;          ///< least_factor without the profile, if the profile was found
  std::string problem;                     ///< the problem line
  std::vector<Finding> findings;           ///< findings of check() for a broken batch; no other member is set then
  std::shared_ptr<const report::Pictures> pictures;  ///< error maps and page map; null for a broken batch
};

/// Finds the cause of a wrong output. The steps: localise the wrong cells, apply laws that need no oracle, describe the wrong
/// cells by a rule, invert a few of them, test mechanisms and every fault of the catalogue with and without that rule as a scope,
/// and refute the rest with numbers. A search that time ends names what it has not tried; it is never sure of a cause while a
/// fault or a mechanism is among that. The case must have an `observed` output (invalid_argument).
Result<Diagnosis> diagnose(const Case& c, const DiagnoseOptions& options = {});

/// Returns the smallest part of a case that still shows the same cause: fewer requests, and only the pages that these requests
/// read. The observed output is cut to the same rows.
Result<Case> reduce_case(const Case& c, const Diagnosis& diagnosis);

}  // namespace quire
