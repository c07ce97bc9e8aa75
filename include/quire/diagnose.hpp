// The oracle and the comparison that judge an output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/batch.hpp"
#include "quire/status.hpp"

namespace quire {

/// fp64 attention of the stored (quantised) cache, with what is needed to bound a kernel's error (docs/numerics.md).
/// Row-major [num_tokens, num_q_heads, head_dim] (out, abs_pv, abs_spv) and [num_tokens, num_q_heads] (the rest).
/// M_k = |scale| sum_d |q_d K_kd| + |slope (k - q_pos)| + cap / 4 + |s(k) - m| measures what rounding can do to a score.
///
/// A row with no visible key, or with only -inf scores, has out = 0 and lse = -inf (the sink, if there is one).
/// NaN in a visible score or value propagates as IEEE 754 says. k/v scales apply to cached tokens only.
struct Reference {
  std::int64_t num_tokens = 0, num_q_heads = 0, head_dim = 0;
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> abs_pv;          ///< sum_k max(p_k, 2^-102) |V_k|, p normalised
  std::vector<double> abs_spv;         ///< sum_k p_k M_k |V_k|
  std::vector<double> score_mag;       ///< sum_k p_k M_k, plus p_sink (|sink| + |sink - m|)
  std::vector<std::int64_t> num_keys;  ///< visible keys
};
/// Two-pass fp64 reference; shares nothing with the kernels but dtype decode. Checks metadata and tables first.
Result<Reference> reference(const Batch& batch, const KVCache& cache, const Options& options);

/// One place where an output is wrong.
struct Mismatch {
  std::int64_t token = 0, head = 0, dim = 0;  ///< dim -1: the lse of (token, head)
  double observed = 0, expected = 0, tolerance = 0;
};

/// NaN and infinity positions are compared first; then |observed - expected| <= tolerance element by element, where the
/// tolerance is derived in docs/numerics.md from unit roundoff, sum p|v| and the score magnitude.
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

}  // namespace quire
