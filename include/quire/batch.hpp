// SPDX-License-Identifier: Apache-2.0
// Input of every call: one ragged batch of chunked-prefill and decode requests, and the score options.
//
// All lengths are defined here, once, by equation:
//   query_len(r)   = query_start_loc[r + 1] - query_start_loc[r]        (0 is legal and writes nothing)
//   context_len(r) = seq_lens[r] - query_len(r)                         (derived, never an input)
//   key_pos(r, j)  = key_begin[r] + j                                   for key j of request r, 0 <= j < seq_lens[r]
//   q_pos(r, i)    = q_begin[r] + i                                     for row i of request r
//   key_begin absent = 0; q_begin absent = key_begin[r] + context_len(r): rows stand at the end of their keys
//   a key at position k is visible to a row at position q  iff (each condition, if its field is set)
//     ordered  k <= q if the request is causal, else k <= q + window_right      or  k and q lie in one span of r
//   and
//     near     q - k < sliding_window,  and k and q lie in one chunk of attention_chunk positions
//              or  k < prefix_len(r)      or  k and q lie in one span of r and spans_beyond_window
//   except the last tree_lens[r] keys of r: of them, a row sees those whose bit is set in its row of tree_mask, and no other
//   query head h reads KV head  h / (num_q_heads / num_kv_heads)
#pragma once

#include <optional>
#include <string_view>

#include "quire/cache.hpp"
#include "quire/tensor.hpp"

namespace quire {

/// Treatment of *padding rows*: query rows from the last value of query_start_loc on, which belong to no request. Engines add
/// padding rows to reach a size for which a graph was captured; query_start_loc gives their number, anew for each replay. No
/// kernel reads them.
enum class Padding : std::int32_t {
  refused = 0,  ///< a batch has no padding rows: query_start_loc ends at num_tokens (Q-T04)
  left = 1,     ///< output and lse of padding rows stay as they are
  zero = 2,     ///< output of padding rows becomes 0 and lse -inf, as of a row that sees no key
};
/// "refused", "left", "zero"; "invalid" for any other value.
std::string_view name(Padding padding) noexcept;
/// Inverse of name().
std::optional<Padding> padding_from_name(std::string_view name) noexcept;

/// One step's batch. Index tensors may be int32 or int64; each is read as its dtype says.
struct Batch {
  Tensor query{};   ///< [num_tokens, num_q_heads, head_dim] f32 | f16 | bf16 | fp8_e4m3fn; rows of all requests back to
                    ///< back; fp8_e4m3fn needs a cache of that type that holds every token
  Tensor output{};  ///< [num_tokens, num_q_heads, v_head_dim]; dtype of query or f32, or fp8_e4m3fn with output_scale; under an
                    ///< fp8_e4m3fn query also f32 | f16 | bf16; written exactly once per row
  Tensor query_start_loc{};  ///< [num_reqs + 1]; request r owns rows [qsl[r], qsl[r+1]); first 0, last num_tokens
                             ///< (with padding: at most that)
  Tensor seq_lens{};         ///< [num_reqs]; keys of r: its tokens up to and including its last query row. Fewer than query_len,
                             ///< and 0, if r is not causal or q_begin is given; a row that sees no key gives 0 and lse -inf
  Tensor block_table{};      ///< [num_reqs, max_pages_per_req] page ids; an entry is read if some row sees a key of its page
  Tensor cached_lens{};      ///< optional [num_reqs]; leading keys of r that the cache holds;
                             ///< context_len <= cached_len <= seq_len; absent = seq_lens
  Tensor key{}, value{};     ///< optional [num_tokens, num_kv_heads, head_dim] and [.., v_head_dim], dtype of query; this step's
                             ///< new K/V rows, read (unscaled) for positions [cached_len, seq_len)
  Tensor slot_mapping{};     ///< optional [num_tokens]; slot of each new token, negative = skip; used by append and check
  Tensor lse{};              ///< optional [num_tokens, num_q_heads] f32, written; natural log; -inf if no key is visible
  Tensor request_ids{};      ///< optional [num_reqs]; stable ids that the slot ledger knows; absent = 0 .. num_reqs-1
  Padding padding = Padding::refused;  ///< permission for padding rows, and their fate
  Tensor q_scale{};  ///< optional f32 scalar, [1] or [num_kv_heads]; for an fp8_e4m3fn query: real value = stored value * scale;
                     ///< query head h has the scale of its KV head; absent = 1; finite and > 0
  Tensor output_scale{};  ///< f32 scalar or [1]; for an fp8_e4m3fn output: stored = round to nearest even of real value / scale,
                          ///< saturated at +-448, NaN stays NaN; finite and > 0
  Tensor causal{};     ///< optional [num_reqs] u8, 0 or 1; 0: the rows of r see later keys, too (encoders, cross attention, draft
                       ///< blocks); absent = Options::causal for all
  Tensor q_begin{};    ///< optional [num_reqs]; position of r's first row, >= 0; rows may stand anywhere relative to their keys,
                       ///< but at the end if keys of r come from `key`; absent = key_begin + context_len
  Tensor key_begin{};  ///< optional [num_reqs]; position of r's first key, >= 0: r's shard of a context begins there, or its
                       ///< cache lost its head; block_table counts from this key; absent = 0
  Tensor spans{};      ///< optional [num_reqs, max_spans, 2]; positions [begin, end) whose rows see each other's keys, also later
                       ///< ones: images in a causal prompt, a prefix LM's prefix. Ascending and disjoint; behind the last span of
                       ///< r every entry has begin = end. vLLM's mm_prefix_range, but with an exclusive end
  Tensor prefix_lens{};  ///< optional [num_reqs]; keys at positions below prefix_lens[r] are hidden by no window and no chunk:
                         ///< StreamingLLM's first tokens (Xiao et al. 2024, arXiv:2309.17453), the prompt of a model that puts a
                         ///< window on generated tokens alone; >= 0; absent = Options::prefix_len for all
  Tensor tree_mask{};  ///< optional u8 [num_tokens, num_bytes], 1 to 32 bytes a row; bit b (bit b % 8 of byte b / 8) says whether
                       ///< the row sees key seq_len - tree_lens[r] + b of its request: a tree of draft tokens (SpecInfer, Miao et
                       ///< al. 2024, arXiv:2305.09781). Comes with tree_lens
  Tensor tree_lens{};  ///< optional [num_reqs]; last keys of r that tree_mask speaks of, 0 to 8 num_bytes; 0: r has no tree
};

/// Query rows that belong to a request: num_tokens without padding rows. Reads query_start_loc, which is in host memory and
/// satisfies the contract.
std::int64_t num_request_rows(const Batch& batch) noexcept;

/// Score options. s = scale * q.k; cap * tanh(s / cap); + slope_h * (k - q_pos); then softmax over visible keys.
struct Options {
  std::optional<float> softmax_scale{};          ///< absent = 1 / sqrt(head_dim)
  std::optional<std::int64_t> sliding_window{};  ///< keys visible to a query, its own included; >= 1; absent = all
  std::optional<float> logits_soft_cap{};        ///< > 0
  Tensor alibi_slopes{};                         ///< optional [num_q_heads] f32, any sign
  Tensor sinks{};                                ///< optional [num_q_heads] f32; one extra logit in the denominator
  bool causal = true;                          ///< causal mask of every request; false: rows see later keys, too (Batch::causal)
  std::optional<std::int64_t> window_right{};  ///< later keys visible to a query of a request that is not causal; >= 0; absent =
                                               ///< all. FlashAttention's window_size is (sliding_window - 1, window_right)
  std::optional<std::int64_t> attention_chunk{};  ///< tokens of a chunk; rows see keys of their own chunk alone, of which chunk i
                                                  ///< holds positions [i, i + 1) * attention_chunk (Llama 4); >= 1
  std::optional<std::int64_t> prefix_len{};       ///< Batch::prefix_lens of all requests; >= 0
  bool spans_beyond_window = false;               ///< true: neither window nor chunk hides keys of a row's own span (vLLM's rule)
};

}  // namespace quire
