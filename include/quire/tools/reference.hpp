// SPDX-License-Identifier: Apache-2.0
// The oracle: attention in fp64, and the rounding that a right kernel may do besides its f32 arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/batch.hpp"
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

/// Widens the tolerance for kernels that round each softmax weight to `weights` (f16 or bf16) before the product with V:
/// FlashAttention, vLLM's Triton kernels, and Quire's kernels by rounds_weights(). Adds an error of at most u * sum_k p_k |V_k|,
/// and the loss to f16's subnormals (numerics.md, "Rounded weights"). Changes expected.abs_pv; DType::f32 for `weights` changes
/// nothing.
void allow_rounded_weights(Reference& expected, DType weights);
/// Widens the tolerance likewise, but only for tokens whose entry in `tokens` is true.
void allow_rounded_weights(Reference& expected, DType weights, const std::vector<bool>& tokens);

}  // namespace quire
