#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One fault has one name: tests that plant faults call them by the ids of the catalogue (src/faults, docs/reference/faults.md). A
name that is not in the catalogue needs a reason below. Prints every name without one, and every reason without a use.

usage: check_fault_names.py              check the repository
       check_fault_names.py --self-test  check lists with a fault of each kind, and demand that each is reported

tests/hip/planted.py and tests/amd_emulator/power.py have no ids: they change lines of host code and of the machine, not formulas.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "docs/reference/faults.md", r"^\| `(\w+)` \|"  # tests/faults compares the page with the code
PLACES = {
    "tests/injection/injected.h": r'^    \{"(\w+)",',
    "tests/kernels/planted_faults_test.cpp": r'^    \{"(\w+)", "\w+"\},$',
    "tests/simt/planted_test.cpp": r'\{"(\w+)", \[\]\(gpu::(?:Attend|Generic)Args& a\)',
    "src/verify/mutants.cpp": r'  add\("(\w+)", ',
}
# Reason -> names. A formula of attention that a kernel gets wrong belongs into the catalogue instead.
NOT_IN_CATALOGUE = {
    "a mistake of the caller or a broken promise: bytes, bits and calls, which no model of one output can express":
        "lse_unwritten adds_to_output output_taken_for_contiguous writes_past_end writes_padding_rows "
        "changes_the_cache validates_unused_entries reads_left_of_window leaks_finite_tail noise threads_change_bits "
        "reads_k_by_strides_of_v "
        "batch_changes_bits chunk_changes_bits chunk_of_16_changes_bits chunk_of_64_changes_bits chunk_of_512_changes_bits "
        "padding_rows_left rows_miscounted row_padding_written",
    "last_row_not_written of the catalogue, as a mistake of the caller: the check that must notice it is named": "last_row_unwritten",
    "it depends on what memory held before, or on when a part was done": "stale_accumulator stale_value_tile merged_at_first_part",
    "the conversion of a right row to 8 bits: models of the catalogue end before it":
        "output_not_saturated output_scale_multiplied output_truncated",
    "limits of a tile or a launch, where the catalogue has the general fault":
        "masked_keys_multiplied merge_not_rescaled wide_dims_of_later_keys_dropped large_negative_stand_in",
    "a mistake about data that verify does not give to others: NaN in a visible key, one owner for a shared page":
        "nan_scores_skipped shared_pages_claimed",
    "fields of the GPU kernels' arguments, each left out as a whole": "masks_ignored q_begin_of_first_request key_begin_ignored "
        "prefix_of_first_request prefix_len_ignored spans_of_first_request tree_first_byte_repeated block_scales_of_first_head "
        "block_scales_of_first_token block_scales_of_first_page codes_of_first_page codes_of_first_token codes_of_first_head",
}


def names_in(text: str, pattern: str) -> "list[str]":
    return re.findall(pattern, text, re.MULTILINE)


def complaints(catalogue: "set[str]", places: "dict[str, list[str]]", reasons: "dict[str, str]") -> "list[str]":
    excused = {name: reason for reason, names in reasons.items() for name in names.split()}
    used = {name for names in places.values() for name in names}
    found = [f"{place}: no fault is named here; has its form changed?" for place, names in places.items() if not names]
    found += [f"{place}: {name} is not in the catalogue, and has no reason in tools/check_fault_names.py"
              for place, names in places.items() for name in names if name not in catalogue and name not in excused]
    found += [f"{name} has a reason, but is in the catalogue" for name in excused if name in catalogue]
    return found + [f"{name} has a reason, but nothing plants it" for name in excused if name not in used]


def self_test() -> "list[str]":
    found = complaints({"lse_base_2", "window_ignored"}, {"a.h": ["lse_base_2", "unknown"], "b.h": []},
                       {"why": "window_ignored unused"})
    wanted = ["b.h: no fault", "a.h: unknown is not", "window_ignored has a reason, but is in", "unused has a reason, but nothing",
              "window_ignored has a reason, but nothing"]
    missed = [f"not reported: {words}" for words in wanted if not any(line.startswith(words) for line in found)]
    return missed + ([] if len(found) == len(wanted) else [f"reported: {found}"])


def main() -> int:
    if "--self-test" in sys.argv:
        found = self_test()
    else:
        read = lambda file, pattern: names_in((ROOT / file).read_text(encoding="utf-8"), pattern)  # noqa: E731
        found = complaints(set(read(*CATALOGUE)), {place: read(place, pattern) for place, pattern in PLACES.items()}, NOT_IN_CATALOGUE)
    print("\n".join(found) or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
