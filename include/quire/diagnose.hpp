// SPDX-License-Identifier: Apache-2.0
// The oracle, the comparison that judges an output, and the search for the cause of a wrong one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/batch.hpp"
#include "quire/capture.hpp"
#include "quire/status.hpp"

namespace quire {

/// Rounding that a right kernel may do besides its f32 arithmetic (numerics.md, "Profiles"). The default is Quire's own
/// kernels.
struct NumericsProfile {
  DType weights = DType::f32;      ///< softmax weights are rounded to f16 or bf16 before they meet V (FlashAttention, Triton)
  DType scores = DType::f32;       ///< every step of a score is stored in f16 or bf16 (eager PyTorch)
  DType accumulator = DType::f32;  ///< sums of products, over dims and over keys, are held in f16 or bf16
  bool tf32_products = false;      ///< factors of both products keep TF32's 11 significant bits (Triton's tl.dot of f32)
  bool dequantised_to_query =
      false;  ///< cached K and V times their scale are rounded to the query's type (vLLM's Triton kernels)

  bool plain() const { return *this == NumericsProfile{}; }
  friend bool operator==(const NumericsProfile&, const NumericsProfile&) = default;
};
/// "weights=bf16,scores=bf16,accumulator=f16,products=tf32,dequantised": the words that differ from the plain profile, "plain" if
/// there is none.
std::string to_string(const NumericsProfile& profile);
/// Inverse of to_string(), words in any order; parse_error names a word that is none, and what is expected.
Result<NumericsProfile> parse_profile(std::string_view text);
/// Completes "a kernel that ...": "rounds its softmax weights to bf16".
std::string in_words(const NumericsProfile& profile);

/// fp64 attention of the stored (quantised) cache, with what is needed to bound a kernel's error (numerics.md).
/// Row-major [num_tokens, num_q_heads, head_dim] (out, abs_pv, abs_spv) and [num_tokens, num_q_heads] (the rest).
/// M_k = |scale| sum_d |q_d K_kd| + |slope (k - q_pos)| + cap / 4 + |s(k) - m| measures what rounding can do to a score.
///
/// A row with no visible key, or with only -inf scores, has out = 0 and lse = -inf (the sink, if there is one). So has a padding
/// row under Padding::zero, sink or not; under Padding::left there is no answer, and the row is not in here.
/// NaN in a visible score or value propagates as IEEE 754 says. k/v scales apply to cached tokens only.
struct Reference {
  std::int64_t num_tokens = 0, num_q_heads = 0, head_dim = 0;
  std::int64_t num_left_rows = 0;  ///< padding rows behind these that an output has too, and that nobody judges (Padding::left)
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> abs_pv;          ///< sum_k max(p_k, least) |V_k|, p normalised; least: numerics.md
  std::vector<double> abs_spv;         ///< sum_k p_k M_k |V_k|
  std::vector<double> score_mag;       ///< sum_k p_k M_k, plus p_sink (|sink| + |sink - m|)
  std::vector<double> abs_lost;        ///< sum_k max(0, min(p_k, 2^-25) - 2^-11 p_k) |V_k|: what f16's subnormals lose of weights
  std::vector<std::int64_t> num_keys;  ///< visible keys
  DType output = DType::none;          ///< the batch's output type, by which outputs are judged; none: by the type that they have
  DType cache = DType::none;           ///< the cache's type
  NumericsProfile profile;             ///< what the sums above pay for besides f32 arithmetic
};
/// Two-pass fp64 reference; shares nothing with the kernels but dtype decode. Checks metadata and tables first. `profile` widens
/// the tolerance by what it costs; dequantised_to_query changes K and V themselves. invalid_argument for a profile of other
/// types.
Result<Reference> reference(const Batch& batch, const KVCache& cache, const Options& options,
                            const NumericsProfile& profile = {});
/// The same for some rows only: row i of the result is row tokens[i] of the batch. invalid_argument for a token outside the
/// batch, and for a padding row that is left as it is.
Result<Reference> reference(const Batch& batch, const KVCache& cache, const Options& options,
                            std::span<const std::int64_t> tokens, const NumericsProfile& profile = {});

/// One place where an output is wrong.
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
  std::vector<Mismatch> first;  ///< up to 16, in index order
  std::string text;             ///< one paragraph for people
};
/// `output` like Batch::output. `lse` may be absent.
Comparison compare(const Tensor& output, const Tensor& lse, const Reference& expected);
/// The same for lse alone, which must be present.
Comparison compare_lse(const Tensor& lse, const Reference& expected);

/// Widens the tolerance for kernels that round each softmax weight to `weights` (f16 or bf16) before it meets V, as
/// FlashAttention and vLLM's Triton kernels do, and of Quire's those that say so (rounds_weights()): one more error of at most u
/// * sum_k p_k |V_k|, and what f16's subnormals lose (numerics.md, "Rounded weights"). Widens expected.abs_pv; f32 changes
/// nothing.
void allow_rounded_weights(Reference& expected, DType weights);
/// The same for some of its tokens: those whose entry of `tokens` is true.
void allow_rounded_weights(Reference& expected, DType weights, const std::vector<bool>& tokens);

/// One suspect of a diagnosis: a mechanism with its parameters, often an entry of faults().
struct Suspicion {
  std::string mechanism;    ///< id of diagnose.md, e.g. "factor_out"; two joined by " + " for a combination
  std::string fault;        ///< id in faults(), e.g. "query_start_loc_as_int32", or empty; two joined by " + "
  std::string text;         ///< "reads an int64 query_start_loc as int32"
  std::string detail;       ///< the parameters: "logical page 3 of request 5 read from page 17"
  std::string scope;        ///< where it holds, if not in the whole batch: "the decode rows, heads 16-31"
  std::string next;         ///< what to look at next if this is the cause
  double explained = 0;     ///< share of the observed error that it explains, in [0, 1], less the right rows that it would break
  double largest_move = 0;  ///< how far it moves any tested element at most
  double largest_left = 0;  ///< the largest error that it leaves unexplained
  bool certain = false;     ///< explains every dim of every wrong row looked at and breaks no right one (diagnose.md)
  std::string refutation;   ///< for a refuted one: why, with numbers; empty for the cause
};

struct DiagnoseOptions {
  bool full = false;     ///< compare every row with the reference, however long it takes
  double seconds = 1.0;  ///< without `full`: about how long comparing with the reference may take; laws cover every row anyway
  /// Rounding that the kernel may do. Absent: plain, and if that finds something wrong, the tightest profile whose rounding looks
  /// like the error that was observed.
  std::optional<NumericsProfile> profile;
  std::function<void(const std::string& stage)> progress;
};

/// The answer of diagnose(): where an observed output is wrong, and why (diagnose.md).
struct Diagnosis {
  /// "right", "cause found", "mechanism likely", "unknown cause", "broken batch" (a contract rule is broken: everything after is
  /// undefined)
  std::string verdict;
  /// Best first; suspicions[0] is the cause if the verdict is "cause found". Wrong cells in separate scopes have a cause each:
  /// the best of each scope come first then.
  std::vector<Suspicion> suspicions;
  std::vector<std::string> patterns;       ///< which cells are wrong, as rules: one sentence per separate set
  std::vector<std::string> observations;   ///< at most five facts that need no hypothesis
  std::vector<std::int64_t> wrong_tokens;  ///< rows known to be wrong
  bool complete = false;                   ///< every element was compared with the reference
  NumericsProfile profile;                 ///< what the tolerance paid for; not plain: given, or found by itself
  std::string problem;                     ///< the problem line
  std::string text;                        ///< the complete report for a terminal
  std::string json;                        ///< the same as JSON, with error maps and page map
};

/// Localises, applies laws that need no oracle, describes the wrong cells by a rule, inverts a few of them, tests mechanisms and
/// every fault of the catalogue with and without that rule as a scope, and refutes the rest with numbers. The case must have an
/// `observed` output (invalid_argument).
Result<Diagnosis> diagnose(const Case& c, const DiagnoseOptions& options = {});

/// The smallest part of a case that still shows the same cause: fewer requests and only the pages that they read. The observed
/// output is cut to the same rows.
Result<Case> reduce_case(const Case& c, const Diagnosis& diagnosis);

}  // namespace quire
