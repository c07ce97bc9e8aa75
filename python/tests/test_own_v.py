# SPDX-License-Identifier: Apache-2.0
"""V with a head_dim of its own, and MLA on a latent cache: against a dense softmax in float64."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import quire
from quire import mla

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "mla.md"


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _dense(query, keys, values, scale):
    """Causal attention of the last rows: query [rows, heads, d], keys [n, kv_heads, d], values [n, kv_heads, dv], in float64."""
    rows, heads, group = query.shape[0], query.shape[1], query.shape[1] // keys.shape[1]
    hidden = np.arange(len(keys))[None] > (len(keys) - rows + np.arange(rows))[:, None]
    out = np.empty((rows, heads, values.shape[2]))
    for h in range(heads):
        scores = scale * query[:, h].astype(np.float64) @ keys[:, h // group].astype(np.float64).T
        out[:, h] = _softmax(np.where(hidden, -np.inf, scores)) @ values[:, h // group]
    return out


def _paged(layout, head_dim, v_head_dim, dtype=np.float32):
    """One request of 37 keys in pages of 8, the last of them holding 5."""
    rng = np.random.default_rng(3)
    k, v = (rng.standard_normal((7, 8, 2, d)).astype(dtype) for d in (head_dim, v_head_dim))
    table = np.array([[5, 2, 0, 6, 1]], np.int32)
    keys, values = (x[table[0]].reshape(-1, 2, x.shape[3])[:37] for x in (k, v))
    if layout == "hnd":
        k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (k, v))
    if layout == "packed":
        x = 16 // k.itemsize
        k = np.ascontiguousarray(k.reshape(7, 8, 2, head_dim // x, x).transpose(0, 2, 3, 1, 4))
        v = np.ascontiguousarray(v.transpose(0, 2, 3, 1))
    query = rng.standard_normal((4, 6, head_dim)).astype(dtype)
    return query, quire.KVCache(k, v, layout), table, keys, values


@pytest.mark.parametrize("layout", ["nhd", "hnd", "packed"])
@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(192, 128), (16, 40), (64, 1), (8, 136)])
def test_a_new_output_has_the_head_dim_of_v(layout, head_dim, v_head_dim):
    query, cache, table, keys, values = _paged(layout, head_dim, v_head_dim)
    batch = quire.Batch(query=query, query_start_loc=[0, 4], seq_lens=[37], block_table=table)
    assert (cache.head_dim, cache.v_head_dim) == (head_dim, v_head_dim)
    out = quire.attend(batch, cache)
    assert out.shape == (4, 6, v_head_dim)
    np.testing.assert_allclose(out, _dense(query, keys, values, head_dim**-0.5), atol=2e-5)
    assert quire.compare(out, None, quire.reference(batch, cache)).ok
    assert quire.reference(batch, cache).out.shape == out.shape
    bound = quire.bind(batch, cache)
    assert bound().shape == out.shape
    np.testing.assert_array_equal(bound(), out)


def test_an_output_of_ks_head_dim_breaks_a_rule():
    query, cache, table, *_ = _paged("nhd", 32, 16)
    batch = quire.Batch(query=query, query_start_loc=[0, 4], seq_lens=[37], block_table=table, output=np.empty_like(query))
    with pytest.raises(quire.ContractError, match=r"Q-M11 output: shape \[4, 6, 32\], expected \[4, 6, 16\] = .*head_dim of cache.v"):
        quire.attend(batch, cache)


def test_values_of_this_step_have_the_head_dim_of_v():
    query, cache, table, keys, values = _paged("nhd", 32, 16)
    new = dict(key=keys[-4:].copy(), value=values[-4:].copy(), cached_lens=[33])
    batch = quire.Batch(query=query, query_start_loc=[0, 4], seq_lens=[37], block_table=table, **new)
    np.testing.assert_allclose(quire.attend(batch, cache), _dense(query, keys, values, 32**-0.5), atol=2e-5)


def test_faults_of_unequal_dims_are_noticed():
    lines = ["q=f32 heads=4:2 d=24 dv=16 page=8 lse=1 reqs=9@20,1@33", "q=f32 heads=4:2 d=16 dv=24 page=8 lse=1 reqs=9@20,1@33",
             "q=f32 heads=4:1 d=24 dv=16 latent=1 page=8 lse=1 reqs=9@20,1@33"]  # fmt: skip
    verdict = quire.verify("cpu_generic", matrices=(), lines=lines, shrink=False)
    assert [case.status for case in verdict.cases] == ["pass"] * 3, verdict.text
    faults = [m for m in verdict.power if m.family == "head_dims"]
    assert len(faults) == 7 and all(m.can_show and m.killed for m in faults), verdict.text


# ---- MLA ----------------------------------------------------------------------------------------------------------------------

RANK, ROPE, NOPE, V_DIM, HEADS = 48, 16, 24, 20, 8


class _Model:
    """Weights of one layer, and what a step of it makes of hidden states."""

    def __init__(self, seed=1):
        rng = np.random.default_rng(seed)
        self.w_uk = rng.standard_normal((HEADS, NOPE, RANK)).astype(np.float32) / RANK**0.5
        self.w_uv = rng.standard_normal((HEADS, V_DIM, RANK)).astype(np.float32) / RANK**0.5

    def dense(self, q_nope, q_rope, c_kv, k_rope):
        """The heads' own K and V, and softmax over them."""
        keys = np.concatenate([np.einsum("hnr,tr->thn", self.w_uk, c_kv), np.repeat(k_rope[:, None], HEADS, 1)], axis=2)
        values = np.einsum("hvr,tr->thv", self.w_uv, c_kv)
        query = np.concatenate([q_nope, q_rope], axis=2)
        return _dense(query, keys, values, mla.softmax_scale(NOPE, ROPE)), query, keys, values


def _step(rng, tokens):
    return tuple(rng.standard_normal(s).astype(np.float32) for s in ((tokens, HEADS, NOPE), (tokens, HEADS, ROPE), (tokens, RANK), (tokens, ROPE)))


def test_absorbed_decode_equals_a_dense_forward():
    rng, model = np.random.default_rng(2), _Model()
    latent = np.full((9, 8, RANK + ROPE), np.nan, np.float32)
    table = np.array([[4, 1, 7, 0, 3, 8]], np.int32)
    seen = [np.empty((0, RANK), np.float32), np.empty((0, ROPE), np.float32)]
    length = 0
    for tokens in (21, 1, 1, 5, 1):  # a prompt, then decode and a chunk
        q_nope, q_rope, c_kv, k_rope = _step(rng, tokens)
        where = length + np.arange(tokens)
        mla.append(latent, c_kv, k_rope, table[0, where // 8].astype(np.int64) * 8 + where % 8)
        length += tokens
        seen = [np.concatenate([a, b]) for a, b in zip(seen, (c_kv, k_rope))]
        query = mla.absorbed_query(q_nope, q_rope, model.w_uk, np.empty((tokens, HEADS, RANK + ROPE), np.float32))
        batch = quire.Batch(query=query, query_start_loc=[0, tokens], seq_lens=[length], block_table=table)
        out = quire.attend(batch, mla.cache(latent, RANK), quire.Options(softmax_scale=mla.softmax_scale(NOPE, ROPE)))
        assert out.shape == (tokens, HEADS, RANK)
        expected = model.dense(q_nope, q_rope, *seen)[0]
        np.testing.assert_allclose(mla.expanded(out, model.w_uv), expected, atol=3e-5)


def test_prefill_over_the_heads_own_keys_equals_it():
    rng, model = np.random.default_rng(5), _Model()
    expected, query, keys, values = model.dense(*_step(rng, 19))
    cache = quire.KVCache(np.zeros((1, 8, HEADS, NOPE + ROPE), np.float32), np.zeros((1, 8, HEADS, V_DIM), np.float32))
    batch = quire.Batch(
        query=query, query_start_loc=[0, 19], seq_lens=[19], block_table=[[0, 0, 0]], cached_lens=[0],
        key=np.ascontiguousarray(keys), value=np.ascontiguousarray(values),
    )  # fmt: skip
    np.testing.assert_allclose(quire.attend(batch, cache), expected, atol=3e-5)


def test_a_latent_row_may_be_fp8_with_one_scale():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(7)
    _, _, c_kv, k_rope = _step(rng, 8)
    latent = np.zeros((1, 8, RANK + ROPE), ml_dtypes.float8_e4m3fn)
    mla.append(latent, c_kv, k_rope, np.arange(8), scale=0.0125)
    stored = latent.astype(np.float32)[0] * np.float32(0.0125)
    assert np.abs(stored - np.concatenate([c_kv, k_rope], 1)).max() < 0.2
    query = rng.standard_normal((1, HEADS, RANK + ROPE), np.float32)
    batch = quire.Batch(query=query, query_start_loc=[0, 1], seq_lens=[8], block_table=[[0]])
    out = quire.attend(batch, mla.cache(latent, RANK, scale=0.0125))
    np.testing.assert_allclose(out, _dense(query, stored[:, None], stored[:, None, :RANK], (RANK + ROPE) ** -0.5), atol=3e-5)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: mla.cache(x[0], RANK), r"latent: \[8, 64\], expected \[num_pages, page_size, rank \+ rope_dim\]"),
        (lambda x: mla.cache(x, 64), "rank: 64, expected 1 to 63: a row of the cache has 64 elements"),
        (lambda x: mla.append(x, x[0, :, :RANK], x[0, :, RANK + 1:], [0]), r"c_kv and k_rope: 48 \+ \d+ elements, expected \d+: a row"),
        (lambda x: mla.append(x, x[0, :, None, :RANK], x[0, :, RANK:], [0]), r"c_kv: \[8, 1, 48\], expected \[num_tokens, rank\]"),
        (
            lambda x: mla.absorbed_query(x[:, :, :NOPE], x[:, :, :ROPE], np.zeros((8, NOPE, RANK)), x[:1]),
            r"out: \[1, 8, 64\], expected \[2, 8, 64\] = \[num_tokens, heads, rank \+ rope_dim\]",
        ),
    ],
)  # fmt: skip
def test_wrong_shapes_are_named(call, text):
    with pytest.raises(quire.ArgumentError, match=text):
        call(np.zeros((2, 8, 64), np.float32))


def test_k_and_v_of_one_memory_are_refused_by_append():
    latent = np.zeros((1, 8, RANK + ROPE), np.float32)
    row = np.zeros((1, 1, RANK + ROPE), np.float32)
    with pytest.raises(quire.ContractError, match="Q-S07 cache.v: shares memory with cache.k"):
        quire.append(mla.cache(latent, RANK), row, row[:, :, :RANK], [0])


def test_the_program_of_the_page(capsys):
    (source, printed) = re.findall(r"test_own_v.py -->\n```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    exec(source, {})
    assert capsys.readouterr().out == printed
