// SPDX-License-Identifier: Apache-2.0
// The faults that can be switched on in our own kernels, and for each a batch on which it shows.
#pragma once

#include <cmath>
#include <ostream>
#include <utility>
#include <vector>

#include "backend/cpu/fp8_tables.h"
#include "injection/planted_steps.h"

namespace quire::test {

/// What a kernel is given, to be changed: a right kernel that is given a window one short is one that keeps a key too few.
struct Given {
  cpu::AttendArgs args;
  cpu::WorkItem item;
  cpu::MergeItem merge;
  std::vector<Request> reqs;
  std::vector<std::byte> bytes;  ///< memory of copied tensors

  Request& req();
  void end_keys_at_multiple_of(std::int64_t keys);
};
void shift_pages(Given& given);
void repeat_first_query(Given& given);
void repeat_first_values(Given& given);

/// A finished row, to be changed before it is stored.
struct StoredRow {
  const cpu::AttendArgs& args;
  std::int64_t req, token, head;
  std::vector<float> values;
  float lse;

  void store() const;
  void store_padding() const;
};
void truncate_row(StoredRow& row);

struct Injected {
  const char* id;    ///< name as in the catalogue of src/faults, if the fault is there (tools/check_fault_names.py)
  const char* line;  ///< a problem line on which it shows
  Step step = Step::none;
  void (*given)(Given& given) = nullptr;
  void (*stored)(StoredRow& row) = nullptr;
  const char* text;     ///< a kernel that ..., of a fault that is not in the catalogue
  bool by_nan = false;  ///< shows where a row does not see a NaN that later rows see

  constexpr Injected(const char* name, const char* shows, Step wrong, const char* words = "", bool nan = false)
      : id(name), line(shows), step(wrong), text(words), by_nan(nan) {}
  constexpr Injected(const char* name, const char* shows, void (*change)(Given&), const char* words = "")
      : id(name), line(shows), given(change), text(words) {}
  constexpr Injected(const char* name, const char* shows, void (*change)(StoredRow&), const char* words = "")
      : id(name), line(shows), stored(change), text(words) {}
};

/// Keeps GoogleTest from printing the bytes of a parameter.
inline void PrintTo(const Injected& injected, std::ostream* out) { *out << injected.id; }

inline constexpr Injected kInjected[] = {
    // which keys
    {"window_one_short", "q=f32 kv=bf16 heads=8:2 d=32 page=16 window=20 lse=1 reqs=9@60,1@90",
     [](Given& g) { --g.args.window; }},
    {"causal_sees_one_future_key", "q=f32 kv=f32 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90",
     [](Given& g) {
       if (g.req().causal) g.req().causal = false, g.args.window_right = 1;
     }},
    {"causal_excludes_own_key", "q=f16 kv=f16 heads=8:2 d=32 page=16 layout=packed lse=1 reqs=9@60,1@90",
     [](Given& g) { --g.req().shift; }},  // a window and ALiBi would move with the limit
    {"causal_flag_ignored", "q=f32 kv=f32 heads=8:2 d=32 page=16 lse=1 causal=1x1,1x0 reqs=9@60,9@20",
     [](Given& g) { g.req().causal = true; }},
    {"q_begin_ignored", "q=f32 kv=bf16 heads=8:2 d=32 page=16 lse=1 reqs=9:60,1:90 kbegin=1x16,1x0 qbegin=1x90,1x100",
     [](Given& g) { g.req().shift = 0; }},
    {"window_right_one_long", "q=bf16 kv=bf16 heads=8:2 d=32 page=16 lse=1 causal=0 window=20 wright=3 reqs=9@60,9:20",
     [](Given& g) { ++g.args.window_right; }},
    {"partial_key_tile_skipped", "q=bf16 kv=bf16 heads=8:2 d=32 page=16 layout=hnd lse=1 reqs=9@160,1@290",
     [](Given& g) { g.end_keys_at_multiple_of(g.args.tile_kv); }},
    {"last_split_dropped", "q=f32 kv=bf16 heads=4:2 d=32 page=16 lse=1 reqs=3@2047,1@3000",
     [](Given& g) {
       --g.merge.num_partials;
       if (g.item.partial < 0) g.end_keys_at_multiple_of(g.args.split_keys);
     }},
    {"masked_keys_multiplied", "q=f32 kv=f32 heads=6:2 d=32 page=16 lse=1 reqs=9@21,1@29", Step::masked_keys_multiplied,
     "multiplies masked keys by weight 0 (0 * NaN)", /*nan=*/true},
    // where they lie
    {"pages_shifted_by_one", "q=f32 kv=f16 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90", shift_pages},
    {"table_row_of_first_request", "q=f32 kv=f16 heads=8:2 d=32 page=16 layout=hnd lse=1 reqs=9@90,1@60",
     [](Given& g) { g.args.block_table.stride[0] = 0; }},
    {"kv_head_always_zero", "q=bf16 kv=bf16 heads=8:2 d=32 page=16 layout=packed lse=1 reqs=9@60,1@90",
     [](Given& g) {
       for (cpu::RowSource* rows : {&g.args.cache_k, &g.args.cache_v, &g.args.key, &g.args.value}) rows->strides.head = 0;
     }},
    {"query_of_first_row", "q=f16 kv=f16 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90", repeat_first_query},
    {"stale_value_tile", "q=f32 kv=bf16 heads=8:2 d=32 page=16 lse=1 reqs=9@160,1@290", repeat_first_values,
     "keeps the value tile that it loaded first"},
    // what is stored there
    {"scales_swapped", "q=bf16 kv=fp8_e4m3fn heads=8:2 d=32 page=16 kscale=head vscale=head lse=1 reqs=9@60,1@90",
     [](Given& g) { std::swap(g.args.k_scale, g.args.v_scale), std::swap(g.args.k_scale_stride, g.args.v_scale_stride); }},
    {"token_scale_of_page_start", "q=bf16 kv=i8 heads=8:2 d=32 page=16 kscale=token vscale=token lse=1 reqs=9@60,1@90",
     [](Given& g) { g.args.k_token_scale.token = g.args.v_token_scale.token = 0; }},
    {"token_scales_of_first_page", "q=f32 kv=i8 heads=8:2 d=32 page=16 kscale=token vscale=token lse=1 reqs=9@60,1@90",
     [](Given& g) {
       const std::int64_t first = semantics::index_row(g.args.block_table, 0)[0];
       for (semantics::TokenScales* scales : {&g.args.k_token_scale, &g.args.v_token_scale})
         scales->data += first * scales->page, scales->page = 0;
     }},
    {"token_scales_of_keys", "q=f32 kv=fp8_e4m3fn heads=8:2 d=32 page=16 kscale=token vscale=token lse=1 reqs=9@60,1@90",
     [](Given& g) { g.args.v_token_scale = g.args.k_token_scale; }},
    {"scale_of_first_head", "q=f16 kv=i8 layout=hnd heads=8:2 d=32 page=16 kscale=token vscale=token lse=1 reqs=9@60,1@90",
     [](Given& g) { g.args.k_token_scale.head = g.args.v_token_scale.head = 0; }},
    {"scales_on_new_rows", "q=bf16 kv=fp8_e5m2 heads=8:2 d=32 page=16 kscale=tensor vscale=tensor lse=1 reqs=9@60/60,1@90/90",
     Step::scales_on_new_rows},
    {"fp8_fn_fnuz_confused",
     "q=bf16 kv=fp8_e4m3fn heads=8:2 d=32 page=16 layout=packed kscale=tensor vscale=tensor lse=1 reqs=9@60,1@90",
     [](Given& g) {
       for (cpu::RowSource* rows : {&g.args.cache_k, &g.args.cache_v}) {
         rows->dtype = DType::fp8_e4m3fnuz;
         rows->fp8_table = cpu::fp8_table(rows->dtype), rows->fp8_bf16 = cpu::fp8_bf16_table(rows->dtype);
       }
     }},
    {"query_tail_dims_dropped", "q=f32 kv=f32 heads=8:2 d=24 page=16 lse=1 reqs=9@60,1@90",
     [](Given& g) { g.args.query.dims = g.args.query.dims / 16 * 16; }},
    // how results are stored
    {"output_not_saturated", "q=bf16 kv=bf16 heads=8:2 d=32 page=16 out=fp8_e4m3fn lse=1 reqs=9@60,1@90",
     [](StoredRow& r) {
       for (float& x : r.values)
         if (std::fabs(x / r.args.output_scale) > 464.0f) x = NAN;
       r.store();
     },
     "stores NaN where an 8-bit output cannot hold the result"},
    {"output_scale_multiplied", "q=bf16 kv=bf16 heads=8:2 d=32 page=16 out=fp8_e4m3fn lse=1 reqs=9@60,1@90",
     [](Given& g) { g.args.output_scale = 1.0f / g.args.output_scale; }, "multiplies results by output_scale"},
    {"output_truncated", "q=bf16 kv=bf16 heads=8:2 d=32 page=16 out=fp8_e4m3fn lse=1 reqs=9@60,1@90", truncate_row,
     "cuts 8-bit outputs off instead of rounding them"},
    // what score they get
    {"scale_from_query_heads", "q=f16 kv=f16 heads=8:2 d=128 page=16 lse=1 reqs=9@60,1@90",
     [](Given& g) { g.args.score.scale = 1.0f / std::sqrt(8.0f); }},
    {"soft_cap_ignored", "q=f32 kv=bf16 heads=8:2 d=32 page=16 cap=2.5 lse=1 reqs=9@60,1@90",
     [](Given& g) { g.args.score.soft_cap = 0.0f; }},
    {"alibi_slope_of_kv_head", "q=f32 kv=bf16 heads=8:2 d=32 page=16 alibi=1 lse=1 reqs=9@60,1@90",
     [](Given& g) {
       g.args.alibi_slopes += g.item.kv_head * g.args.alibi_stride;
       g.args.alibi_stride = 0;
     }},
    {"alibi_origin_shifted", "q=f32 kv=bf16 heads=8:2 d=32 page=16 alibi=1 lse=1 reqs=9@60,1@90", Step::alibi_origin_shifted},
    // how they are summed
    {"maximum_not_rescaled", "q=f32 kv=f32 heads=8:2 d=32 page=16 lse=1 reqs=9@260,1@290", Step::maximum_not_rescaled},
    {"merge_not_rescaled", "q=f32 kv=bf16 heads=4:2 d=32 page=16 lse=1 reqs=3@2047,1@3000", Step::merge_not_rescaled,
     "does not rescale the earlier segments in the merge"},
    {"merged_at_first_part", "q=f32 kv=bf16 heads=4:1 d=32 page=16 lse=1 reqs=1@9000", Step::merged_at_first_part,
     "merges a split as soon as its first part is done"},
    {"stale_accumulator", "q=f32 kv=bf16 heads=4:2 d=32 page=16 lse=1 reqs=3@2047,1@3000", Step::stale_accumulator,
     "starts a segment with what the one before it left behind"},
    {"sinks_dropped", "q=f32 kv=bf16 heads=8:2 d=32 page=16 sinks=1 lse=1 reqs=9@60,1@90",
     [](Given& g) { g.args.sinks = nullptr; }},
    // what is written
    {"lse_base_2", "q=bf16 kv=bf16 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90",
     [](StoredRow& r) {
       r.lse *= 1.4426950f;
       r.store();
     }},
    {"decode_rows_not_written", "q=f16 kv=f16 heads=8:2 d=32 page=16 lse=1 reqs=9@60,1@90",
     [](StoredRow& r) {
       if (r.args.reqs[r.req].query_len != 1) r.store();
     }},
    {"heads_swapped_in_pairs", "q=f16 kv=f16 heads=8:2 d=32 page=16 layout=hnd lse=1 reqs=9@60,1@90",
     [](StoredRow& r) {
       r.head ^= 1;
       r.store();
     }},
    {"row_padding_written", "q=f32 kv=f32 heads=8:2 d=24 page=16 lse=1 reqs=9@60,1@90",
     [](StoredRow& r) {
       r.store();
       r.store_padding();
     },
     "writes the padding of a row behind its last dim"},
};

/// One fault in force as long as this lives.
class Plant {
 public:
  explicit Plant(const Injected& injected);
  Plant(const Plant&) = delete;
  Plant& operator=(const Plant&) = delete;
  ~Plant();
};

}  // namespace quire::test
