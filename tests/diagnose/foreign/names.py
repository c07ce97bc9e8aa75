# SPDX-License-Identifier: Apache-2.0
"""Says which answers name a planted fault: its own mechanism, and those that predict the same on a batch.

A group holds mechanisms that can predict the same, depending on their parameters. Such an answer is accepted if it
explains all that is wrong (`explained` at least ALL): then its parameters make it the same prediction.
"""

ALL = 0.999

KEY_SETS = {"key_range", "mask", "positions", "shapes", "split"}      # the set of keys that a row sees is all that differs
PAGES = {"page", "table_row", "page_contents"}               # contents of what is read as a page are all that differs
GROUPS = {
    "key_range": KEY_SETS, "mask": KEY_SETS, "positions": KEY_SETS, "shapes": KEY_SETS, "page": PAGES, "table_row": PAGES,
    "page_is_anothers": PAGES, "slots_rotated_in_a_page": PAGES, "page_is_stale": PAGES, "two_pages_exchanged": PAGES,
    "split_dropped": KEY_SETS, "last_split_alone": KEY_SETS, "length_of_a_neighbour": KEY_SETS | PAGES,
    "shared_prefix_dropped": KEY_SETS | PAGES,
    "page_of_another_type": {"page_contents", "element_type"},
    # One more logit in the denominator is a sink of logit 0; tiles that are not rescaled are splits without weights.
    "denominator_from_one": {"normalisation", "sink"}, "neither_rescaled": {"normalisation", "split"},
    "merged_without_maximum": {"normalisation", "split"}, "sink_in_every_split": {"sink", "split"},
    "hidden_keys_score_zero": {"mask", "normalisation", "key_range"}, "hidden_tile_gives_nan": {"normalisation", "mask"},
    "cap_clamps": {"soft_cap", "rounded"}, "dots_saturated": {"soft_cap", "rounded"},
    "operands_rounded": {"rounded", "element_type"}, "output_rounded": {"rounded", "element_type"},
    "codes_saturated_at_240": {"rounded", "element_type"},
    # e4m3fn read as e4m3fnuz is half the value.
    "another_fp8_type": {"element_type", "factor_out", "factor_scores"},
    "tail_zero": {"dims", "not_written"}, "lane_zero": {"dims", "not_written"},
    "halves_swapped": {"dims", "layout"}, "dims_interleaved": {"dims", "layout"},
    "key_dims_permuted": {"dims", "layout"}, "keys_packed_by_another_width": {"dims", "layout"},
    "key_and_value_exchanged": {"layout", "page_contents", "page"},
    "k_and_v_of_a_page_swapped": {"layout", "page_contents", "page"},
    # Elements without their last bits, or in few steps, are rounded ones; an exponent that is off is a factor of K or V.
    "low_bits_masked": {"element_type", "rounded"}, "operands_as_integers": {"rounded", "element_type"},
    "exponent_bias_off": {"element_type", "factor_out", "factor_scores"},
    # A permutation of V's dims, the same in all slots, is one of the output's.
    "elements_of_a_word_reversed": {"dims", "layout"},
    # Keys between two splits are keys that no row sees.
    "splits_leave_gaps": KEY_SETS,
}

# The catalogue's ids (docs/reference/faults.md) by mechanism, for reports that name a fault alone.
CATALOGUE = {
    "not_written": "output_not_written output_zero last_row_not_written decode_rows_not_written prefill_rows_not_written "
                   "request_not_written rows_past_max_query_len_not_written partial_row_tile_not_written heads_past_cap_not_written",
    "dims": "output_tail_dims_zero k_dims_permuted v_dims_permuted query_tail_dims_dropped rope_dims_dropped v_dims_beyond_k_zero",
    "output_row": "empty_request_overwrites_neighbour rows_shifted_by_one batch_order_not_restored heads_swapped_in_pairs "
                  "output_transposed rows_repeat_the_last query_start_loc_of_next_request query_start_loc_off_by_one_row "
                  "padded_query_start_loc query_start_loc_as_int32 query_start_loc_as_int32_in_decode output_rows_of_k_head_dim",
    "query_row": "query_of_neighbour_row query_of_first_row row_is_request_index",
    "query_head": "one_query_head_per_group",
    "positions": "context_len_is_seq_len context_rounded_to_page causal_flag_ignored causal_mask_of_flags_missing causal_flag_inverted "
                 "causal_flag_of_first_request causal_flag_of_next_request key_begin_ignored_in_causal_mask "
                 "key_begin_ignored_in_window key_begin_ignored_in_alibi q_begin_ignored q_begin_one_early q_begin_one_late "
                 "q_begin_as_int32 rows_at_first_key window_right_one_long window_right_one_short window_right_ignored "
                 "window_right_in_causal_requests window_only_in_causal_requests as_many_keys_as_rows alibi_symmetric "
                 "no_key_gives_nan no_key_not_written no_key_lse_zero no_key_lse_plus_infinity",
    "shapes": "chunk_ignored chunk_as_window chunk_one_early chunk_from_first_key prefix_ignored prefix_one_short prefix_one_long "
              "prefix_of_next_request prefix_from_first_key prefix_seen_by_earlier_rows span_ignored span_end_included span_one_short "
              "span_first_only span_of_next_request span_beyond_window_inverted spans_are_one tree_ignored tree_all_visible "
              "tree_highest_bit_first tree_one_late tree_of_next_row tree_of_first_request tree_of_first_row tree_first_byte_only "
              "tree_hides_context tree_without_own_key",
    "key_range": "seq_lens_as_int32 seq_lens_without_new_tokens seq_lens_off_by_one seq_len_of_neighbour "
                 "causal_sees_one_future_key causal_excludes_own_key window_one_short window_one_long window_ignored "
                 "window_from_page_start window_from_last_row window_from_first_row window_only_in_prefill window_only_in_decode "
                 "window_only_on_context window_only_on_new_keys last_keys_missing first_key_missing partial_last_page_skipped "
                 "partial_context_page_skipped partial_key_tile_skipped max_seq_len_too_small every_second_key_skipped "
                 "slot_of_each_page_skipped page_tail_read new_rows_ignored new_keys_counted_twice",
    "mask": "causal_mask_missing causal_mask_top_left causal_mask_by_tile speculative_rows_see_all masked_tail_multiplied "
            "out_of_window_multiplied",
    "page_contents": "nibbles_swapped fp4_codes_as_integers fp4_half_lost fp4_sign_lost block_scales_dropped block_scale_of_neighbour "
                     "block_scale_of_first_block block_scales_of_neighbour_token block_scales_by_layout v_block_scales_interleaved "
                     "block_of_other_size e8m0_bias_off_by_one block_scale_type_confused block_scales_of_keys "
                     "token_scale_of_neighbour token_scale_of_page_start token_scales_of_first_page token_scales_transposed "
                     "latent_scale_of_next_block latent_last_block_takes_first_scale latent_one_scale_for_row latent_blocks_of_64 "
                     "latent_scales_dropped latent_scales_inverted rope_read_as_codes rope_read_behind_codes rope_scaled "
                     "one_token_scale_for_all token_scales_of_keys own_slot_zero new_slots_zero context_zero cached_keys_zero all_keys_from_cache new_rows_from_context "
                     "new_row_of_neighbour append_capped_at_512_threads",
    "page": "pages_shifted_by_one first_page_repeated two_pages_swapped page_order_reversed block_table_ignored page_id_truncated "
            "page_size_shifted page_size_confused slots_reversed k_pages_rotated v_pages_rotated element_offset_32_bit stale_page",
    "table_row": "block_table_as_int32 table_row_of_neighbour table_row_of_first_request table_row_stride_too_short",
    "layout": "cache_layout_confused packed_wrong_x packed_v_as_rows k_and_v_swapped cache_strides_from_query_heads "
              "cache_strides_from_padded_head_dim cache_taken_for_interleaved v_strides_from_k_head_dim k_strides_from_v_head_dim "
              "v_read_from_last_dims",
    "kv_head": "kv_head_modulo kv_head_modulo_one_side kv_head_shifted_group kv_head_always_zero kv_head_off_by_one kv_head_is_query_head",
    "factor_out": "v_scale_dropped",
    "factor_scores": "k_scale_dropped scales_swapped scale_of_first_head scales_inverted scales_applied_twice scales_on_new_rows "
                     "scale_from_query_heads scale_ignored scale_missing scale_applied_twice scale_inverted "
                     "scale_from_padded_head_dim scale_from_v_head_dim qk_ignored exp2_without_log2e log2e_without_exp2",
    "element_type": "v_read_as_type_of_k k_read_as_type_of_v fp8_fn_fnuz_confused fp8_e4m3_e5m2_confused fp8_codes_as_integers f16_bf16_confused sign_lost",
    "rounded": "fp8_subnormals_flushed fp8_saturated_at_240 query_rounded_to_fp8 scores_rounded_to_bf16 weights_rounded_to_fp8 "
               "alibi_bias_in_bf16",
    "soft_cap": "soft_cap_ignored soft_cap_clips soft_cap_not_multiplied_back soft_cap_before_scale soft_cap_after_alibi",
    "alibi_slope": "alibi_ignored alibi_sign_flipped negative_slopes_as_zero positive_bias_masked alibi_slope_of_kv_head "
                   "alibi_slope_of_next_head alibi_origin_shifted alibi_before_scale",
    "normalisation": "no_max_subtraction maximum_not_rescaled denominator_starts_at_one output_not_normalised masked_keys_in_denominator",
    "factor_lse": "lse_base_2 lse_without_max lse_is_max lse_transposed lse_without_sink",
    "sink": "sinks_dropped sinks_in_decode_only sink_in_numerator sink_scaled sink_in_other_base sink_capped sink_of_kv_head "
            "sink_of_next_head sink_in_every_split",
    "split": "last_split_dropped split_dropped split_counted_twice splits_averaged split_weights_swapped "
             "splits_overwrite_each_other merge_with_wrong_base empty_split_is_nan merge_with_wrong_stride",
}
MECHANISM = {fault: mechanism for mechanism, faults in CATALOGUE.items() for fault in faults.split()}


def mechanism_of(name):
    """Gives the mechanism of a catalogue id (of the first, where some are joined by +); a mechanism is its own."""
    first = name.split(" + ")[0].strip()
    return MECHANISM.get(first, first)


def accepted(fault, answer):
    """Says whether an answer (of the report's schema) names a planted fault (of a truth file)."""
    mechanism, variant = fault["mechanism"], fault["variant"]
    told = answer.get("mechanism") or mechanism_of(answer.get("fault", ""))
    as_good = {mechanism_of(name) for name in answer.get("as_good", [])}
    if told == mechanism or mechanism in as_good or told in fault["same_as"]:
        return True
    if any(c["attribute"] == "dim" for c in fault["scope"]) and {told, mechanism} == {"dims", "not_written"}:
        return True
    group = GROUPS.get(variant, set()) | GROUPS.get(mechanism, set())
    return told in group and answer.get("explained", 0) >= ALL


def accepted_profile(fault, report):
    """Says whether a verdict `right` names rounding by its profile."""
    profile = report.get("profile") or {}
    key = {"weights_rounded": "weights", "scores_rounded": "scores"}.get(fault["variant"])
    return key is not None and profile.get(key) == fault["parameters"].get("type")
