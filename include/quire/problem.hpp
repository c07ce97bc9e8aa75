// SPDX-License-Identifier: Apache-2.0
// The shape of a batch without its data, and the one-line text form ("problem line") shared by tests, bench, CLI and reports.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/batch.hpp"
#include "quire/status.hpp"

namespace quire {

/// Lengths of one request, in tokens. context_len + query_len = seq_len; context_len <= cached_len <= seq_len. context_len is
/// negative if a request has more rows than keys.
struct Request {
  std::int64_t query_len = 0;
  std::int64_t context_len = 0;
  std::int64_t cached_len = 0;
  bool causal = true;           ///< value of Batch::causal or Options::causal
  std::int64_t shift = 0;       ///< positions from the end of the keys to where the rows stand; 0 unless Batch::q_begin is given
  std::int64_t key_begin = 0;   ///< position of the first key
  std::int64_t prefix_len = 0;  ///< keys at positions below it are hidden by no window and no chunk
  std::int64_t tree_len = 0;    ///< last keys that Batch::tree_mask speaks of
  std::int64_t first_span = 0;  ///< index in Problem::spans of the first of num_spans
  std::int64_t num_spans = 0;
  bool operator==(const Request&) const = default;
  std::int64_t seq_len() const noexcept { return context_len + query_len; }
  /// Position of the first row.
  std::int64_t q_begin() const noexcept { return key_begin + context_len + shift; }
  /// Position of the first row, counted from the first key. Visibility and ALiBi depend on no other position.
  std::int64_t first_row() const noexcept { return context_len + shift; }
};

/// Positions [begin, end) of a sequence whose rows see each other's keys.
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const Span&) const = default;
};

/// Keys [begin, end) of a request, counted from its first; none if begin = end.
struct KeyPositions {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const KeyPositions&) const = default;
};

/// Form of a k/v scale.
enum class ScaleKind : std::int32_t {
  none = 0,
  per_tensor = 1,
  per_head = 2,
  per_token = 3,  ///< scale of a token and KV head; a query has none
};

/// Everything that planning depends on: types, sizes, options, lengths; no pointers, no data.
struct Problem {
  DType q_dtype = DType::bf16;
  DType kv_dtype = DType::bf16;  ///< type of cached keys, and of values if v_dtype is none
  std::int64_t num_q_heads = 1;
  std::int64_t num_kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t page_size = 16;
  CacheLayout layout = CacheLayout::nhd;
  std::vector<Request> reqs;
  std::optional<float> softmax_scale;
  std::optional<std::int64_t> sliding_window;
  std::optional<float> logits_soft_cap;
  bool alibi = false;
  bool sinks = false;
  bool lse = false;
  ScaleKind k_scale = ScaleKind::none;
  ScaleKind v_scale = ScaleKind::none;
  Padding padding = Padding::refused;
  std::int64_t num_padding_rows = 0;    ///< rows after those of all requests; 0 if padding is refused
  DType output_dtype = DType::none;     ///< none = the query's type
  ScaleKind q_scale = ScaleKind::none;  ///< scale of an fp8_e4m3fn query
  bool causal = true;                   ///< Options::causal
  std::optional<std::int64_t> window_right;
  bool has_causal = false;      ///< Batch::causal is given
  bool has_q_begin = false;     ///< Batch::q_begin is given
  bool has_key_begin = false;   ///< Batch::key_begin is given
  std::int64_t v_head_dim = 0;  ///< head_dim of values and output; 0 = head_dim of keys
  DType v_dtype = DType::none;  ///< type of cached values; none = kv_dtype
  std::optional<std::int64_t> attention_chunk;
  std::int64_t prefix_len = 0;       ///< Options::prefix_len
  bool has_prefix = false;           ///< Options::prefix_len or Batch::prefix_lens is given
  bool has_prefix_lens = false;      ///< Batch::prefix_lens is given
  bool has_spans = false;            ///< Batch::spans is given
  bool has_tree = false;             ///< Batch::tree_mask is given
  bool spans_beyond_window = false;  ///< Options::spans_beyond_window
  std::vector<Span> spans;           ///< spans of all requests, in order of requests; Request::first_span finds them
  bool latent = false;               ///< values are dims of the rows of keys: cache.v is a view of cache.k
  bool operator==(const Problem&) const = default;

  std::int64_t group() const noexcept { return num_q_heads / num_kv_heads; }
  /// The type of output rows.
  DType out_dtype() const noexcept { return output_dtype == DType::none ? q_dtype : output_dtype; }
  /// The head_dim of values and output.
  std::int64_t out_dim() const noexcept { return v_head_dim == 0 ? head_dim : v_head_dim; }
  /// Whether K and V have one head_dim. Tuned kernels ask for it.
  bool has_equal_dims() const noexcept { return out_dim() == head_dim; }
  /// The type of cached values.
  DType value_dtype() const noexcept { return v_dtype == DType::none ? kv_dtype : v_dtype; }
  /// Whether K or V has 4 bits and block scales. Tuned kernels take none.
  bool has_block_scales() const noexcept { return is_four_bit(kv_dtype) || is_four_bit(value_dtype()); }
  /// "bf16"; "i8/bf16" of K and V with types of their own, as problem lines have it.
  std::string cache_types() const;
  /// Whether K and V have one type. Tuned kernels ask for it.
  bool has_equal_types() const noexcept { return value_dtype() == kv_dtype; }
  /// Bytes that the key and the value of one token take in one KV head of the cache, each byte once. Scales of blocks and of
  /// tokens are counted; values that are dims of the keys (`latent`) are not.
  std::int64_t kv_bytes() const noexcept;
  /// Rows of all requests; padding rows are not counted.
  std::int64_t num_tokens() const noexcept;
  std::int64_t max_query_len() const noexcept;  ///< 0 if there are no requests
  std::int64_t max_seq_len() const noexcept;    ///< 0 if there are no requests
  /// Number of (query row, visible key) pairs, summed over requests; per query head. Every key of a tree counts as visible.
  std::int64_t visible_pairs() const noexcept;
  std::int64_t visible_pairs(const Request& request) const noexcept;  ///< pairs of one request
  /// Keys of a request that at least one of its rows [first_row, last_row] sees. Reads the lengths and masks of `request` only.
  KeyPositions visible_keys(const Request& request, std::int64_t first_row, std::int64_t last_row) const noexcept;
  /// Keys of a request that any of its rows sees, and the keys between them.
  KeyPositions visible_keys(const Request& request) const noexcept;
  /// Keys that rows [first_row, last_row] see of a prefix, of all behind it, and of a tree, of which every key counts. No row
  /// sees a key between these ranges. A range without keys is [0, 0).
  std::array<KeyPositions, 3> visible_ranges(const Request& request, std::int64_t first_row,
                                             std::int64_t last_row) const noexcept;
  /// The ranges of keys that all rows of a request see.
  std::array<KeyPositions, 3> visible_ranges(const Request& request) const noexcept;
  /// Whether cached tokens have scales of their own. Most tuned kernels ask that they have none.
  bool has_token_scales() const noexcept { return k_scale == ScaleKind::per_token || v_scale == ScaleKind::per_token; }
  /// Whether all rows are causal, stand at the end of their keys, and see all keys that a window leaves. Every kernel of the
  /// table takes such problems.
  bool is_causal_at_end() const noexcept { return causal && !has_causal && !has_q_begin && !has_shapes(); }
  /// Whether the mask has a chunk, a prefix, spans or a tree.
  bool has_shapes() const noexcept { return attention_chunk || has_prefix || has_spans || has_tree; }
};

/// Extracts the Problem of a batch whose metadata and tables satisfy the contract (see check()). Reads index tensors on the host;
/// index tensors on a device are not read, and reqs is empty then.
Problem problem_of(const Batch& batch, const KVCache& cache, const Options& options);

/// Lengths of one request of a batch whose metadata and tables satisfy the contract; reads index tensors on the host. first_span
/// stays 0: the request's spans are span_of(batch, request, i) for i below num_spans.
Request request_of(const Batch& batch, const Options& options, std::int64_t request);
/// Entry i of a request's spans.
Span span_of(const Batch& batch, std::int64_t request, std::int64_t i);

/// Distribution that query, key and value are drawn from.
enum class DataKind : std::int32_t {
  normal = 0,  ///< N(0,1), peaky heads, NaN where nothing may be read
  tiny = 1,    ///< uniform in +-1e-3, zeros where nothing may be read: vLLM's own test data, in which most faults cannot show
};

/// Pages behind those that all requests share, and behind those of the branches before: each `requests` neighbours, counted from
/// request 0, have the same `pages` there.
struct SharedBranch {
  std::int64_t requests = 1;
  std::int64_t pages = 0;
  bool operator==(const SharedBranch&) const = default;
};

/// A problem plus what is needed to fill it with data.
struct ProblemLine {
  Problem problem;
  std::uint64_t seed = 0;
  std::int64_t num_pages = 0;          ///< 0 = just enough plus a few poisoned spares
  std::int64_t shared_pages = 0;       ///< leading pages, as far as they are full of context, that all requests have in common
  std::vector<SharedBranch> branches;  ///< further pages that some requests have in common
  DType index_dtype = DType::i32;      ///< i32 or i64, for every index tensor
  DataKind data = DataKind::normal;
  bool operator==(const ProblemLine&) const = default;
};

/// Parses e.g. `q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 layout=nhd reqs=1x4096,64x1@2048 window=4096 cap=30 seed=7`.
///
/// reqs is a comma list of [count x] query_len [@ context_len] [/ cached_len]. Other keys, all optional:
/// dv= out= scale= window= cap= alibi=0|1 sinks=0|1 lse=0|1 qscale=none|tensor|head kscale=none|tensor|head|token vscale=...
/// pad=N[:left|zero] latent=0|1 pages= share= index=i32|i64 data=normal|tiny seed=. problem_line.md is the full grammar. Errors
/// name the key, the offending text and what was expected.
Result<ProblemLine> parse_problem_line(std::string_view text);
/// A case file: one problem line per line; blank lines and everything from `#` on are skipped. Errors start with the line number.
Result<std::vector<ProblemLine>> parse_problem_lines(std::string_view text);
/// Canonical text; parse_problem_line(to_string(p)) == p for every p that parse_problem_line() can return.
std::string to_string(const ProblemLine& line);
std::string to_string(const Problem& problem);  ///< the part of the line that describes the problem

}  // namespace quire
