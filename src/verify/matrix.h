// SPDX-License-Identifier: Apache-2.0
// The cases that verify() asks about: three matrices of problem lines, some with data that no line can describe.
//
// An entry is a few words and numbers; prepare.h gives it data. tests/kernels runs the same hazards on every kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/problem.hpp"
#include "quire/tools/verify.hpp"

namespace quire::verify_detail {

/// Change of a made case, for hazards that lie in the values rather than in the shape.
enum class Special {
  none,
  every_fp8_code,         ///< every finite code of the cache's type, which is i8 or an fp8 format, occurs in K and V
  minus_infinite_scores,  ///< every key of request 0 has the score -inf
  nan_in_a_key,           ///< NaN in a visible key of request 0: rows of request 0 are NaN, and no others
  huge_offsets,           ///< pages whose element offsets need more than 32 bits, in a sparse mapping
  stale_pages,            ///< impossible ids in the table for pages that end left of every window: freed, and dealt to nobody
};
/// "every fp8 code occurs"; empty for none.
std::string text_of(Special special);

struct Entry {
  std::string matrix, name;  ///< "hazards", "WindowOne"
  ProblemLine line;
  Special special = Special::none;
};

/// A hazard by name: shapes as the part of a problem line without types and layout.
struct Hazard {
  std::string name;
  std::vector<std::string> shapes;
  std::int64_t least_dim = 1;  ///< smallest head_dim that shows the hazard
};
const std::vector<Hazard>& hazards();

inline constexpr std::size_t kQuickTurns = 4;  ///< lines of one shape in a quick run

/// Combinations with every query type, cache type, layout, scale form and index type; type_matrix() has the missing pairs.
const std::vector<std::string>& type_combinations();

/// The shape's line for one combination. A head_dim that packed chunks do not divide falls back to nhd, and under an 8-bit query
/// every key is cached; an empty line (no heads) if the text cannot be parsed.
ProblemLine hazard_line(const std::string& combination, const std::string& shape, std::uint64_t seed);

/// Entries of every hazard with every combination, or with a few in turns; then far_matrix(), type_matrix(), row_type_matrix().
std::vector<Entry> hazard_matrix(bool quick);

/// Types, head_dims and layouts that take the place of a line's own; an empty list leaves them as they are.
struct AskedTypes {
  std::vector<TypePair> types = {};
  std::vector<std::int64_t> head_dims = {};
  std::vector<CacheLayout> layouts = {};
  bool empty() const { return types.empty() && head_dims.empty() && layouts.empty(); }
};
/// The line in asked types, which take turns; nullopt if no asked layout holds its head_dim.
std::optional<ProblemLine> in_asked(ProblemLine line, const AskedTypes& asked, std::size_t turn);

/// Entries with more than 300 requests, more than 4096 rows of one request, or more than 100,000 tokens of one context: each
/// shape in a few combinations of types, over few and narrow heads.
std::vector<Entry> far_matrix(const AskedTypes& asked, bool quick);

bool reaches_far(const Entry& entry);

/// A small batch in every cache type, layout and scale form: each value of k_scale and of v_scale meets each pair of the others,
/// and each query type and index type meets each of them. A quick run has them all, too.
std::vector<Entry> type_matrix(const AskedTypes& asked, bool quick);

/// Entries with queries and outputs of 8 bits, over several caches and shapes. From `asked` only types with 8-bit queries are
/// taken, because the others do not tell the type of outputs.
std::vector<Entry> row_type_matrix(const AskedTypes& asked, bool quick);

/// Entries with caches of i8 and with scales of tokens, over several shapes. Empty if types are asked for, which do not tell the
/// form of scales.
std::vector<Entry> token_scale_matrix(const AskedTypes& asked, bool quick);

/// Entries with K and V of unlike types, over several shapes. Empty if types are asked for.
std::vector<Entry> unlike_type_matrix(const AskedTypes& asked, bool quick);

/// Entries with nvfp4 and mxfp4 caches, on one side or on both. Empty if types are asked for.
std::vector<Entry> four_bit_matrix(const AskedTypes& asked, bool quick);

/// invalid_argument for types or dims that no problem has.
Status check_asked(const AskedTypes& asked);

/// Entries of every shape of every hazard in the asked types, dims and layouts, as far as the hazard's point allows: hazards that
/// need more dims are left out, every fp8 code occurs in fp8 caches and infinite scores in others.
std::vector<Entry> hazard_matrix(const AskedTypes& asked, bool quick);

/// Adds far_matrix(), type_matrix() and the others of this page that are not made of hazards().
void add_type_matrices(std::vector<Entry>& list, const AskedTypes& asked, bool quick);

/// Whether a problem has a query or an output of fp8_e4m3fn (decision 20).
inline bool has_eight_bit_rows(const Problem& p) { return is_fp8(p.q_dtype) || is_fp8(p.out_dtype()); }

/// Whether a problem has a cache of i8, or scales of tokens (decision 33).
inline bool has_own_scales(const Problem& p) {
  return p.kv_dtype == DType::i8 || p.value_dtype() == DType::i8 || p.kv_dtype == DType::fp8_ds_mla || p.has_token_scales();
}

/// Whether V has a type of its own (decision 37).
inline bool has_unlike_types(const ProblemLine& line) { return !line.problem.has_equal_types(); }
/// Gives V the type of K. A V that had no scale needs one beside a K of i8.
inline void remove_unlike_types(ProblemLine& line) {
  Problem& p = line.problem;
  if (p.has_equal_types()) return;
  p.v_dtype = DType::none;
  if (is_four_bit(p.kv_dtype)) p.kv_dtype = p.q_dtype;  // V's dims may be no whole blocks
  if (p.kv_dtype == DType::i8 && p.v_scale == ScaleKind::none) p.v_scale = ScaleKind::per_tensor;
  if (!is_code(p.kv_dtype) && p.v_scale == ScaleKind::per_token) p.v_scale = ScaleKind::none;
}

/// Whether a problem has a request that is not causal, or a q_begin or key_begin (decision 23).
inline bool has_masks(const Problem& p) { return !p.is_causal_at_end() || p.has_key_begin; }
/// Drops chunks, prefixes, spans and trees.
void remove_shapes(Problem& p);
/// Makes every request causal, with its rows at the end of its keys.
void remove_masks(Problem& p);

/// Whether V has a head_dim of its own, or lies in K's rows (decision 25).
inline bool has_own_v(const ProblemLine& line) { return !line.problem.has_equal_dims() || line.problem.latent; }
/// Makes V a tensor of K's head_dim.
inline void remove_own_v(ProblemLine& line) {
  line.problem.v_head_dim = 0;
  line.problem.latent = false;
}

/// The problems of vLLM's test_prefix_prefill.py with its lengths of seed 0, at full size; quick: a few at an eighth.
std::vector<Entry> notes_matrix(bool quick);

/// The requests of the notes with a decode row, as `reqs=` takes them.
std::string notes_requests();

/// The 48 problems of the notes at a sixteenth of the lengths and an eighth of the heads, cheap enough to plant every fault in.
std::vector<Entry> small_notes_matrix();

/// Line `index` of a seed: the whole grammar, at bounded cost. One line of 24 reaches far: up to 400 requests, 5000 rows of one
/// request or 130,000 tokens of one context. nullopt if no asked layout holds its head_dim.
std::optional<ProblemLine> random_line(std::uint64_t seed, std::uint64_t index, const AskedTypes& asked = {});

/// Problem lines of the whole grammar, of bounded cost; entry i depends on (seed, i) alone.
std::vector<Entry> random_matrix(std::uint64_t seed, std::int64_t count, const AskedTypes& asked = {});

}  // namespace quire::verify_detail
