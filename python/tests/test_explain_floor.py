# SPDX-License-Identifier: Apache-2.0
"""The floor of `quire explain`: no timed line of an H100 or H200 was faster, and the lines that a ceiling binds are near it."""

import json
from pathlib import Path

import pytest

from quire.__main__ import main

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


def floors(capfd, line, *words):
    assert main(["explain", *line.split(), "--json", *words]) == 0
    return [one["plan"]["floor"] for one in json.loads(capfd.readouterr().out)["explanations"]]


@pytest.mark.skipif(not RESULTS.exists(), reason="needs the repository's bench/results")
@pytest.mark.parametrize("device", ["h100", "h200"])
def test_no_timed_line_is_faster(capfd, device):
    shares = {}
    for row in json.loads((RESULTS / f"{device}-attend.json").read_text(encoding="utf-8"))["results"]:
        (floor,) = floors(capfd, row["line"], "--device", device)
        share = floor["us"] / row["us"]
        assert share <= 1, (row["line"], floor, row["us"])
        shares[floor["bound_by"]] = max(share, shares.get(floor["bound_by"], 0))
    assert 0.97 < shares["memory"] and 0.88 < shares["compute"], shares


def test_the_longer_of_two_times_binds(capfd):
    decode, prompt = (floors(capfd, f"q=bf16 heads=32:8 d=128 page=16 reqs={reqs}", "--device", "h100")[0] for reqs in ("64x1@8191", "16384"))
    assert decode["device"] == prompt["device"] == "H100"
    assert decode["bound_by"] == "memory" and decode["us"] == decode["read_us"] > decode["compute_us"]
    assert prompt["bound_by"] == "compute" and prompt["us"] == prompt["compute_us"] > prompt["read_us"]
    assert decode["read_us"] == pytest.approx(2 * 64 * 8192 * 8 * 128 * 2 / decode["bytes_per_second"] * 1e6)


def test_devices_that_were_not_measured_have_none(capfd):
    by_device = floors(capfd, "q=bf16 heads=32:8 d=128 page=16 reqs=1x1@99", "--all")
    assert [one["device"] for one in by_device if one] == ["H200"]
    assert main(["explain", "q=bf16", "heads=32:8", "d=128", "page=16", "reqs=1x1@99", "--device", "sm80"]) == 0
    assert "; no time: the ceilings of sm80 were not measured" in capfd.readouterr().out
