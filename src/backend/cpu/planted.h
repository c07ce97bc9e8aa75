// SPDX-License-Identifier: Apache-2.0
// Faults that a test can switch on in the real kernels (tests/injection, testing.md). Only that test compiles these sources
// with QUIRE_PLANT_FAULTS; everywhere else the question is the constant false and leaves no code behind.
#pragma once

#ifdef QUIRE_PLANT_FAULTS

namespace quire::cpu {

/// Named as in the catalogue of src/faults where it holds the same fault.
enum class Planted {
  none,
  alibi_origin_shifted,
  alibi_slope_of_kv_head,
  causal_excludes_own_key,
  causal_flag_ignored,
  causal_sees_one_future_key,
  decode_rows_not_written,
  fp8_fn_fnuz_confused,
  heads_swapped_in_pairs,
  kv_head_always_zero,
  last_split_dropped,
  lse_base_2,
  masked_keys_multiplied,
  maximum_not_rescaled,
  merge_not_rescaled,
  merged_at_first_part,
  output_not_saturated,
  output_scale_multiplied,
  output_truncated,
  pages_shifted_by_one,
  partial_key_tile_skipped,
  q_begin_ignored,
  query_of_first_row,
  query_tail_dims_dropped,
  row_padding_written,
  scale_from_query_heads,
  scales_on_new_rows,
  scales_swapped,
  sinks_dropped,
  soft_cap_ignored,
  stale_accumulator,
  stale_value_tile,
  table_row_of_first_request,
  window_one_short,
  window_right_one_long,
};

extern Planted planted;  // the one in force; defined by the test, changed between calls only

}  // namespace quire::cpu

#define QUIRE_PLANTED(fault) (quire::cpu::planted == quire::cpu::Planted::fault)

#else
#define QUIRE_PLANTED(fault) false
#endif
