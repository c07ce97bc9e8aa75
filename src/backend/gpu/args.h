// SPDX-License-Identifier: Apache-2.0
// What every GPU kernel is given: device pointers, element strides, no optionals; and the work list that one kernel writes and
// the others read. Passed by value at launch, so that nothing needs copying and a captured graph replays with new lengths.
#pragma once

#include <cstdint>

#include "quire/tensor.hpp"
#include "schedule/division.h"
#include "semantics/block_scale.h"
#include "semantics/layout.h"
#include "semantics/mask.h"
#include "semantics/page_walk.h"
#include "semantics/score.h"
#include "semantics/token_scale.h"

namespace quire::gpu {

/// KvStrides::element() of a dim below 2^31, without divisions where there is one chunk.
QUIRE_HD std::int64_t element_of(const semantics::KvStrides& s, std::int64_t d) {
  if (d < s.x) return d * s.dim;
#if defined(__CUDA_ARCH__)
  return s.element(d);
#else
  // AMD's compiler writes out each division: 250 instructions for 64 bits, 30 for 32.
  const std::uint32_t dim = static_cast<std::uint32_t>(d), x = static_cast<std::uint32_t>(s.x);
  return dim / x * s.chunk + dim % x * s.dim;
#endif
}

/// Rows of elements: element (page | token, head, dim) lives where `strides` says.
struct RowSource {
  const void* data = nullptr;  ///< null = absent
  DType dtype = DType::none;
  semantics::KvStrides strides;  ///< a [tokens, heads, dim] tensor is one page with x = head_dim
  /// An element of a [tokens, heads, dim] tensor.
  QUIRE_HD float load(std::int64_t token, std::int64_t head, std::int64_t d) const {
    return semantics::load(data, dtype, strides.row(0, head, token) + element_of(strides, d));
  }
};

/// The same for rows that a kernel writes.
struct RowTarget {
  void* data = nullptr;
  DType dtype = DType::none;
  semantics::KvStrides strides;
};

/// f32 per head; null = absent.
struct PerHead {
  const float* data = nullptr;
  std::int64_t stride = 0;  ///< 0 = one value for all heads
  QUIRE_HD float at(std::int64_t head, float if_absent) const { return data != nullptr ? data[head * stride] : if_absent; }
};

/// [num_reqs, columns] page ids.
struct BlockTable {
  const void* data = nullptr;
  DType dtype = DType::i32;
  std::int64_t row_stride = 0;  ///< elements
  std::int64_t column_stride = 1;
  std::int64_t columns = 0;
  QUIRE_HD std::int64_t page(std::int64_t req, std::int64_t column) const {
    return semantics::load_index(data, dtype, req * row_stride + column * column_stride);
  }
};

/// One part of the keys of one tile of score rows, for every KV head: num_kv_heads items of work.
///
/// Score row s of a request is query row s / group, head s % group of the KV head's group: packing both lets every group size
/// fill a tile. Keys are positions in the request.
struct WorkSlice {
  std::int32_t req = 0;
  std::int32_t row_begin = 0;  ///< score rows [row_begin, row_end)
  std::int32_t row_end = 0;
  std::int32_t part = 0;  ///< index of the part; parts are in key order
  std::int32_t num_parts = 1;
  std::int32_t merge = -1;          ///< index of the tile's merge counters (num_kv_heads of them); -1 if num_parts is 1
  std::int32_t first_partial = -1;  ///< partial tile of part 0, head 0; part p, head h has first_partial + p * num_kv_heads + h
  std::int32_t key_begin = 0;
  std::int32_t key_end = 0;
};

/// Outcome of a call, or of a preparation and the layers behind it. reset() clears it before validate() runs.
struct Outcome {
  std::int32_t broken = 0;              ///< not 0 if lengths or tables break a rule: then nothing may be written
  std::int32_t layers = 0;              ///< layers that attended; a call without preparation has 1
  unsigned long long rows_written = 0;  ///< output rows (token x query head), summed over kernels and layers
  unsigned long long rows_due = 0;      ///< rows that a layer has to write: those of requests, by query_start_loc
  unsigned long long permit = 0;        ///< layers that bear another one write no row; kRefused if `broken`
  std::int32_t lengths = 0;             ///< fingerprint of the lengths (layer.h)
  std::int32_t unprepared = 0;          ///< layers that found another permit and no broken rule
  std::int32_t stale = 0;               ///< layers that found other lengths than the preparation did
  std::int32_t reserved = 0;
};
/// A permit that no layer bears.
constexpr unsigned long long kRefused = ~0ull;
/// Set in a ticket: the call was a layer without its preparation, or lengths had changed since.
constexpr unsigned long long kNotPrepared = 1ull << 63;

/// Calls before the last one with a workspace whose outcome nobody has asked for. attend_status() asks.
struct Unheard {
  std::uint64_t seal = 0;
  std::int32_t refused = 0;     ///< outcome.broken
  std::int32_t miscounted = 0;  ///< rows written more or less than once
  std::int32_t heard = 0;       ///< not 0 if status() has been asked about the last call
  std::int32_t reserved = 0;
  /// What a record of these counts bears. Memory that bears something else is no record.
  QUIRE_HD std::uint64_t own_seal() const {
    return 0x9E3779B97F4A7C15u ^
           (std::uint64_t{static_cast<std::uint32_t>(refused)} << 32 | static_cast<std::uint32_t>(miscounted));
  }
  QUIRE_HD bool is_sealed() const { return seal == own_seal(); }
};

/// Where a workspace begins, whatever the plan: what is said of a call must outlive the plan.
constexpr int kUnheardAt = 128;
struct CallState {
  Outcome outcome;
  alignas(kUnheardAt) Unheard unheard;
};
static_assert(sizeof(CallState) == 2 * kUnheardAt);

/// reset(): the first words of a workspace, which begin every call at zero.
struct ResetArgs {
  CallState* state = nullptr;
  std::int32_t num_words = 0;
  std::int32_t layers = 1;        ///< Outcome::layers, to begin with
  unsigned long long permit = 0;  ///< permit of the call
};

/// Work for one kernel. Item i is slice i / num_kv_heads, KV head i % num_kv_heads; blocks draw items from `next_item`.
struct WorkList {
  WorkSlice* slices = nullptr;         ///< [max_slices]
  std::int32_t* num_slices = nullptr;  ///< [1]
  std::int32_t* next_item = nullptr;   ///< [1]
  std::int32_t* parts_done = nullptr;  ///< [max_merges][num_kv_heads]
  float* partial_acc = nullptr;        ///< [max_partials][tile_rows][v_head_dim], beside max and sum un-normalised
  float* partial_states = nullptr;     ///< [max_partials][tile_rows][2]: max and sum, or lse and 1
  std::int32_t tile_rows = 16;         ///< score rows per tile
  std::int32_t tile_keys = 64;         ///< parts begin at multiples of this, counted from key 0
  std::int32_t min_rows = 0;           ///< takes the requests with min_rows < query_len * group <= max_rows
  std::int32_t max_rows = 0;
  std::int32_t split_keys = 0;    ///< keys per part if > 0 (batch_invariant); 0 = chosen so that target_items are made
  std::int32_t target_items = 0;  ///< number of items that the device wants in flight
  std::int32_t max_slices = 0;
  std::int32_t max_merges = 0;
  std::int32_t max_partials = 0;
  std::int32_t max_parts = 1;  ///< most parts of a tile, with split_keys
  schedule::Division division;
};

struct AttendArgs {
  std::int32_t num_reqs = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_q_heads = 1;
  std::int32_t num_kv_heads = 1;
  std::int32_t group = 1;
  std::int32_t head_dim = 1;
  std::int32_t page_size = 1;
  std::int32_t window = 0;  ///< 0 = none
  std::int64_t num_pages = 0;
  std::int32_t most_rows = 0x7FFFFFFF;  ///< query_len * group of any request; more than that the plan has no kernel for
  std::int32_t most_keys = 0x7FFFFFFF;  ///< seq_len of any request: what the plan was told
  semantics::ScoreParams score;
  RowSource query;  ///< [num_tokens, num_q_heads, head_dim]
  RowSource cache_k, cache_v;
  RowSource key, value;                  ///< rows of this step [num_tokens, num_kv_heads, head_dim or v_head_dim], unscaled
  PerHead k_scale, v_scale;              ///< [num_kv_heads]
  PerHead q_scale;                       ///< [num_kv_heads], of an fp8 query, whose keys are all cached
  PerHead alibi_slopes, sinks;           ///< [num_q_heads]
  semantics::IndexView query_start_loc;  ///< [num_reqs + 1]
  semantics::IndexView seq_lens;         ///< [num_reqs]
  semantics::IndexView cached_lens;      ///< [num_reqs]; data null = seq_lens
  BlockTable block_table;
  void* output = nullptr;
  DType output_dtype = DType::none;
  PerHead output_scale;  ///< scale of an fp8 output: one value
  semantics::KvStrides output_strides;
  float* lse = nullptr;  ///< null = absent
  std::int64_t lse_token = 0;
  std::int64_t lse_head = 0;
  bool may_be_padded = false;   ///< query_start_loc may end before num_tokens
  bool zero_padding = false;    ///< rows behind its end become zero
  bool nan_if_refused = false;  ///< rows become NaN if the outcome is broken
  bool output_pairs = false;    ///< dims 2i and 2i + 1 of an output row are one aligned word
  Outcome* outcome = nullptr;
  unsigned long long* ticket_word = nullptr;  ///< host memory that takes `ticket` if the call breaks; null = nobody looks
  unsigned long long ticket = 0;
  unsigned long long permit = 0;  ///< permit (permit.h) that Outcome::permit must equal
  bool prepared = false;          ///< a layer: the stream holds nothing of this call before its first attend kernel
  bool confirms = false;          ///< a layer's first launch: one of its waves calls confirm_layer()
  WorkList work;                  ///< work of this launch's kernel
  // From here on: kernels that take causal rows at the end of their keys, and nothing else, never read these.
  bool has_masks = false;          ///< some request may not be causal, or its rows may stand elsewhere
  bool causal_by_default = true;   ///< mask of every request where `causal` is absent
  std::int32_t v_head_dim = 1;     ///< dims of cache_v, value and output; head_dim for kernels that take no other
  semantics::FlagView causal;      ///< [num_reqs]; data null = absent
  semantics::IndexView q_begin;    ///< [num_reqs]; data null = at the end of the keys
  semantics::IndexView key_begin;  ///< [num_reqs]; data null = 0
  std::int64_t window_right = -1;  ///< window of requests that are not causal; -1 = none
  semantics::TokenScales k_token_scale, v_token_scale;  ///< replacement of k_scale and v_scale; tuned kernels take none
  bool spans_beyond_window = false;
  std::int32_t chunk = 0;              ///< 0 = none
  std::int64_t prefix_len = 0;         ///< length of every prefix where `prefix_lens` is absent
  semantics::IndexView prefix_lens;    ///< [num_reqs]; data null = absent
  semantics::IndexView tree_lens;      ///< [num_reqs]; data null = absent
  semantics::SpanList spans;           ///< spans of request 0; data null = absent
  std::int64_t spans_of_request = 0;   ///< elements from one request's spans to the next's
  semantics::TreeBits tree_bits;       ///< tree of row 0
  std::int64_t tree_bytes_of_row = 0;  ///< distance of neighbouring rows' trees
  std::int64_t most_tree_keys = 0;     ///< bits of a row
  /// Rules Q-T04 and Q-T16: query_start_loc may end here.
  QUIRE_HD bool may_end_at(std::int64_t last) const { return may_be_padded ? last <= num_tokens : last == num_tokens; }
  /// fill_rows() has something to do, or may have.
  bool fills_rows() const { return zero_padding || nan_if_refused; }
};

/// append(): rows of one step into their slots. Row t goes to slot slots[t]; a negative slot is skipped.
struct AppendArgs {
  std::int32_t num_tokens = 0;  ///< entries of `slots`; key and value may have more rows
  std::int32_t num_kv_heads = 1;
  std::int32_t head_dim = 1;
  std::int32_t page_size = 1;
  std::int64_t num_pages = 0;
  RowSource key, value;  ///< [tokens, num_kv_heads, head_dim or v_head_dim]
  RowTarget cache_k, cache_v;
  PerHead k_scale, v_scale;     ///< [num_kv_heads]
  semantics::IndexView slots;   ///< [num_tokens]
  Outcome* outcome = nullptr;   ///< `broken` is set by validate_slots() and keeps append() from writing; null = nobody asks
  std::int32_t v_head_dim = 1;  ///< dims of value and cache_v
  semantics::TokenScales k_token_scale, v_token_scale;  ///< replacement of k_scale and v_scale; append() writes them
  semantics::BlockScales k_block_scale, v_block_scale;  ///< scales of 4-bit codes; append() writes them
};

/// f32 log-sum-exps [num_tokens, num_heads].
struct LseRows {
  float* data = nullptr;  ///< null = absent
  std::int64_t token = 0;
  std::int64_t head = 0;
  QUIRE_HD float at(std::int64_t t, std::int64_t h) const { return data[t * token + h * head]; }
};

/// merge(): two finished partial results over disjoint keys.
struct MergeArgs {
  std::int32_t num_tokens = 0;
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 1;
  RowSource out_a, out_b;
  LseRows lse_a, lse_b;
  RowTarget out;         ///< result; may be out_a or out_b
  PerHead output_scale;  ///< scale of an fp8 `out`: one value
  LseRows lse;           ///< log-sum-exps of the result; may be absent
};

/// merge_many(): a stack of finished partial results over disjoint keys.
struct MergeManyArgs {
  std::int32_t num_parts = 1;
  std::int32_t num_tokens = 0;
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 1;
  RowSource outs;  ///< a part is a page of its strides
  LseRows lses;    ///< log-sum-exps of part 0
  std::int64_t lse_part = 0;
  RowTarget out;
  PerHead output_scale;  ///< scale of an fp8 `out`: one value
  LseRows lse;           ///< log-sum-exps of the result; may be absent
};

/// Lengths of one request, as the kernels read them.
struct Lengths {
  std::int32_t first_token = 0;
  std::int32_t query_len = 0;
  std::int32_t context_len = 0;
  std::int32_t cached_len = 0;
  QUIRE_HD std::int32_t seq_len() const { return context_len + query_len; }
};

QUIRE_HD Lengths lengths_of(const AttendArgs& a, std::int32_t req) {
  Lengths n;
  n.first_token = static_cast<std::int32_t>(a.query_start_loc[req]);
  n.query_len = static_cast<std::int32_t>(a.query_start_loc[req + 1]) - n.first_token;
  const auto seq_len = static_cast<std::int32_t>(a.seq_lens[req]);
  n.context_len = seq_len - n.query_len;
  n.cached_len = a.cached_lens.data != nullptr ? static_cast<std::int32_t>(a.cached_lens[req]) : seq_len;
  return n;
}

/// Places of the rows of a request, counted from its first key, and what they see.
struct Sight {
  std::int64_t first = 0;  ///< position of row 0
  semantics::Mask mask;
  QUIRE_HD semantics::KeyRange of_rows(std::int64_t row, std::int64_t last) const {
    return mask.of_rows(first + row, first + last);
  }
};

/// Spans of one request.
QUIRE_HD semantics::SpanList spans_of(const AttendArgs& a, std::int32_t req) {
  semantics::SpanList spans = a.spans;
  spans.data = static_cast<const std::uint8_t*>(a.spans.data) + req * a.spans_of_request * (a.spans.dtype == DType::i64 ? 8 : 4);
  return spans;
}

/// Sight of a request whose lengths are sound.
QUIRE_HD Sight sight_of(const AttendArgs& a, std::int32_t req, std::int64_t context_len, std::int64_t num_keys) {
  Sight sight;
  bool causal = true;
  sight.first = context_len;
  sight.mask.num_keys = num_keys;
  sight.mask.tree_begin = num_keys;
  if (a.has_masks) {
    causal = a.causal.data != nullptr ? a.causal[req] : a.causal_by_default;
    const std::int64_t begin = a.key_begin.data != nullptr ? a.key_begin[req] : 0;
    if (a.q_begin.data != nullptr) sight.first = a.q_begin[req] - begin;
    sight.mask.key_begin = begin;
    sight.mask.chunk = a.chunk;
    sight.mask.spans_beyond_window = a.spans_beyond_window;
    if (a.spans.data != nullptr) sight.mask.spans = spans_of(a, req);
    sight.mask.set_regions(a.prefix_lens.data != nullptr ? a.prefix_lens[req] : a.prefix_len,
                           a.tree_lens.data != nullptr ? a.tree_lens[req] : 0);
  }
  sight.mask.reach = semantics::reach_of(causal, a.window, a.window_right);
  return sight;
}

QUIRE_HD Sight sight_of(const AttendArgs& a, std::int32_t req, const Lengths& n) {
  return sight_of(a, req, n.context_len, n.seq_len());
}

}  // namespace quire::gpu
