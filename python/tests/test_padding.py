# SPDX-License-Identifier: Apache-2.0
"""Padding rows from Python: Batch(padding=), quire_vllm.ops with batches padded for graphs, captures."""

import numpy as np
import pytest

import quire
from quire_vllm import ops as vllm

LENS = [(5, 14), (1, 30), (0, 0), (0, 0)]  # (query_len, seq_len); the last two are a padded engine's
ROWS, PADDING, HEADS, KV_HEADS, DIM, PAGE = 6, 3, 4, 2, 16, 8


def made(seed=0):
    rng = np.random.default_rng(seed)
    total = ROWS + PADDING
    query, key, value = (rng.standard_normal((total, heads, DIM)).astype(np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    for array in (query, key, value):
        array[ROWS:] = np.nan
    k, v = (rng.standard_normal((16, PAGE, KV_HEADS, DIM)).astype(np.float32) for _ in range(2))
    table = np.full((4, 4), 2**30, np.int32)
    table[0, :2], table[1, :4] = [3, 9], [1, 7, 12, 5]
    starts = np.concatenate(([0], np.cumsum([q for q, _ in LENS]))).astype(np.int32)
    return query, key, value, k, v, table, starts, np.array([s for _, s in LENS], np.int32)


def batch_of(padding, rows=ROWS + PADDING, output=None, lse=None, **more):
    query, _, _, k, v, table, starts, seq = made()
    batch = quire.Batch(
        query=query[:rows], query_start_loc=starts, seq_lens=seq, block_table=table, output=output, lse=lse, padding=padding, **more
    )
    return batch, quire.KVCache(k, v)


def test_zero_left_and_refused():
    batch, cache = batch_of(None, rows=ROWS)
    expected = quire.attend(batch, cache)
    for padding, behind in (("left", 7.0), ("zero", 0.0)):
        output = np.full((ROWS + PADDING, HEADS, DIM), 7.0, np.float32)
        lse = np.full((ROWS + PADDING, HEADS), 7.0, np.float32)
        batch, cache = batch_of(padding, output=output, lse=lse)
        assert batch.padding == padding and f'padding="{padding}"' in repr(batch)
        rows = {}
        quire.attend(batch, cache, rows=rows)
        assert sum(rows.values()) == ROWS * HEADS
        assert np.array_equal(output[:ROWS], expected)
        assert np.all(output[ROWS:] == behind)
        assert np.all(lse[ROWS:] == (7.0 if padding == "left" else -np.inf))
        assert quire.compare(output, lse, quire.reference(batch, cache)).ok
    batch, cache = batch_of(None)
    assert batch.padding is None
    with pytest.raises(quire.ContractError) as error:
        quire.attend(batch, cache)
    assert error.value.rule == "Q-T04"


def test_a_value_that_is_none_is_named():
    with pytest.raises(quire.ArgumentError, match="padding.*ignored.*left, zero"):
        batch_of("ignored")


def test_a_slot_of_a_padding_row_is_a_finding():
    slots = np.array([24 + 8 * 6 + 1, 74, 75, 76, 77, 8 * 5 + 5, -1, 3, -1])
    batch, cache = batch_of("left", slot_mapping=slots)
    assert [f.rule for f in quire.check(batch, cache)] == ["Q-S09"]


def test_captures_keep_it(tmp_path):
    batch, cache = batch_of("zero", output=np.zeros((ROWS + PADDING, HEADS, DIM), np.float32))
    quire.write_capture(tmp_path / "padded.safetensors", batch, cache, observed=quire.attend(batch, cache))
    case = quire.read_capture(tmp_path / "padded.safetensors")
    assert case.batch.padding == "zero"
    assert quire.diagnose(case).verdict == "right"


def packed(cache):
    return np.ascontiguousarray(cache.reshape(16, PAGE, KV_HEADS, DIM // 4, 4).transpose(0, 2, 3, 1, 4))


@pytest.mark.parametrize("padding", ["left", "zero", None])
@pytest.mark.parametrize("op", ["unified", "chunked", "context", "rocm"])
def test_vllm_ops_take_padded_batches(monkeypatch, op, padding):
    monkeypatch.setattr(vllm, "padding", padding)
    query, key, value, k, v, table, starts, seq = made()
    out = np.full_like(query, 7.0)
    kp, vp = packed(k), np.ascontiguousarray(v.transpose(0, 2, 3, 1))

    def call(rows, into):
        q, new_k, new_v = query[:rows], key[:rows], value[:rows]
        if op == "unified":
            vllm.unified_attention(q, k, v, into, starts, 5, seq, 30, 0.25, True, (-1, -1), table, 0.0, None, None, None)
        elif op == "chunked":
            vllm.chunked_prefill_paged_decode(q, new_k, new_v, into, "auto", kp, vp, table, starts, seq, 30, 5, None, None)
        elif op == "context":
            vllm.context_attention_fwd(q, new_k, new_v, into, "auto", kp, vp, table, starts, seq, 30, 5, None, None, skip_decode=True)
        else:
            vllm.paged_attention_rocm(into, None, None, None, q, kp, vp, KV_HEADS, 0.25, table, seq, starts, PAGE, 30, None, "auto", None, None)

    exact = np.full_like(query[:ROWS], 7.0)
    call(ROWS, exact)
    if padding is None:
        with pytest.raises(quire.ContractError, match="Q-T04"):
            call(ROWS + PADDING, out)
        return
    call(ROWS + PADDING, out)
    assert np.array_equal(out[:ROWS], exact)
    assert np.all(out[ROWS:] == (7.0 if padding == "left" else 0.0))
