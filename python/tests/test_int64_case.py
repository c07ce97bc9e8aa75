# SPDX-License-Identifier: Apache-2.0
"""The failing batch of the engineering notes: query_start_loc from torch.cumsum, int64, read through an untyped pointer as int32.

Misread on purpose it breaks a rule; passed honestly as int64 it is computed right, the last row (the lone decode row that was never
written) included. Eight of the 64 heads here; the full size runs with --slow.
"""

import numpy as np
import pytest
from dense import attention, make_job, packed

import quire
import quire_vllm.ops

QUERY_LENS = [880, 410, 792, 927, 446, 57, 281, 1004, 539, 1]
CONTEXT_LENS = [430, 956, 818, 865, 326, 1007, 504, 382, 613, 929]


@pytest.fixture(scope="module")
def job():
    return make_job(QUERY_LENS, CONTEXT_LENS, heads=8, kv_heads=8, dim=128, page=32, dtype="f16", seed=0)


def batch_of(job, query_start_loc):
    output = np.full_like(job.q, np.nan)
    return quire.Batch(
        query=job.q, output=output, query_start_loc=query_start_loc, seq_lens=job.seq_lens, block_table=job.block_table
    )


def cumsum(job):
    return np.concatenate(([0], np.cumsum(job.query_lens))).astype(np.int64)


def misread(job):
    """What the kernel saw: the first 11 int32 halves of 11 int64 numbers (little-endian)."""
    halves = cumsum(job).view("<i4")[:11]
    assert halves.tolist() == [0, 0, 880, 0, 1290, 0, 2082, 0, 3009, 0, 3455]
    return halves


def test_misread_indices_break_a_rule(job):
    batch, cache = batch_of(job, misread(job)), quire.KVCache(job.k, job.v)
    findings = quire.check(batch, cache, depth="tables")
    assert findings[0].rule == "Q-T05" and findings[0].tensor == "query_start_loc"
    with pytest.raises(
        quire.ContractError, match=r"Q-T05 query_start_loc: every second value is 0 \(0 0 880 0 1290 .* int64 array read as int32"
    ):
        quire.attend(batch, cache)
    assert np.isnan(batch.output).all()


def test_misread_indices_break_a_rule_through_the_shim(job):
    pk, pv = packed(job.k, job.v)
    output = np.full_like(job.q, np.nan)
    one = np.ones(1, np.float32)
    with pytest.raises(quire.ContractError, match="Q-T05 query_start_loc"):
        quire_vllm.ops.chunked_prefill_paged_decode(
            job.q, job.new_k, job.new_v, output, "auto", pk, pv, job.block_table, misread(job), job.seq_lens, 1024, 1004, one, one
        )
    assert np.isnan(output).all()


def judge_requests(job, output, requests):
    for r in requests:
        a, b = int(job.query_start_loc[r]), int(job.query_start_loc[r + 1])
        expected, _, abs_pv, magnitude = attention(job.q[a:b].astype(float), job.dense_k[r], job.dense_v[r], CONTEXT_LENS[r])
        tolerance = 1.01 * 2.0**-11 * np.abs(expected) + 2.0**-24 * 350 * (1 + magnitude[:, :, None]) * abs_pv + 2.0**-25
        assert np.all(np.abs(output[a:b].astype(float) - expected) <= tolerance), f"request {r}"


def test_honest_int64_is_computed_right(job):
    batch, cache = batch_of(job, cumsum(job)), quire.KVCache(job.k, job.v)
    output = quire.attend(batch, cache)
    assert np.isfinite(output).all(), "a row was not written"
    judge_requests(job, output, [5, 9])
    assert np.array_equal(output, quire.attend(batch_of(job, job.query_start_loc), cache)), "int32 and int64 differ"


@pytest.mark.slow
def test_honest_int64_at_full_size():
    job = make_job(QUERY_LENS, CONTEXT_LENS, heads=64, kv_heads=64, dim=128, page=32, dtype="f16", seed=0)
    batch, cache = batch_of(job, cumsum(job)), quire.KVCache(job.k, job.v)
    rows = {}
    output = quire.attend(batch, cache, rows=rows)
    assert sum(rows.values()) == 5337 * 64 and output.size == 43_720_704
    judge_requests(job, output, range(10))
