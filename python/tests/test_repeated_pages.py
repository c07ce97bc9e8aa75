# SPDX-License-Identifier: Apache-2.0
"""Q-T22: a request that sees one slot of the cache at two positions is a finding of check(), and every other call serves it."""

import subprocess
import sys

import numpy as np
import pytest

import quire
from quire import cascade

LINE = "q=f32 heads=4:2 d=16 page=4 reqs=1@30,2@18 seed=3"


@pytest.fixture
def zeros_behind():
    """A batch whose tables have zeros behind the first entries in use."""
    case = quire.make_case(LINE)
    table = np.array(case.batch.block_table)
    table[0, 3:] = 0
    table[1, 2:] = 0
    batch = quire.Batch(query=case.batch.query, query_start_loc=case.batch.query_start_loc, seq_lens=case.batch.seq_lens, block_table=table)
    np.asarray(case.cache.k)[0] = np.asarray(case.cache.v)[0] = 0.25  # a page of nobody is poisoned
    return batch, case.cache, case.options


def test_it_is_a_finding_at_depth_contents_alone(zeros_behind):
    findings = quire.check(*zeros_behind)
    assert {finding.rule for finding in findings} == {"Q-T22"}
    assert str(findings).startswith("Q-T22 block_table[0][4]: page 0 at positions 16 to 19, expected slots that the request sees once: "
                                    "block_table[0][3] has that page at positions 12 to 15 (are the entries behind those in use zeros?)")  # fmt: skip
    assert not quire.check(*zeros_behind, depth="tables")


def test_every_call_serves_it(zeros_behind):
    batch, cache, options = zeros_behind
    reference = quire.reference(batch, cache, options)
    out = np.empty_like(batch.query)
    quire.bind(batch, cache, options)(batch.query, cache.k, cache.v, out)
    plan = quire.plan(batch, cache, options)
    runs = cascade.plan(batch, cache, options, always=True)
    for found in (quire.attend(batch, cache, options), quire.attend(batch, cache, options, plan), out, cascade.attend(batch, cache, options, plan=runs)):
        assert quire.compare(np.asarray(found), None, reference).ok


def test_the_command_prints_it(zeros_behind, tmp_path):
    quire.write_capture(str(tmp_path / "zeros.safetensors"), *zeros_behind)
    done = subprocess.run([sys.executable, "-m", "quire", "check", str(tmp_path / "zeros.safetensors")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Q-T22 block_table[0][4]: page 0 at positions 16 to 19" in done.stdout


@pytest.mark.parametrize(("window", "sound"), [(16, True), (17, False)])
def test_a_ring_of_pages_is_sound_as_long_as_its_visible_slots_are_distinct(window, sound):
    """Four pages of 4 in turn: position 16 has the slot of position 32, which the one row has."""
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((8, 4, 2, 16)).astype(np.float32) for _ in "kv")
    ring = [[5, 1, 7, 2][column % 4] for column in range(9)]
    batch = quire.Batch(query=rng.standard_normal((1, 4, 16)).astype(np.float32), query_start_loc=[0, 1], seq_lens=[33], block_table=[ring])
    findings = quire.check(batch, quire.KVCache(k, v), quire.Options(sliding_window=window))
    assert [finding.rule for finding in findings] == ([] if sound else ["Q-T22"])
