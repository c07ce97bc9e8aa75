"""Says which answers name a planted fault: its own mechanism, and those that predict the same on a batch.

A group holds mechanisms that can predict the same, depending on their parameters. Such an answer is accepted if it
explains all that is wrong (`explained` at least ALL): then its parameters make it the same prediction.
"""

ALL = 0.999

KEY_SETS = {"key_range", "mask", "positions", "split"}      # the set of keys that a row sees is all that differs
PAGES = {"page", "table_row", "page_contents"}               # what stands where a page is read
GROUPS = {
    "key_range": KEY_SETS, "mask": KEY_SETS, "positions": KEY_SETS, "page": PAGES, "table_row": PAGES,
    "page_is_anothers": PAGES, "slots_rotated_in_a_page": PAGES, "page_is_stale": PAGES, "two_pages_exchanged": PAGES,
    "split_dropped": KEY_SETS, "shared_prefix_dropped": KEY_SETS | PAGES, "last_split_alone": KEY_SETS, "length_of_a_neighbour": KEY_SETS | PAGES,
    "page_of_another_type": {"page_contents", "element_type"},
    # One more logit in the denominator is a sink of logit 0; tiles that are not rescaled are splits without weights.
    "denominator_from_one": {"normalisation", "sink"}, "neither_rescaled": {"normalisation", "split"},
    "merged_without_maximum": {"normalisation", "split"}, "sink_in_every_split": {"sink", "split"},
    "hidden_keys_score_zero": {"mask", "normalisation", "key_range"},
    "cap_clamps": {"soft_cap", "rounded"}, "dots_saturated": {"soft_cap", "rounded"},
    # e4m3fn read as e4m3fnuz is half the value.
    "another_fp8_type": {"element_type", "factor_out", "factor_scores"},
    "fp8_read_as_integers": {"element_type", "layout"},
    "tail_zero": {"dims", "not_written"}, "lane_zero": {"dims", "not_written"},
    "halves_swapped": {"dims", "layout"}, "dims_interleaved": {"dims", "layout"},
    "key_dims_permuted": {"dims", "layout"}, "keys_packed_by_another_width": {"dims", "layout"},
    "key_and_value_exchanged": {"layout", "page_contents", "page", "other"},
    "k_and_v_of_a_page_swapped": {"layout", "page_contents", "page"},
    "query_row_of_the_request_number": {"query_row", "table_row"},
}


def accepted(fault, answer):
    """Says whether an answer (of the report's schema) names a planted fault (of a truth file)."""
    mechanism, variant = fault["mechanism"], fault["variant"]
    told = answer.get("mechanism", "")
    if told == mechanism or mechanism in answer.get("as_good", []) or told in fault["same_as"]:
        return True
    if any(c["attribute"] == "dim" for c in fault["scope"]) and {told, mechanism} == {"dims", "not_written"}:
        return True
    group = GROUPS.get(variant, set()) | GROUPS.get(mechanism, set())
    return told in group and answer.get("explained", 0) >= ALL


def accepted_profile(fault, report):
    """Says whether a verdict `right` names rounding by its profile."""
    p = fault["parameters"]
    profile = report.get("profile") or {}
    key = {"weights_rounded": "weights", "scores_rounded": "scores"}.get(fault["variant"])
    return key is not None and profile.get(key) == p.get("type")
