# SPDX-License-Identifier: Apache-2.0
"""bench/: what kernels add to a step's time, from their starts and ends."""

import pathlib
import sys

BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import gpu  # noqa: E402
import gpu_engine  # noqa: E402


def test_a_kernel_adds_what_the_one_before_it_left():
    # b starts beside a; a pause of 1 us before the second a; 284 us are between steps; c ends inside another a.
    events = [(0, 10, "a"), (8, 14, "b"), (15, 16, "a"), (300, 310, "a"), (301, 309, "c"), (311, 313, "b")]
    found = gpu_engine.timeline(events, steps=2)
    assert {name: (counts["calls"], counts["us"], counts["adds"]) for name, counts in found.items()} == {
        "a": (1.5, 10.5, 11.0), "b": (1.0, 4.0, 3.5), "c": (0.5, 4.0, 0.0),
    }  # fmt: skip


def test_all_that_kernels_add_is_the_time_of_a_step():
    events = [(0, 4, "a"), (2, 9, "b"), (12, 20, "c")]
    assert sum(counts["adds"] for counts in gpu_engine.timeline(events, steps=1).values()) == 20


def test_roles_go_by_name():
    kernels = {"append_words_kernel<x>": 2.0, "cutlass FlashAttnFwdCombine": 1.0, "cutlass FlashAttnFwdSm90": 5.0, "nvjet_tst": 3.0}
    found = gpu.by_role({name: {"adds": us} for name, us in kernels.items()})
    assert found == {"cache write": 2.0, "combine": 1.0, "attention": 5.0, "rest": 3.0}
