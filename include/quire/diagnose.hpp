// SPDX-License-Identifier: Apache-2.0
// Oracle (fp64 reference), comparison that judges an output, and search for the cause of a wrong output.
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
#include "quire/capture.hpp"
#include "quire/contract.hpp"
#include "quire/status.hpp"

namespace quire {

/// Rounding that a right kernel may do besides its f32 arithmetic (numerics.md, "Profiles"). The default holds for Quire's own
/// kernels.
struct NumericsProfile {
  DType weights = DType::f32;      ///< softmax weights are rounded to f16 or bf16 before they meet V (FlashAttention, Triton)
  DType scores = DType::f32;       ///< every step of a score is stored in f16 or bf16 (eager PyTorch)
  DType accumulator = DType::f32;  ///< sums of products, over dims and over keys, are held in f16 or bf16
  DType parts = DType::f32;    ///< partial results of ranks, or of a ring's steps, are stored in f16 or bf16 before their merge
  bool tf32_products = false;  ///< factors of both products keep TF32's 11 significant bits (Triton's tl.dot of f32)
  bool dequantised_to_query =
      false;  ///< cached K and V times their scale are rounded to the query's type (vLLM's Triton kernels)

  bool plain() const { return *this == NumericsProfile{}; }
  friend bool operator==(const NumericsProfile&, const NumericsProfile&) = default;
};
/// "weights=bf16,scores=bf16,accumulator=f16,parts=bf16,products=tf32,dequantised": the words that differ from the plain
/// profile, or "plain".
std::string to_string(const NumericsProfile& profile);
/// Inverse of to_string(), words in any order; parse_error names the unknown word and what is expected.
Result<NumericsProfile> parse_profile(std::string_view text);
/// Completes "a kernel that ...": "rounds its softmax weights to bf16".
std::string in_words(const NumericsProfile& profile);

/// fp64 attention of the stored (quantised) cache, with the sums that bound a kernel's error (numerics.md).
/// Row-major [num_tokens, num_q_heads, v_head_dim] (out, abs_pv, abs_spv) and [num_tokens, num_q_heads] (the rest).
/// M_k = |scale| sum_d |q_d K_kd| + |slope (k - q_pos)| + cap / 4 + |s(k) - m| measures what rounding can do to a score.
///
/// A row with no visible key, or with only -inf scores, has out = 0 and lse = -inf (lse = sink, if the head has one). A padding
/// row under Padding::zero has out = 0 and lse = -inf, sink or not. Under Padding::left padding rows have no expected value and
/// no entry here. NaN in a visible score or value propagates as IEEE 754 says. k/v scales apply to cached tokens only.
struct Reference {
  std::int64_t num_tokens = 0, num_q_heads = 0;
  std::int64_t head_dim = 0;       ///< length of dot products
  std::int64_t v_head_dim = 0;     ///< length of output rows
  std::int64_t num_left_rows = 0;  ///< padding rows after the last token, in the output but not judged (Padding::left)
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> abs_pv;          ///< sum_k max(p_k, least) |V_k|, p normalised; least: numerics.md
  std::vector<double> abs_spv;         ///< sum_k p_k M_k |V_k|
  std::vector<double> score_mag;       ///< sum_k p_k M_k, plus p_sink (|sink| + |sink - m|)
  std::vector<double> abs_lost;        ///< sum_k max(0, min(p_k, 2^-25) - 2^-11 p_k) |V_k|: loss of weights to f16's subnormals
  std::vector<std::int64_t> num_keys;  ///< visible keys
  DType output = DType::none;          ///< type by which outputs are judged, the batch's; none: the type that an output has
  DType cache = DType::none;           ///< the cache's type
  NumericsProfile profile;             ///< rounding that the sums above allow besides f32 arithmetic
};
/// Two-pass fp64 reference; shares nothing with the kernels but dtype decode. Checks metadata and tables first. `profile` widens
/// the tolerance by the error of its rounding; dequantised_to_query changes K and V themselves. invalid_argument for a profile
/// with other types.
Result<Reference> reference(const Batch& batch, const KVCache& cache, const Options& options,
                            const NumericsProfile& profile = {});
/// Reference of some rows only: row i of the result is row tokens[i] of the batch. invalid_argument for a token outside the
/// batch, and for a padding row under Padding::left.
Result<Reference> reference(const Batch& batch, const KVCache& cache, const Options& options,
                            std::span<const std::int64_t> tokens, const NumericsProfile& profile = {});

/// A place where an output is wrong.
struct Mismatch {
  std::int64_t token = 0, head = 0, dim = 0;  ///< dim -1: the lse of (token, head)
  double observed = 0, expected = 0, tolerance = 0;
};

/// NaN and infinity positions are compared first; then |observed - expected| <= tolerance element by element, where the
/// tolerance is derived in numerics.md from unit roundoff, sum p|v| and the score magnitude.
struct Comparison {
  bool ok = false;
  std::int64_t num_elements = 0;
  std::int64_t num_mismatches = 0;  ///< elements over tolerance, NaN/inf mismatches included
  std::int64_t num_nonfinite_mismatches = 0;
  double worst_ratio = 0;  ///< max of |error| / tolerance over finite elements
  Mismatch worst;
  std::vector<Mismatch> first;  ///< first mismatches in index order, at most 16
  std::string text;             ///< paragraph for people
};
/// `output` like Batch::output. `lse` may be absent.
Comparison compare(const Tensor& output, const Tensor& lse, const Reference& expected);
/// Compares lse alone, which must be present.
Comparison compare_lse(const Tensor& lse, const Reference& expected);

/// Widens the tolerance for kernels that round each softmax weight to `weights` (f16 or bf16) before the product with V:
/// FlashAttention, vLLM's Triton kernels, and Quire's kernels by rounds_weights(). Adds an error of at most u * sum_k p_k |V_k|,
/// and the loss to f16's subnormals (numerics.md, "Rounded weights"). Changes expected.abs_pv; DType::f32 for `weights` changes
/// nothing.
void allow_rounded_weights(Reference& expected, DType weights);
/// Widens the tolerance likewise, but only for tokens whose entry in `tokens` is true.
void allow_rounded_weights(Reference& expected, DType weights, const std::vector<bool>& tokens);

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
