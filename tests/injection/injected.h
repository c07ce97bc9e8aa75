// SPDX-License-Identifier: Apache-2.0
// The faults that can be switched on in our own kernels, and for each a batch on which it shows.
#pragma once

#include <ostream>
#include <string>

#include "backend/cpu/planted.h"

namespace quire::test {

struct Injected {
  cpu::Planted fault;
  const char* id;
  const char* text;  ///< a kernel that ...; as in docs/reference/testing.md
  const char* line;  ///< a problem line on which it shows
};

/// Keeps GoogleTest from printing the bytes of a parameter.
inline void PrintTo(const Injected& injected, std::ostream* out) { *out << injected.id; }

#define QUIRE_INJECTED(id, text, line) {cpu::Planted::id, #id, text, line}

inline constexpr Injected kInjected[] = {
    // which keys
    QUIRE_INJECTED(window_one_short, "keeps one key too few in the window",
                   "q=f32 kv=bf16 heads=8:2 d=32 page=16 window=20 lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(causal_sees_one_future_key, "lets a row see one key past its own position",
                   "q=f32 kv=f32 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(causal_excludes_own_key, "hides a row's own key from it",
                   "q=f16 kv=f16 heads=8:2 d=32 page=16 layout=packed lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(causal_flag_ignored, "takes every request for causal",
                   "q=f32 kv=f32 heads=8:2 d=32 page=16 lse=1 causal=1x1,1x0 reqs=9@60,9@20"),
    QUIRE_INJECTED(q_begin_ignored, "takes the rows of a request to stand at the end of its keys",
                   "q=f32 kv=bf16 heads=8:2 d=32 page=16 lse=1 reqs=9:60,1:90 kbegin=1x16,1x0 qbegin=1x90,1x100"),
    QUIRE_INJECTED(window_right_one_long, "lets rows see one key more to the right than window_right",
                   "q=bf16 kv=bf16 heads=8:2 d=32 page=16 lse=1 causal=0 window=20 wright=3 reqs=9@60,9:20"),
    QUIRE_INJECTED(partial_key_tile_skipped, "leaves out the last, partial tile of keys",
                   "q=bf16 kv=bf16 heads=8:2 d=32 page=16 layout=hnd lse=1 reqs=9@160,1@290"),
    QUIRE_INJECTED(last_split_dropped, "leaves the last segment out of the merge",
                   "q=f32 kv=bf16 heads=4:2 d=32 page=16 lse=1 reqs=3@2047,1@3000"),
    QUIRE_INJECTED(masked_keys_multiplied, "multiplies masked keys by weight 0 (0 * NaN)",
                   "q=f32 kv=f32 heads=8:2 d=32 page=16 lse=1 reqs=9@21,1@29"),
    // where they lie
    QUIRE_INJECTED(pages_shifted_by_one, "reads the neighbouring logical page",
                   "q=f32 kv=f16 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(table_row_of_first_request, "reads the block_table row of request 0 for every request",
                   "q=f32 kv=f16 heads=8:2 d=32 page=16 layout=hnd lse=1 reqs=9@90,1@60"),
    QUIRE_INJECTED(kv_head_always_zero, "reads KV head 0 for every query head",
                   "q=bf16 kv=bf16 heads=8:2 d=32 page=16 layout=packed lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(query_of_first_row, "loads the first query row of a tile for each of its rows",
                   "q=f16 kv=f16 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(stale_value_tile, "keeps the value tile that it loaded first",
                   "q=f32 kv=bf16 heads=8:2 d=32 page=16 lse=1 reqs=9@160,1@290"),
    // what is stored there
    QUIRE_INJECTED(scales_swapped, "swaps k_scale and v_scale",
                   "q=bf16 kv=fp8_e4m3fn heads=8:2 d=32 page=16 kscale=head vscale=head lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(scales_on_new_rows, "applies k_scale and v_scale to key / value rows",
                   "q=bf16 kv=fp8_e5m2 heads=8:2 d=32 page=16 kscale=tensor vscale=tensor lse=1 reqs=9@60/60,1@90/90"),
    QUIRE_INJECTED(fp8_fn_fnuz_confused, "reads fn codes as fnuz",
                   "q=bf16 kv=fp8_e4m3fn heads=8:2 d=32 page=16 layout=packed kscale=tensor vscale=tensor lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(query_tail_dims_dropped, "leaves the dims past a multiple of 16 out of the dot product",
                   "q=f32 kv=f32 heads=8:2 d=24 page=16 lse=1 reqs=9@60,1@90"),
    // how results are stored
    QUIRE_INJECTED(output_not_saturated, "stores NaN where an 8-bit output cannot hold the result",
                   "q=bf16 kv=bf16 heads=8:2 d=32 page=16 out=fp8_e4m3fn lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(output_scale_multiplied, "multiplies results by output_scale",
                   "q=bf16 kv=bf16 heads=8:2 d=32 page=16 out=fp8_e4m3fn lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(output_truncated, "cuts 8-bit outputs off instead of rounding them",
                   "q=bf16 kv=bf16 heads=8:2 d=32 page=16 out=fp8_e4m3fn lse=1 reqs=9@60,1@90"),
    // what score they get
    QUIRE_INJECTED(scale_from_query_heads, "takes the default softmax_scale from the number of query heads",
                   "q=f16 kv=f16 heads=8:2 d=128 page=16 lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(soft_cap_ignored, "ignores the soft cap", "q=f32 kv=bf16 heads=8:2 d=32 page=16 cap=2.5 lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(alibi_slope_of_kv_head, "takes the slope at the KV head's index",
                   "q=f32 kv=bf16 heads=8:2 d=32 page=16 alibi=1 lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(alibi_origin_shifted, "counts ALiBi distances from a position other than the row's own",
                   "q=f32 kv=bf16 heads=8:2 d=32 page=16 alibi=1 lse=1 reqs=9@60,1@90"),
    // how they are summed
    QUIRE_INJECTED(maximum_not_rescaled, "does not rescale what it has summed when a later tile raises the maximum",
                   "q=f32 kv=f32 heads=8:2 d=32 page=16 lse=1 reqs=9@260,1@290"),
    QUIRE_INJECTED(merge_not_rescaled, "does not rescale the earlier segments in the merge",
                   "q=f32 kv=bf16 heads=4:2 d=32 page=16 lse=1 reqs=3@2047,1@3000"),
    QUIRE_INJECTED(merged_at_first_part, "merges a split as soon as its first part is done",
                   "q=f32 kv=bf16 heads=4:1 d=32 page=16 lse=1 reqs=1@9000"),
    QUIRE_INJECTED(stale_accumulator, "starts a segment with what the one before it left behind",
                   "q=f32 kv=bf16 heads=4:2 d=32 page=16 lse=1 reqs=3@2047,1@3000"),
    QUIRE_INJECTED(sinks_dropped, "leaves the sink out of the denominator",
                   "q=f32 kv=bf16 heads=8:2 d=32 page=16 sinks=1 lse=1 reqs=9@60,1@90"),
    // what is written
    QUIRE_INJECTED(lse_base_2, "writes lse in base 2", "q=bf16 kv=bf16 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(decode_rows_not_written, "never writes the rows of requests with query_len 1",
                   "q=f16 kv=f16 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(heads_swapped_in_pairs, "writes head h where head h ^ 1 belongs",
                   "q=f16 kv=f16 heads=8:2 d=32 page=16 layout=hnd lse=1 reqs=9@60,1@90"),
    QUIRE_INJECTED(row_padding_written, "writes the padding of a row behind its last dim",
                   "q=f32 kv=f32 heads=8:2 d=24 page=16 lse=1 reqs=9@60,1@90"),
};

#undef QUIRE_INJECTED

}  // namespace quire::test
